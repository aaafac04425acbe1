"""When the updates of many clients are due: the earliest ones are sorted, the others wait in an array until then.

A heap of a million entries has its lower levels outside the processor's caches, and every operation visits them. Here
the next few thousand updates are in a sorted list; the array is searched when that list is used up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from typing import Any

import numpy as np

Entry = tuple[float, int]  # due time (s), client
SORTED = 256  # about how many entries are sorted at once, at least
SHARE = 128  # and at least 1/SHARE of all clients, because a search passes over all
SAMPLED = 64  # times of a sample below the bound that it gives


class DueTimes:
    """The due time (s) of each client's update, at most one a client; infinite: it is never due."""

    def __init__(self) -> None:
        self._array = np.empty(0)  # (n,) by client; infinite where there is none
        self._times: Any = self._array.data  # the same memory: single items are read faster
        # Times and clients of the earliest entries. An entry whose client was removed is skipped, here and in `_added`.
        self._sorted: tuple[Any, Any] = np.empty(0).data, np.empty(0, int).data
        self._next, self._count = 0, 0  # the place of the next one in `_sorted`, and how many it has
        self._added: list[Entry] = []  # a heap: entries added since that come before `_end`
        self._end: Entry = (inf, 0)  # entries from here on are in the array alone
        self._most = 2 * SORTED  # size of the heap beyond which the array is searched again
        self._never: set[int] = set()  # clients whose update is due at infinity
        self._finite = 0  # the number of the others

    def next_clients(self, most: int) -> list[int]:
        """At most `most` clients whose updates are due soon, mostly the earliest: it does not search for more.

        A client may be missing, or its due time may have been removed since.
        """
        (times, clients), begin = self._sorted, self._next
        end = min(begin + most, self._count)
        following = np.asarray(clients[begin:end])
        self._array[following]  # reads their times, so that they are in the processor's caches by then
        entries = [*zip(times[begin:end].tolist(), following.tolist(), strict=True), *self._added[:most]]
        return [i for _, i in sorted(entries)[:most]]  # of a heap the first entries are early ones

    def __len__(self) -> int:
        return self._finite + len(self._never)

    def add(self, i: int, due: float) -> None:
        """Adds the due time of client i, which has none."""
        if i >= len(self._times):
            self._grow(i + 1)
        if due == inf:
            self._never.add(i)
            return
        self._times[i] = due
        self._finite += 1
        if (entry := (due, i)) < self._end:
            heappush(self._added, entry)
            if len(self._added) > self._most:
                self._search()

    def _grow(self, clients: int) -> None:
        """Makes room for so many clients, and an eighth more."""
        more = np.full(clients + clients // 8 - len(self._array), inf)
        self._array = np.concatenate([self._array, more])
        self._times = self._array.data
        self._most = 2 * max(SORTED, len(self._array) // SHARE)

    def first(self) -> Entry:
        """The earliest time and its client, of several the one with the lowest number; infinity and -1: none is due."""
        times, added, (sorted_times, sorted_clients) = self._times, self._added, self._sorted
        while self._finite:
            if (k := self._next) < self._count:
                due, i = sorted_times[k], sorted_clients[k]
                if times[i] != due:  # it was removed
                    self._next = k + 1
                    continue
                if not added or (due, i) < added[0]:
                    return due, i
            elif not added:
                self._search()
                added, (sorted_times, sorted_clients) = self._added, self._sorted
                continue
            due, i = added[0]
            if times[i] == due:
                return due, i
            heappop(added)
        return (inf, min(self._never)) if self._never else (inf, -1)

    def _search(self) -> None:
        """Finds the earliest entries of the array, and sorts them."""
        times, most = self._array, self._most
        # About `most` / 2 of all times lie below the bound, as SAMPLED times of a sample do.
        sample = times[:: most // (2 * SAMPLED)]
        bound = float(np.partition(sample, SAMPLED)[SAMPLED]) if len(sample) > SAMPLED else inf
        bound = min(bound, sys.float_info.max)
        clients = np.flatnonzero(times <= bound)
        if not len(clients):
            raise ValueError("a due time is not a number")
        found = times[clients]
        order = np.argsort(found, kind="stable")  # of equal times the lowest client first
        self._end = (bound, len(times))
        if len(order) > most:  # many are equal, or the sample was not like the others
            self._end = found.item(order[most]), clients.item(order[most])
        order = order[:most]
        self._sorted, self._next, self._count = (found[order].data, clients[order].data), 0, len(order)
        self._added = []

    def remove(self, i: int) -> None:
        """Removes the due time of client i, if it has one."""
        if i < len(self._times) and self._times[i] < inf:
            self._times[i] = inf
            self._finite -= 1
            if (k := self._next) < self._count and self._sorted[1][k] == i:  # mostly the client is the next one
                self._next = k + 1
            elif (added := self._added) and added[0][1] == i:
                heappop(added)
        else:
            self._never.discard(i)

    def __iter__(self) -> Iterator[Entry]:
        """All times and their clients, by client."""
        for i in np.flatnonzero(self._array < inf).tolist():
            yield self._times[i], i
        yield from ((inf, i) for i in sorted(self._never))
