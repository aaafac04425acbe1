"""The one client loop: a rank hosts one client or thousands, and works off their messages in order of arrival."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import nan, sqrt
from typing import Any, Protocol

import numpy as np

from mpifl.algorithms.base import Algorithm, Message, Objective, Update, check_vectors
from mpifl.links.memory import HOST, Memory

MOST, ROOM = 64, 8 << 20  # clients that compute together, and bytes of one vector of each: they are in memory at once


class Worker:
    """The clients of one rank: their states and objectives, by client number."""

    def __init__(
        self,
        algorithm: Algorithm,
        x0: np.ndarray,
        objectives: Mapping[int, Objective],
        together: Callable[[Sequence[Callable[[], Any]]], list[Any]] | None = None,
        memory: Memory = HOST,
    ) -> None:
        """together: computes several clients' updates in one go, where that is faster than one after another.
        memory: where the vectors of messages, states and updates live."""
        self._algorithm, self._objectives, self._together, self.memory = algorithm, objectives, together, memory
        self._x0 = x0 = memory.inside(x0)
        self.meanwhile: Callable[[], None] = lambda: None  # called now and then while a device computes
        self.most = max(8, min(MOST, ROOM // x0.nbytes)) if together else 1  # messages to wait for each other
        self.states = {i: algorithm.init_client(x0, i) for i in objectives}

    def train_all(self, messages: Sequence[tuple[int, Message]]) -> list[Update]:
        """The answers of several clients, at most `most`, to a message each. Raises as `train`."""
        if self._together is None or len(messages) == 1:
            return [self.train(i, message) for i, message in messages]
        updates: list[Update] = self._together([partial(self.train, i, message) for i, message in messages])
        return [u._replace(compute=u.compute / len(messages)) for u in updates]  # each took as long as all

    def train(self, i: int, message: Message) -> Update:
        """Client i's answer to a message. Raises ValueError where it is none that fits on the wire."""
        begin = time.perf_counter()
        getattr(self._objectives[i], "begin", lambda round: None)(message.round)
        update = self._algorithm.train(self.states[i], message, self._objectives[i])
        self.memory.wait(self.meanwhile)
        check_vectors(f"client {i} sends", update.vectors, self._x0)
        if len(update.vectors) > self._algorithm.vectors_up:
            raise ValueError(f"client {i} sends {len(update.vectors)} vectors, more than vectors_up")
        compute = time.perf_counter() - begin
        norm = sqrt(sum(float(v @ v) for v in update.vectors))
        accuracy = nan
        if self._algorithm.personal_models:
            accuracy = self._objectives[i].accuracy(self._algorithm.personal(self.states[i]))
        busy = time.perf_counter() - begin
        return update._replace(
            version=message.version, round=message.round, norm=norm, compute=compute, busy=busy, accuracy=accuracy
        )


class ClientEnd(Protocol):
    """The clients' end of a link."""

    def messages(self, most: int) -> Iterator[list[tuple[int, Message, float]]]:
        """(client, message, delay in seconds) of those that are there, at most so many, until the run ends."""

    def reply(self, i: int, update: Update, delay: float) -> None:
        """Sends client i's update once `delay` seconds have passed since its message came."""

    def progress(self) -> None:
        """To be called while clients compute, if their device leaves the time: moves messages on, without waiting."""


def work(worker: Worker, end: ClientEnd) -> None:
    """Serves a rank's clients until the server ends the run."""
    worker.meanwhile = end.progress
    for group in end.messages(worker.most):
        updates = worker.train_all([(i, message) for i, message, _ in group])
        for (i, _, delay), update in zip(group, updates):
            end.reply(i, update, delay)
