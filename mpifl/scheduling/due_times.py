"""When the updates of many clients are due: the earliest one is found in two steps, by the minima of blocks.

A heap of a million entries has its lower levels outside the processor's caches; here finding the earliest reads one
block and the array of the blocks' minima, one item after the other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from math import inf

import numpy as np

BITS = 10
SIZE = 1 << BITS  # clients of a block


class DueTimes:
    """The due time (s) of each client's update, at most one a client; infinite: it is never due."""

    def __init__(self) -> None:
        self._times = array("d")  # by client; infinite where there is none
        self._blocks: list[np.ndarray] = []  # (SIZE,) each, views of `_times`
        self._minima = np.empty(0)  # (blocks,)
        self._first: list[int] = []  # of each block the client of its minimum
        self._changed: set[int] = set()  # blocks whose minimum is to be found anew
        self._never: set[int] = set()  # clients whose update is due at infinity
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, i: int, due: float) -> None:
        """Adds the due time of client i, which has none."""
        if i >= len(self._times):
            self._grow(i + 1)
        self._times[i] = due
        self._changed.add(i >> BITS)
        self._count += 1
        if due == inf:
            self._never.add(i)

    def _grow(self, clients: int) -> None:
        """Makes room for so many clients, and an eighth more: a new array, for one with views cannot grow."""
        count = ((clients + clients // 8) >> BITS) + 1
        self._times = self._times + array("d", [inf]) * (count * SIZE - len(self._times))
        self._blocks = list(np.frombuffer(self._times).reshape(count, SIZE))
        self._minima, self._first = np.full(count, inf), [0] * count
        self._changed.update(range(count))

    def first(self) -> tuple[float, int]:
        """The earliest time and its client, of several the one with the lowest number; infinity and -1: none is due."""
        if not self._count:
            return inf, -1
        if len(self._blocks) == 1:
            i = int(self._blocks[0].argmin())
            due = self._times[i]
        else:
            for number in self._changed:
                self._first[number] = i = number * SIZE + int(self._blocks[number].argmin())
                self._minima[number] = self._times[i]
            self._changed.clear()
            i = self._first[int(self._minima.argmin())]
            due = self._times[i]
        return (due, i) if due < inf else (inf, min(self._never))

    def remove(self, i: int) -> None:
        """Removes the due time of client i, if it has one."""
        if self._never and i in self._never:
            self._never.remove(i)
        elif i < len(self._times) and self._times[i] < inf:
            self._times[i] = inf
            self._changed.add(i >> BITS)
        else:
            return
        self._count -= 1

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """All times and their clients, by client."""
        for number, block in enumerate(self._blocks):
            for place in np.flatnonzero(block < inf).tolist():
                yield block.item(place), number * SIZE + place
        yield from ((inf, i) for i in sorted(self._never))
