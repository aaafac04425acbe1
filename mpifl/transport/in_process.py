"""The in-process transport: all clients live in the server's process."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, Protocol

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.memory import VectorMemory
from mpifl.transport.base import ClientError, PartStatus
from mpifl.transport.message_table import Messages, MessageTable

# Clients with small vectors compute one after the other, the next ones ahead of their time: the code of a client and
# that of the server do not both fit into a processor's fastest caches. The bounds keep the server responsive.
AHEAD = 64  # clients that compute ahead, at most
AHEAD_SECONDS = 0.002  # after which no other begins
AHEAD_BYTES = 1 << 19  # of the vectors of their messages and updates, at most
WORTHWHILE = 4  # clients; where fewer compute ahead, it is tried less and less often


class Trainer(Protocol):
    """Computes the clients' updates (`client.worker.Worker`)."""

    memory: VectorMemory  # where vectors live that clients compute with
    batch_size: int  # maximum number of messages that `train_all` takes

    def train(self, i: int, message: Message) -> Update | ClientError: ...

    def train_all(self, messages: Sequence[tuple[int, Message]]) -> list[Update | ClientError]: ...

    def prefetch(self, clients: Sequence[int]) -> None: ...

    def forget_update(self, i: int) -> None: ...


class InProcessTransport:
    """Both ends of a transport in one (`server_base.ServerTransport`): messages are passed to the trainer in memory.

    Clients compute when an update is asked for: one, and the next ones ahead of their time while that takes little
    time, or as many as can compute together. Between two such calls the server acts. In a checkpoint they are clients
    of rank 1.
    """

    def __init__(
        self, trainer: Trainer, clients: int = 0, messages: MessageTable | None = None
    ) -> None:  # fmt: skip
        """messages: holds the messages that wait, if a clock asks for updates by client; None: they are objects."""
        self._trainer = trainer
        self._on_host = trainer.memory.on_host
        self._one_by_one = trainer.batch_size == 1
        self._messages = Messages() if messages is None else messages
        self._delayed: dict[int, float] = {}  # client -> perf_counter at which its update will be due; else at once
        self._ready: dict[int, Update] = {}
        self._due: list[tuple[float, int]] = []  # (perf_counter, client) until which an update is held back
        self._errors: dict[int, str] = {}  # client -> what it raised, until its update is due
        self._missed = 0  # attempts in a row at which too few clients computed ahead
        self._pause = 0  # attempts that are left out before the next one
        self.client_failures: list[tuple[int, str]] = []  # due errors
        self.rank_of = [1] * clients
        self.live_ranks, self.unresponsive_ranks, self.stuck_ranks = {1}, set[int](), set[int]()
        self.part_statuses: list[PartStatus] = []
        self.signals: list[int] = []
        self.computing: Sequence[int] = ()
        # The clients whose updates will be asked for next, at most so many, if a clock knows them.
        self.next_clients: Callable[[int], Sequence[int]] = lambda most: ()
        self.prefetch: Callable[[Sequence[int]], None] = lambda clients: None  # called before these compute
        self.on_death: Callable[[Mapping[int, int]], None] = lambda hosted: None  # never called
        self.on_marker: Callable[[int], None] = lambda number: None
        self.on_poll: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None

    # -- messages and updates ------------------------------------------------------------------------------------------
    def send(self, i: int, message: Message, delay: float) -> None:
        self._messages[i] = message
        if delay > 0:
            self._delayed[i] = time.perf_counter() + delay

    def _compute(self, clients: list[int]) -> None:
        """Has these clients compute, and holds their updates back until the delays since their messages are over."""
        self.computing = clients
        updates = self._trainer.train_all([(i, self._delivered(self._messages.pop(i))) for i in clients])
        self.computing = ()
        for i, update in zip(clients, updates):
            until = self._delayed.pop(i, 0.0)
            if isinstance(update, ClientError):
                self.send_client_error(i, update.text)
            else:
                self._hold(i, update, until)

    def _delivered(self, message: Message) -> Message:
        """The message as the clients are given it: with vectors that they compute with."""
        if self._on_host:
            return message
        return message.with_vectors(tuple(map(self._trainer.memory.from_host, message.vectors)))

    def _collected(self, update: Update) -> Update:
        """The update as the server is given it: with vectors in host memory."""
        if self._on_host:
            return update
        return update.with_vectors(tuple(map(self._trainer.memory.to_host, update.vectors)))

    def _next_batch(self, first: int | None = None) -> list[int]:
        """Clients that compute together: `first`, if given, and those with the oldest messages."""
        batch = [] if first is None else [first]
        others = (i for i in self._messages if i != first)
        return [
            *batch,
            *islice(others, self._trainer.batch_size - len(batch)),
        ]  # no pass over all: there may be millions

    def _train(self, i: int, message: Message) -> Update | None:
        """Has client i compute; None where it raised."""
        self.computing = (i,)
        update = self._trainer.train(i, message if self._on_host else self._delivered(message))
        self._delayed.pop(i, None)
        self.computing = ()
        if isinstance(update, ClientError):
            self.send_client_error(i, update.text)
            return None
        return update if self._on_host else self._collected(update)

    def _train_ahead(self, vectors: Sequence[np.ndarray], end: float) -> None:
        """Has the clients compute whose updates will be asked for next, until `end` (perf_counter).

        vectors: those of the last message and update; of the next ones they are taken to be as large.
        """
        if self._pause:
            self._pause -= 1
            return
        ready, computed = self._ready, list[int]()
        waiting: Iterable[tuple[int, Message]] = ()
        most = AHEAD_BYTES // max(1, sum([v.nbytes for v in vectors]))
        if time.perf_counter() < end and most >= WORTHWHILE:
            following = dict.fromkeys(self.next_clients(min(most, AHEAD)))  # a clock may name one twice
            clients = [i for i in following if i not in ready]
            self.prefetch(clients)
            self._trainer.prefetch(clients)
            waiting = self._messages.read(clients)
        try:
            for i, message in waiting:
                computed.append(i)
                if update := self._train(i, message):
                    ready[i] = update
                if time.perf_counter() > end:
                    break
        finally:
            self._messages.remove(computed)
        self._missed = 0 if len(computed) >= WORTHWHILE else min(self._missed + 1, 6)
        self._pause = 2**self._missed - 1

    def receive_from(self, i: int, timeout: float = inf) -> Update | None:
        self._due.clear()  # a clock that receives by client keeps the times itself
        if (ready := self._ready.pop(i, None)) is not None:
            return ready
        if self._one_by_one:  # at once, not by way of the updates that are held back
            end = time.perf_counter() + AHEAD_SECONDS
            if (message := self._messages.pop(i, None)) and (update := self._train(i, message)):
                self._train_ahead((*message.vectors, *update.vectors), end)
                return update
        elif i in self._messages:
            self._compute(self._next_batch(i))
            self._due.clear()
        if i in self._errors:
            self.client_failures.append((i, self._errors.pop(i)))
        return self._ready.pop(i, None)

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        if self._one_by_one and not self._due:  # likewise the oldest message, where it has no delay
            for i in self._messages:
                if i not in self._delayed and (update := self._train(i, self._messages.pop(i))):
                    return i, update
                break
        end = time.perf_counter() + timeout
        while self._messages and not (self._due and self._due[0][0] <= time.perf_counter()):
            self._compute(self._next_batch())
            if time.perf_counter() >= end:
                break
        self.client_failures += self._errors.items()
        self._errors.clear()
        due = self._due[0][0] if self._due else inf
        if due > end:
            time.sleep(max(0.0, end - time.perf_counter()))
            return None
        if (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        _, i = heapq.heappop(self._due)
        return i, self._ready.pop(i)

    def keep_update(self, i: int, update: Update) -> Update:
        return update  # in no buffer; the client keeps it too, for checkpoints, until `release_update`

    def waiting(self) -> list[Message]:
        """Messages of which no client has computed the update yet."""
        return list(self._messages.values())

    def release_update(self, i: int) -> None:
        self._trainer.forget_update(i)

    def poll(self) -> None:
        self.on_poll()

    def has_arrived(self, i: int) -> bool:
        """True: a client of this process computes when its update is asked for."""
        return True

    def shut_down(self, code: int, timeout: float = inf) -> int:
        self.on_stop()
        dropped = len(self._ready) + len(self._messages) + len(self._errors)
        for in_flight in (self._messages, self._delayed, self._ready, self._due, self._errors):
            in_flight.clear()
        return dropped

    # -- the clients' end ----------------------------------------------------------------------------------------------
    def resend_update(self, i: int, update: Update, delay: float) -> None:
        """Holds client i's update back for `delay` seconds from now."""
        self._hold(i, update, time.perf_counter() + delay)

    def _hold(self, i: int, update: Update, until: float) -> None:
        """Holds client i's update back until `until` (perf_counter)."""
        self._ready[i] = self._collected(update)
        heapq.heappush(self._due, (until, i))

    def send_client_error(self, i: int, text: str) -> None:
        self._errors[i] = text

    def send_part_status(self, number: int, bytes: int, crc: int, error: str) -> None:
        self.part_statuses.append(PartStatus(1, number, bytes, crc, error))

    def remaining_delays(self) -> dict[int, float]:
        """For how long updates are still held back (s), by client."""
        now = time.perf_counter()
        return {i: max(0.0, when - now) for when, i in self._due}

    # -- checkpoints and failures --------------------------------------------------------------------------------------
    def send_marker(self, number: int) -> None:
        waiting = list(self._messages)
        for k in range(0, len(waiting), self._trainer.batch_size):
            self._compute([i for i in waiting[k : k + self._trainer.batch_size] if i in self._messages])
        self.on_marker(number)

    def unreported_client_errors(self) -> set[int]:
        return {*self._errors, *(i for i, _ in self.client_failures)}

    def cancel(self, i: int) -> None:
        self._messages.pop(i, None)
        self._delayed.pop(i, None)
        self._errors.pop(i, None)
        if self._ready.pop(i, None):
            self._due = [entry for entry in self._due if entry[1] != i]
            heapq.heapify(self._due)

    def abandon_client(self, i: int) -> None:
        """Nothing to do: a client of this process always answers."""

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        """Empty: there is one process."""
        return []

    def rehost(self, i: int, saved: dict[str, Any] | None, consumed: list[np.ndarray]) -> str:
        """Returns "": there is no other rank."""
        return ""
