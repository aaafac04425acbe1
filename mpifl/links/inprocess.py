"""The in-process link: all clients live in the server's process and compute when a message is sent to them."""

from __future__ import annotations

import heapq
import time

from mpifl.algorithms.base import Message, Update
from mpifl.work import Worker


class InProcess:
    """A link without a wire."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._ready: dict[int, Update] = {}
        self._due: list[tuple[float, int]] = []  # (perf_counter, client) until which an update is held back

    def send(self, i: int, message: Message, delay: float) -> None:
        begin = time.perf_counter()
        self._ready[i] = self._worker.train(i, message)
        heapq.heappush(self._due, (begin + delay, i))

    def take(self, i: int) -> Update:
        self._due.clear()  # a clock that takes by client keeps the times itself
        return self._ready.pop(i)

    def any(self, timeout: float) -> tuple[int, Update] | None:
        end = time.perf_counter() + timeout
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
        dropped = len(self._ready)
        self._ready.clear()
        self._due.clear()
        return dropped
