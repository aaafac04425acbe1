"""The in-process link: all clients live in the server's process."""

from __future__ import annotations

import heapq
import time

from mpifl.algorithms.base import Message, Update
from mpifl.work import Worker


class InProcess:
    """A link without a wire. Clients compute when they are sent a message, or where they can do so together, when an
    update is asked for."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._asked: dict[int, tuple[Message, float, float]] = {}  # client -> message, delay (s), when it was sent
        self._ready: dict[int, Update] = {}
        self._due: list[tuple[float, int]] = []  # (perf_counter, client) until which an update is held back

    def send(self, i: int, message: Message, delay: float) -> None:
        self._asked[i] = message, delay, time.perf_counter()
        if self._worker.most == 1:
            self._compute([i])

    def _compute(self, clients: list[int]) -> None:
        """Has these clients compute, and holds their updates back until the delays since their messages are over."""
        asked = [(i, *self._asked.pop(i)) for i in clients]
        memory = self._worker.memory
        updates = self._worker.train_all(
            [(i, message._replace(vectors=tuple(map(memory.inside, message.vectors)))) for i, message, _, _ in asked]
        )
        for (i, _, delay, sent), update in zip(asked, updates):
            self._ready[i] = update._replace(vectors=tuple(map(memory.outside, update.vectors)))
            heapq.heappush(self._due, (sent + delay, i))

    def _next(self, first: int | None = None) -> list[int]:
        """Clients that compute together: `first`, if given, and those that were asked before others."""
        order = [i for i in self._asked if i != first]
        return ([] if first is None else [first]) + order[: self._worker.most - (first is not None)]

    def take(self, i: int) -> Update:
        if i not in self._ready:
            self._compute(self._next(i))
        self._due.clear()  # a clock that takes by client keeps the times itself
        return self._ready.pop(i)

    def any(self, timeout: float) -> tuple[int, Update] | None:
        end = time.perf_counter() + timeout
        while self._asked:
            self._compute(self._next())
        due = self._due[0][0] if self._due else float("inf")
        if due > end:
            time.sleep(max(0.0, end - time.perf_counter()))
            return None
        time.sleep(max(0.0, due - time.perf_counter()))
        _, i = heapq.heappop(self._due)
        return i, self._ready.pop(i)

    def release(self, i: int) -> None:
        """Nothing to do: the update was made for this one use."""

    def finish(self, code: int) -> int:
        dropped = len(self._ready) + len(self._asked)
        for held in (self._asked, self._ready, self._due):
            held.clear()
        return dropped
