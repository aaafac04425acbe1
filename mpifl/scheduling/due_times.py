"""When the updates of many clients are due: the earliest ones are sorted, the others wait in an array until then.

A heap of a million entries has its lower levels outside the processor's caches, and every operation visits them. Here
the next few thousand updates are in a sorted list; the array is searched when that list is used up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import Any

import numpy as np

Entry = tuple[float, int]  # due time (s), client
SORTED = 256  # about how many entries are sorted at once, at least
SHARE = 128  # and at least 1/SHARE of all clients, because a search passes over all
SAMPLED = 64  # times of a sample below the bound that it gives
AHEAD = 128  # clients that are prefetched at once; the data of more would evict other data from the caches


class DueTimes:
    """The due time (s) of each client's update, at most one a client; infinite: it is never due."""

    def __init__(self) -> None:
        self._array = np.empty(0)  # (n,) by client; infinite where there is none
        self._times: Any = self._array.data  # the same memory: single items are read faster
        # Times and clients of the earliest entries. An entry whose client was removed is skipped, here and in `_added`.
        self._sorted: tuple[Any, Any] = np.empty(0).data, np.empty(0, int).data
        self._next, self._count = 0, 0  # the place of the next one in `_sorted`, and how many it has
        self._prefetch: Callable[[np.ndarray], None] | None = None
        self._prefetched: float = inf  # the place in `_sorted` up to which clients are prefetched; infinite: all
        self._added: list[Entry] = []  # a heap: entries added since that come before `_end`
        self._end: Entry = (inf, 0)  # entries from here on are in the array alone
        self._most = 2 * SORTED  # size of the heap beyond which the array is searched again
        self._never: set[int] = set()  # clients whose update is due at infinity
        self._finite = 0  # the number of the others

    def prefetch_by(self, prefetch: Callable[[np.ndarray], None]) -> None:
        """Has `prefetch` called with the numbers (k,) of the clients whose updates are due next, at most AHEAD."""
        self._prefetch = prefetch

    def _prefetch_next(self) -> None:
        clients = np.asarray(self._sorted[1][self._next : self._next + AHEAD])
        self._prefetched = self._next + AHEAD
        assert self._prefetch
        self._array[clients]  # reads their due times
        self._prefetch(clients)

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
                    if k + 1 >= self._prefetched:
                        self._prefetch_next()
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
        if self._prefetch:
            self._prefetch_next()

    def remove(self, i: int) -> None:
        """Removes the due time of client i, if it has one."""
        if i < len(self._times) and self._times[i] < inf:
            self._times[i] = inf
            self._finite -= 1
        else:
            self._never.discard(i)

    def __iter__(self) -> Iterator[Entry]:
        """All times and their clients, by client."""
        for i in np.flatnonzero(self._array < inf).tolist():
            yield self._times[i], i
        yield from ((inf, i) for i in sorted(self._never))
