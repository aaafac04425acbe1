"""When the updates of many clients are due: the earliest one is found in two steps, by the minima of blocks.

A heap of a million entries has its lower levels outside the processor's caches; here finding the earliest reads one
block and the array of the blocks' minima, one item after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

BITS = 10
SIZE, MASK = 1 << BITS, (1 << BITS) - 1  # clients of a block


class DueTimes:
    """The due time (s) of each client's update, at most one a client; infinite: it is never due."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []  # (SIZE,) each; infinite where there is none
        self._minima = np.empty(0)  # (blocks,)
        self._first: list[int] = []  # of each block the index of its minimum
        self._changed: set[int] = set()  # blocks whose minimum is to be found anew
        self._never: set[int] = set()  # clients whose update is due at infinity
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, i: int, due: float) -> None:
        """Adds the due time of client i, which has none."""
        number = i >> BITS
        while number >= len(self._blocks):
            self._blocks.append(np.full(SIZE, inf))
            self._minima = np.append(self._minima, inf)
            self._first.append(0)
        self._blocks[number][i & MASK] = due
        self._changed.add(number)
        self._count += 1
        if due == inf:
            self._never.add(i)

    def first(self) -> tuple[float, int]:
        """The earliest time and its client, of several the one with the lowest number; infinity and -1: none is due."""
        if not self._count:
            return inf, -1
        if len(self._blocks) == 1:
            block = self._blocks[0]
            i = int(block.argmin())
            due = block.item(i)
            return (due, i) if due < inf else (inf, min(self._never))
        if self._changed:
            for number in self._changed:
                block = self._blocks[number]
                self._first[number] = place = int(block.argmin())
                self._minima[number] = block[place]
            self._changed.clear()
        number = int(self._minima.argmin())
        due = self._minima.item(number)
        return (due, number * SIZE + self._first[number]) if due < inf else (inf, min(self._never))

    def remove(self, i: int) -> None:
        """Removes the due time of client i, if it has one."""
        number, place = i >> BITS, i & MASK
        if self._never and i in self._never:
            self._never.remove(i)
        elif number < len(self._blocks) and self._blocks[number].item(place) < inf:
            self._blocks[number][place] = inf
            self._changed.add(number)
        else:
            return
        self._count -= 1

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """All times and their clients, by client."""
        for number, block in enumerate(self._blocks):
            for place in np.flatnonzero(block < inf).tolist():
                yield block.item(place), number * SIZE + place
        yield from ((inf, i) for i in sorted(self._never))
