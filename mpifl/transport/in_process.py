"""The in-process transport: all clients live in the server's process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf

from mpifl.algorithms.base import Message, Update
from mpifl.checkpoint.part import PartStatus
from mpifl.transport.client_end import Delivery, LocalClients
from mpifl.transport.server_end import ServerTransport


class InProcessTransport(ServerTransport):
    """Both ends of a transport in one: messages are passed to the clients in memory.

    Clients compute when the server asks for an update: one, or as many as can compute together. Between two such calls
    the server acts. In a checkpoint they are clients of rank 1.
    """

    def __init__(self, clients: LocalClients, n: int = 0) -> None:
        """n: the number of clients."""
        super().__init__([1] * n, {1})
        self._clients = clients
        clients.link = self
        self._messages: dict[int, Delivery] = {}  # messages in flight, the oldest first
        self._arrived: dict[int, Update] = {}  # updates that have arrived, the oldest first
        self.on_marker: Callable[[int], None] = lambda number: None
        self.on_progress: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None

    @property
    def computing(self) -> Sequence[int]:
        return self._clients.computing

    # -- the server's end ----------------------------------------------------------------------------------------------
    def send(self, i: int, message: Message, delay: float) -> None:
        self._messages[i] = Delivery(i, message, time.perf_counter() + delay)

    def _step(self, first: int | None = None) -> None:
        """Delivers messages to clients that compute together: to `first`, if given, and those with the oldest ones."""
        most, memory = self._clients.max_deliveries, self._clients.memory
        batch = [] if first is None else [self._messages.pop(first)]
        oldest = list(islice(self._messages, most - len(batch)))
        batch += [self._messages.pop(i) for i in oldest]
        if not memory.on_host:
            batch = [
                d._replace(message=d.message.with_vectors(map(memory.from_host, d.message.vectors))) for d in batch
            ]
        self._clients.step(batch)

    def receive_from(self, i: int, timeout: float) -> Update | None:
        if i in self._messages:
            self._step(i)
        if i in self._errors:
            self.client_failures.append((i, self._errors.pop(i)))
        return self._arrived.pop(i, None)

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        end = time.perf_counter() + timeout
        next_release = self._clients.release(time.perf_counter())
        while not (self._arrived or self._errors):
            if self._messages:
                self._step()
            else:
                time.sleep(max(0.0, min(next_release, end) - time.perf_counter()))
            next_release = self._clients.release(now := time.perf_counter())
            if now >= end:
                break
        self.client_failures += self._errors.items()
        self._errors.clear()
        for i in self._arrived:
            return i, self._arrived.pop(i)
        return None

    def release_update(self, i: int) -> None:
        self._clients.last_updates.pop(i, None)  # no checkpoint needs it any more

    def poll(self) -> None:
        self.on_progress()

    def shut_down(self, timeout: float = inf) -> int:
        self.on_stop()
        dropped = len({*self._messages, *self._arrived, *self._errors, *self._clients.held.entries()})
        self._messages.clear()
        self._arrived.clear()
        self._errors.clear()
        return dropped

    # -- the clients' end ----------------------------------------------------------------------------------------------
    def send_update(self, i: int, update: Update) -> None:
        memory = self._clients.memory
        self._arrived[i] = update if memory.on_host else update.with_vectors(map(memory.to_host, update.vectors))

    def send_client_error(self, i: int, text: str) -> None:
        self._errors[i] = text

    def send_part_status(self, status: PartStatus) -> None:
        self.part_statuses.append(status)

    # -- checkpoints and failures --------------------------------------------------------------------------------------
    def send_marker(self, number: int) -> None:
        while self._messages:  # the messages that were sent before the marker
            self._step()
        self.on_marker(number)

    def cancel(self, i: int) -> None:
        self._messages.pop(i, None)
        self._errors.pop(i, None)
        self._arrived.pop(i, None)
        self._clients.held.discard(i)
