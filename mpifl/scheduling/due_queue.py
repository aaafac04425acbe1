"""What becomes due at a time of its own, at most one item for each client."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

Item = TypeVar("Item")


class DueQueue(Generic[Item]):
    """At most one item for each client, with the time (s) at which it is due; an infinite time is never reached."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[float, Item]] = {}
        self._heap: list[tuple[float, int]] = []  # an entry is stale if its client has another time now, or none

    def add(self, i: int, due: float, item: Item) -> None:
        """Adds the item of client i, which has none."""
        self._items[i] = due, item
        heappush(self._heap, (due, i))

    def first(self) -> tuple[float, int]:
        """The earliest time and its client, of equal times the lowest client; (inf, -1) if the queue is empty."""
        heap, items = self._heap, self._items
        while heap:
            due, i = heap[0]
            if i in items and items[i][0] == due:
                return due, i
            heappop(heap)
        return inf, -1

    def pop_due(self, now: float) -> tuple[int, Item] | None:
        """Removes and returns the first client and its item if that is due at `now` or before; else None."""
        due, i = self.first()
        return None if i < 0 or due > now else (i, self.pop(i))

    def pop(self, i: int) -> Item:
        """Removes and returns the item of client i. Raises KeyError if it has none."""
        _, item = self._items.pop(i)
        if self._heap[0][1] == i:  # usually the client is the first
            heappop(self._heap)
        return item

    def discard(self, i: int) -> None:
        """Removes the item of client i if it has one."""
        self._items.pop(i, None)

    def entries(self) -> Mapping[int, tuple[float, Item]]:
        """The time of each client's item, and the item."""
        return self._items

    def __len__(self) -> int:
        return len(self._items)
