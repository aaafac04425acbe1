"""The in-process link: all clients live in the server's process."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from math import inf

from mpifl.algorithms.base import Message, Update
from mpifl.client.worker import Failed, Worker


class InProcess:
    """A link without a wire. Clients compute when they are sent a message, or where they can do so together, when an
    update is asked for."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._asked: dict[int, tuple[Message, float, float]] = {}  # client -> message, delay (s), when it was sent
        self._ready: dict[int, Update] = {}
        self._due: list[tuple[float, int]] = []  # (perf_counter, client) until which an update is held back
        self._failed: dict[int, str] = {}  # clients that raised, and what, until `pop_client_failures` returns them
        self._missed: list[tuple[int, str]] = []
        self.on_marker: Callable[[int], None] = lambda number: None  # called to have the clients saved

    def send(self, i: int, message: Message, delay: float) -> None:
        self._asked[i] = message, delay, time.perf_counter()
        if self.worker.most == 1:
            self._compute([i])

    def resume(self, i: int, update: Update, held: float) -> None:
        """Client i's update is under way already, held back for so long (s)."""
        self._ready[i] = update._replace(vectors=tuple(map(self.worker.memory.outside, update.vectors)))
        heapq.heappush(self._due, (time.perf_counter() + held, i))

    def send_client_error(self, i: int, text: str) -> None:
        """Client i raised."""
        self._failed[i] = text

    def _compute(self, clients: list[int]) -> None:
        """Has these clients compute, and holds their updates back until the delays since their messages are over."""
        asked = [(i, *self._asked.pop(i)) for i in clients]
        memory = self.worker.memory
        updates = self.worker.train_all(
            [(i, message._replace(vectors=tuple(map(memory.inside, message.vectors)))) for i, message, _, _ in asked]
        )
        for (i, _, delay, sent), update in zip(asked, updates):
            if isinstance(update, Failed):
                self.send_client_error(i, update.text)
            else:
                self.resume(i, update, sent + delay - time.perf_counter())

    def _next(self, first: int | None = None) -> list[int]:
        """Clients that compute together: `first`, if given, and those that were asked before others."""
        order = [i for i in self._asked if i != first]
        return ([] if first is None else [first]) + order[: self.worker.most - (first is not None)]

    def receive_from(self, i: int, timeout: float = inf) -> Update | None:
        if i in self._asked:
            self._compute(self._next(i))
        self._due.clear()  # a clock that takes by client keeps the times itself
        if i in self._failed:
            self._miss(i)
        return self._ready.pop(i, None)

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        end = time.perf_counter() + timeout
        while self._asked:
            self._compute(self._next())
        for i in list(self._failed):
            self._miss(i)
        due = self._due[0][0] if self._due else inf
        if due > end:
            time.sleep(max(0.0, end - time.perf_counter()))
            return None
        time.sleep(max(0.0, due - time.perf_counter()))
        _, i = heapq.heappop(self._due)
        return i, self._ready.pop(i)

    def release_update(self, i: int) -> None:
        """Nothing to do: the update was made for this one use."""

    # -- what a checkpoint keeps, and what goes wrong ------------------------------------------------------------------
    def send_marker(self, number: int) -> None:
        """Has the clients saved, once all that were asked have computed."""
        while self._asked:
            self._compute(self._next())
        self.on_marker(number)

    def holding(self) -> dict[int, float]:
        """How long updates are held back still (s), by client."""
        now = time.perf_counter()
        return {i: max(0.0, when - now) for when, i in self._due}

    def poll(self) -> None:
        """Nothing comes of itself."""

    def unreported_client_errors(self) -> set[int]:
        return {*self._failed, *(i for i, _ in self._missed)}

    def _miss(self, i: int) -> None:
        text = self._failed.pop(i)
        self._missed.append((i, text))

    def pop_client_failures(self) -> list[tuple[int, str]]:
        missed, self._missed = self._missed, []
        return missed

    def has_arrived(self, i: int) -> bool:
        """A client of this process computes when it is its turn."""
        return True

    def abandon_client(self, i: int) -> None:
        """Nothing to do: a client of this process always answers."""

    def shut_down(self, code: int, timeout: float = inf) -> int:
        dropped = len(self._ready) + len(self._asked)
        for held in (self._asked, self._ready, self._due):
            held.clear()
        return dropped
