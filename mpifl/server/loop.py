"""The one server loop, for every link, clock and algorithm. Versions and staleness are counted here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from mpifl.algorithms.base import Algorithm, Clients, State, Vector, check_vectors
from mpifl.algorithms.common.participation import Cohort
from mpifl.config.faults import Faults
from mpifl.scheduling.clocks import Link
from mpifl.scheduling.schedule import Event
from mpifl.server.failures import ClientFailures
from mpifl.transport.frames import HEAD


class Schedule(Protocol):
    """A plan made by policies, or an earlier run's record (`mpifl.scheduling.schedule`)."""

    recorded: bool
    round_size: int
    save_now: bool

    def sent(self, i: int, round: int, work: int = 1) -> float: ...

    def forget(self, i: int) -> None: ...

    def events(self, link: Link) -> Iterator[Event]: ...


class Recorder(Protocol):
    """What is told of every update, aggregation and event (`mpifl.storage.RunWriter`)."""

    def update(
        self, time: float, client: int, version: int, staleness: int, local_steps: int, bytes: int, norm: float,
        bytes_down: int, compute: float, exchange: float,
    ) -> None: ...  # fmt: skip

    def aggregation(self, time: float, updates: int) -> None: ...

    def event(
        self, time: float, kind: str, client: int = -1, text: str = "", updates: int = -1, version: int = -1
    ) -> None: ...

    def state(self, client: int, state: str) -> None: ...


class Checkpointer(Protocol):
    """Saves the run, and keeps what is needed to move clients to other ranks (`mpifl.server.checkpointer`)."""

    busy: bool  # `poll` has something to look at

    def cut(self, time: float, loop: ServerLoop) -> None:
        """Saves the run as it is now, and goes on; called where nothing is half done."""

    def poll(self, time: float, loop: ServerLoop) -> None:
        """Moves on what was begun, without waiting."""

    def consumed(self, i: int, vectors: tuple[Vector, ...]) -> None:
        """The server has taken in an update of client i."""

    def rehost(self, i: int, time: float, loop: ServerLoop) -> str:
        """Has another rank host client i; what is to be said of it, or "" where there is none that can."""


# (time, updates, version, model, (n,) the clients' accuracies or None) -> the run is to end
Evaluate = Callable[[float, int, int, Vector, np.ndarray | None], bool]


class ServerLoop:
    """The server of a run, from its state at the first message to the last event; changes `server`.

    Each update is consumed exactly once. `evaluate` is called at every evaluation and says whether the run is to end.
    `saved` and `load` are what a checkpoint keeps: with what an earlier run saved, the loop goes on from there.
    """

    def __init__(
        self, algorithm: Algorithm, server: State, clients: Clients, link: Link, schedule: Schedule, record: Recorder,
        evaluate: Evaluate, seed: int, faults: Faults = Faults(), keeper: Checkpointer | None = None,  # noqa: B008 - frozen
    ) -> None:  # fmt: skip
        self.algorithm, self.server, self.schedule, self.link = algorithm, server, schedule, link
        self.record, self.keeper, self._evaluate = record, keeper, evaluate
        self._x0 = server.x
        self.cohort: Cohort | None = algorithm.rounds(clients, seed)
        self._answers, self._n = algorithm.answers(), clients.n
        self.losses = ClientFailures(self, faults, clients.n)
        self.version = self.updates = 0
        self.rounds = [0] * clients.n  # messages that each client has been sent
        self.down = [0] * clients.n  # bytes of the last one
        self.out: dict[int, float] = {}  # client that has not answered -> until when (perf_counter) it need not
        self.waiting: list[int] = []  # clients to be answered at the next aggregation
        self._resumed = False
        personal = algorithm.personal_models
        self.accuracies = np.full(clients.n, np.nan) if personal else None  # as the clients last told

    # -- what a checkpoint keeps ---------------------------------------------------------------------------------------
    COUNTS = ("version", "updates", "rounds", "down", "waiting")

    def saved(self) -> dict[str, Any]:
        """JSON-able; the server's state is apart."""
        known = None if self.accuracies is None else self.accuracies.tolist()
        counts = {name: getattr(self, name) for name in self.COUNTS}
        now = time.perf_counter()
        out = [(i, max(0.0, until - now)) for i, until in self.out.items()]
        return counts | {"out": out, "accuracies": known, **self.losses.saved()}

    def load(self, saved: dict[str, Any]) -> None:
        for name in self.COUNTS:
            setattr(self, name, saved[name])
        now = time.perf_counter()
        self.out = {i: now + left for i, left in saved["out"]}
        self.accuracies = None if saved["accuracies"] is None else np.array(saved["accuracies"], float)
        self.losses.load(saved)
        self._resumed = True

    # -- messages ------------------------------------------------------------------------------------------------------
    def send(self, members: list[int]) -> None:
        for i in members:
            message = self.algorithm.message(self.server, i)
            message = message._replace(version=self.version, round=self.rounds[i])
            check_vectors(f"client {i} is sent", message.vectors, self._x0)
            delay = self.schedule.sent(i, self.rounds[i], message.work)
            self.rounds[i] += 1
            self.down[i] = size(message.vectors)
            self.out[i] = time.perf_counter() + delay if self.losses.faults.patience else 0.0
            self.link.send(i, message, delay)

    def look(self, at: float) -> bool:
        known = None if self.accuracies is None else self.accuracies.copy()
        return self._evaluate(at, self.updates, self.version, self.algorithm.model(self.server), known)

    def begin(self) -> None:
        """The run's first messages, or those of a round."""
        if self.cohort is None:
            self.send([i for i in range(self._n) if i not in self.losses.lost])
            return
        lost = self.losses.lost
        members = self.cohort.sample(self.version, frozenset(lost)) if lost else self.cohort.sample(self.version)
        self.algorithm.begin(self.server, members)
        unique = list(dict.fromkeys(members))
        self.schedule.round_size = len(unique)
        self.send(unique)

    # -- events --------------------------------------------------------------------------------------------------------
    def run(self, stopped: Callable[[], bool] = lambda: False, interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Whether the run came to its end, and was not interrupted before.

        Both are asked after every event; one that is interrupted is saved if there is a keeper. Raises RunFailed where
        nobody is left to go on with, or the link does.
        """
        if not self._resumed:
            self.begin()
        for event in self.schedule.events(self.link):
            if event.kind == "update":
                self._update(event)
            elif event.kind == "aggregate":
                self._aggregate(event.time)
            elif event.kind == "evaluate":
                if self.look(event.time):
                    return True
            elif event.kind == "refused":
                self.losses.refuse(event)
            elif event.kind == "lost":
                self.losses.lose(event.time, event.client, event.text)
            elif event.kind == "checkpoint" and self.keeper:
                self.keeper.cut(event.time, self)
                if interrupted():
                    self.look(event.time)
                    return False
            self._watch(event.time)
            broken = interrupted()
            if broken and self.keeper:
                self.schedule.save_now = True  # the next event
            elif broken or stopped():
                if event.kind != "evaluate":
                    self.look(event.time)  # the run's last model
                return not broken
        return True

    def _watch(self, at: float) -> None:
        """Sees to clients that were lost, and to a checkpoint under way."""
        if not self.schedule.recorded:  # which tells of losses itself
            self.losses.watch(at)
        if self.keeper and self.keeper.busy:
            self.keeper.poll(at, self)

    def _update(self, event: Event) -> None:
        i, update = event.client, event.update
        assert update
        staleness = self.version - update.version
        self.algorithm.receive(self.server, i, update, staleness)
        if self.keeper:
            self.keeper.consumed(i, update.vectors)
        up = size(update.vectors)
        self.link.release(i)
        self.updates += 1
        self.losses.answered(i)
        del self.out[i]
        u = update
        self.record.update(
            event.time, i, u.version, staleness, u.local_steps, up, u.norm, self.down[i], u.compute, u.exchange
        )
        if self.accuracies is not None:
            self.accuracies[i] = update.accuracy
        answer = [] if i in self.losses.lost else [i]
        if self._answers == "before":
            self.send(answer)
        elif self._answers == "deferred" and not self.cohort:
            self.waiting += answer
        if event.aggregates:
            self._aggregate(event.time)
        if self._answers == "after":
            self.send(answer)

    def _aggregate(self, at: float) -> None:
        self.algorithm.aggregate(self.server)
        self.version += 1
        self.record.aggregation(at, self.updates)
        if self.cohort:
            self.begin()
        elif self._answers == "deferred":
            waiting, self.waiting = self.waiting, []
            self.send(waiting)


def size(vectors: tuple[Vector, ...]) -> int:
    """Bytes on the wire of a message or an update with these vectors."""
    return 8 * HEAD + sum(v.nbytes for v in vectors)
