"""The server loop: one for every transport, clock and algorithm. Counts versions and staleness."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import inf, nan
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from mpifl import algorithms
from mpifl.algorithms.base import Algorithm, Clients, Message, State
from mpifl.algorithms.participation import CohortSampler
from mpifl.checkpoint.snapshot import LoopState, PendingEvaluation
from mpifl.config.job import Faults
from mpifl.config.types import INT64_MAX
from mpifl.errors import RunFailed, place_of
from mpifl.objective import Vector, check_vectors, make_read_only
from mpifl.runfile.tables import LOGGED_BESIDE, TABLES, AggregationRow, EventRow, LoggedRow, UpdateRow
from mpifl.scheduling.schedule import Event, Schedule
from mpifl.server.client_table import ASIDE, LOST, ClientTable
from mpifl.server.failures import Action, ClientFailures, Decision
from mpifl.transport.frames import HEADER_BYTES, as_float64
from mpifl.transport.server_end import ServerTransport

if TYPE_CHECKING:
    from mpifl.runfile.writer import RunWriter


class Checkpointer(Protocol):
    """Takes snapshots, and moves clients to other ranks: `mpifl.server.checkpointer`, which imports this module."""

    busy: bool  # a snapshot is in progress: `poll` is to be called

    def begin(self, time: float) -> None:
        """Begins a snapshot of the run as it is now; called between two events."""

    def finish(self, time: float, patience: float) -> None:
        """Waits for a snapshot in progress."""

    def poll(self, time: float) -> None:
        """Advances a snapshot in progress, without waiting."""

    def consumed(self, i: int, vectors: tuple[Vector, ...]) -> None:
        """Notes that the server has consumed an update of client i."""

    def rehost(self, i: int, time: float) -> str:
        """Moves client i to another rank; returns a clause that names it, or "" where no rank can host it."""


INTEGERS = (int, np.integer)
Ending = Literal["", "stopped", "interrupted"]  # why a run ends now: at a target, or by a signal; "": it goes on
Evaluate = Callable[[PendingEvaluation], None]


class ServerLoop:
    """The server of a run, from its state at the first message to the last event; changes `server`.

    Each update is consumed exactly once. `evaluate` is called at every evaluation. A loop that has loaded the
    `LoopState` of a checkpoint continues from there.
    """

    def __init__(
        self, algorithm: Algorithm, server: State, clients: Clients, transport: ServerTransport, schedule: Schedule,
        recorder: RunWriter, evaluate: Evaluate, seed: int, faults: Faults = Faults(),  # noqa: B008 - frozen
        among_available: bool = False,
    ) -> None:  # fmt: skip
        """server: the state that `Algorithm.init_server` returned; the loop changes it. recorder: takes the run's rows.

        seed: of the draw of each round's members. faults: what becomes of clients that fail.
        among_available: the members of a round are drawn among the clients that are on when it begins.
        """
        self.algorithm, self.server, self.schedule, self.transport = algorithm, server, schedule, transport
        self.recorder, self._evaluate = recorder, evaluate
        self.checkpointer: Checkpointer | None = None  # takes the snapshots that the schedule asks for
        self.observers: Sequence[Callable[[UpdateRow], None]] = ()  # called with the row of every update
        self._x0, self._vector_bytes = server.x, server.x.nbytes
        self._is_own = algorithms.name_of(type(algorithm)) is None  # a class of a user
        server.logged = []  # from now on `State.log` keeps what the method logs
        self.cohort: CohortSampler | None = algorithm.participation(clients, seed)
        self._among_available = among_available
        self._reply = algorithm.reply_policy()
        self._polls = schedule.polls = algorithm.polls
        self.clients = ClientTable(clients.n, algorithm.personal_models)
        self.failures = ClientFailures(faults, self.clients, transport, schedule.clock.on_seconds)
        transport.on_death = self.failures.reports.ranks_died
        self.version = self.updates = 0
        self.time = 0.0  # s of the run's clock, when the last update was consumed
        self.evaluated = 0.0  # s of the run's clock, when the last model was evaluated
        self._resumed = False

    # -- checkpoints ---------------------------------------------------------------------------------------------------
    def save(self) -> LoopState:
        """The state between two events, that `load` restores."""
        return LoopState(self.version, self.updates, self.clients.save(time.perf_counter()), self.time)

    def load(self, saved: LoopState) -> None:
        """Restores a state; `run` then continues from there."""
        self.version, self.updates, self.time = saved.version, saved.updates, saved.time
        self.clients.load(saved.clients, time.perf_counter())
        self._resumed = True

    # -- messages ------------------------------------------------------------------------------------------------------
    def send(self, members: Iterable[int]) -> None:
        """Sends each of these clients its next message."""
        clients = self.clients
        for i in members:
            message = self._next_message(i)
            delay = self.schedule.clock.contact_time(i, message.round, message.work)
            self.transport.send(i, message, delay)
            clients.rounds[i] += 1
            clients.bytes_down[i] = self._frame_bytes(message.vectors)
            clients.in_flight[i] = time.perf_counter() + delay

    def _next_message(self, i: int) -> Message:
        """The algorithm's message to client i, with version and round, as MPI sends it, in one process as well.

        Raises ValueError where it cannot be sent.
        """
        message = self.algorithm.message(self.server, i)
        try:
            check_vectors("is sent", message.vectors, self._x0)
            make_read_only(message.vectors)
            if len(message.vectors) > (most := self.algorithm.vectors_down):
                raise ValueError(f"is sent {len(message.vectors)} vectors, more than vectors_down ({most})")
            numbers, work = as_float64("is sent", message.numbers), message.work
            if not isinstance(work, INTEGERS) or not 0 <= work <= INT64_MAX:
                raise ValueError(f"is sent work={work!r}, not an integer from 0 to 2^63 - 1")
        except ValueError as error:
            raise ValueError(f"client {i} {error}; {place_of(type(self.algorithm), 'message')}") from None
        return Message(tuple(message.vectors), numbers, int(work), version=self.version, round=self.clients.rounds[i])

    def _frame_bytes(self, vectors: Sequence[Vector]) -> int:
        """The bytes of a message or an update with these vectors."""
        return HEADER_BYTES + len(vectors) * self._vector_bytes

    def evaluate(self, time: float, late_by: float = 0.0) -> None:
        """Evaluates the present model, `late_by` seconds after that was due."""
        self.evaluated = time
        accuracies = None if self.clients.accuracies is None else self.clients.accuracies.copy()
        model = self.algorithm.model(self.server)
        self._evaluate(PendingEvaluation(time, self.updates, self.version, model, accuracies, late_by))

    def start_round(self, time: float = 0.0) -> None:
        """Sends the messages of a round that begins at `time`; without rounds, the run's first messages."""
        inactive = self.clients.inactive
        if self.cohort is None:
            self.send([i for i in range(self.clients.n) if i not in inactive])
            return
        timeline = self.schedule.clock.timeline if self._among_available else None
        members = self.cohort.sample(self.version, inactive, timeline.off(time, inactive) if timeline else ())
        self.algorithm.begin_round(self.server, members)
        unique = list(dict.fromkeys(members))
        if self._polls and (progress := self.schedule.progress):
            rounds = self.clients.rounds
            self.algorithm.on_poll(
                self.server, unique, lambda i, since, most: progress(i, rounds[i], since, time, most)
            )
        self.schedule.round_size = len(unique)
        self.send(unique)

    def _end_round(self, time: float) -> None:
        """Starts the next round, at once or when the algorithm's alarm says."""
        if self._polls:
            self.algorithm.end_round(self.server, time)
        else:
            self.start_round(time)

    # -- events --------------------------------------------------------------------------------------------------------
    def run(self, ending: Callable[[], Ending] = lambda: "") -> bool:
        """Processes events until the run ends; returns False if it was interrupted.

        `ending` is called after every event, and once more after a snapshot. Once it has returned a reason, it returns
        the same one at every later call. An interrupted run takes a checkpoint if it has a checkpointer.
        Raises RunFailed where no client is left, or the transport fails.
        """
        if not (self._resumed or self._polls):
            self.start_round()
        checkpointer = self.checkpointer
        self.schedule.alarm = self.algorithm.alarm(self.server)
        for event in self.schedule.events(self.transport):
            kind = event.kind
            if kind == "update":
                self._update(event)
            elif kind == "aggregate":
                self.algorithm.on_alarm(self.server, event.time)
                self._aggregate(event.time)
            elif kind == "poll":
                self.start_round(event.time)
            elif kind == "evaluate":
                self.evaluate(event.time, event.late_by)
            elif kind == "idle":
                self.failures.report_waiting(self.updates + self.failures.refusals)
            elif kind == "refused":
                self._refuse(event)
            elif kind == "lost":
                self._lose(event.time, event.client, LOST, event.text)
            elif kind == "checkpoint" and checkpointer:
                if event.ends or ending() == "stopped":  # a signal leaves no time for the one in progress
                    checkpointer.finish(event.time, self.failures.faults.patience or inf)
                checkpointer.begin(event.time)
                if end := ending():
                    if end == "interrupted" or self.evaluated < event.time:
                        self.evaluate(event.time)
                    return end == "stopped"
            self._after_event(event.time)
            self.schedule.alarm = self.algorithm.alarm(self.server)
            if end := ending():
                if checkpointer and (end == "interrupted" or self.schedule.checkpoint_end):
                    self.schedule.checkpoint_requested = True  # the next event
                    continue
                if kind != "evaluate":
                    self.evaluate(event.time)  # the run's last model
                return end == "stopped"
        return True

    def _update(self, event: Event) -> None:
        i, update = event.client, event.update
        assert update
        clients, reply, staleness = self.clients, self._reply, self.version - update.version
        if self._is_own:  # it may keep the vectors or change them; receive buffers are used again
            update = update.with_vectors(v.copy() for v in update.vectors)
        self.algorithm.receive(self.server, i, update, staleness)
        aggregates = self.schedule.aggregates(self.algorithm.ready(self.server))
        if self.checkpointer:
            self.checkpointer.consumed(i, update.vectors)
        clients.in_flight[i] = nan
        row = UpdateRow(
            time=event.time, client=i, version=update.version, staleness=staleness, local_steps=update.local_steps,
            bytes=self._frame_bytes(update.vectors), norm=update.norm, bytes_down=clients.bytes_down[i],
            compute=update.compute, exchange=update.exchange, waited=update.waited,
        )  # fmt: skip
        answer = () if i in clients.inactive else (i,)
        try:
            if reply == "before":  # the answer leaves first: the client computes meanwhile
                self.send(answer)
        finally:  # what was consumed is recorded, also where the next message fails
            self.transport.release_update(i)
            self.updates += 1
            self.time = event.time
            self.recorder.append(row)
            if self.server.logged:
                self._record_logged(self.updates - 1, -1)
            for observe in self.observers:
                observe(row)
        clients.refused[i] = clients.moved[i] = 0
        if clients.accuracies is not None:
            clients.accuracies[i] = update.accuracy
        if deferred := reply == "deferred" and not self.cohort:
            clients.waiting += answer
        if aggregates:
            self._aggregate(event.time)
        elif deferred:
            self._answer(aggregated=False)
        if reply == "after":
            self.send(answer)

    def _aggregate(self, time: float) -> None:
        self.algorithm.aggregate(self.server)
        self.version += 1
        self.recorder.append(AggregationRow(time, self.updates))
        if self.server.logged:
            self._record_logged(-1, self.version - 1)
        if self.cohort:
            self._end_round(time)
        elif self._reply == "deferred":
            self._answer(aggregated=True)

    def _record_logged(self, update: int, aggregation: int) -> None:
        """Records the numbers that the method has logged. Raises ValueError for the name of a column."""
        for name, value in self.server.logged:
            if any(name in TABLES[table].columns for table in LOGGED_BESIDE):
                raise ValueError(f"{name} is logged, the name of a column of the run file; choose another name")
            self.recorder.append(LoggedRow(update, aggregation, name, value))
        self.server.logged.clear()

    def _answer(self, aggregated: bool) -> None:
        """Answers those of the waiting clients that the algorithm names."""
        waiting = self.clients.waiting
        if now := self.algorithm.answers(self.server, waiting, aggregated):
            self.clients.waiting = [i for i in waiting if i not in now] if len(now) < len(waiting) else []
            self.send(now)

    # -- failures ------------------------------------------------------------------------------------------------------
    def _after_event(self, time: float) -> None:
        """Acts on client failures, and advances a checkpoint in progress."""
        if not self.schedule.is_replay:  # client failures are events of a replay
            if failures := self.transport.client_failures:
                handled = [*failures]
                failures.clear()
                for i, reason in handled:
                    self.client_failed(time, i, reason)
            for decision in self.failures.decide_silent():
                self._apply(time, decision)
        if self.checkpointer and self.checkpointer.busy:
            self.checkpointer.poll(time)

    def client_failed(self, time: float, i: int, reason: str) -> None:
        """Handles a failure of client i on its rank, by the policy `faults`. Raises RunFailed where the run ends."""
        if i not in self.clients.inactive:
            self._apply(time, self.failures.decide_failed(i, reason))

    def _apply(self, time: float, decision: Decision) -> None:
        i, reason = decision.client, decision.reason
        match decision.action:
            case Action.WAIT:
                self.clients.in_flight[i] = decision.since
            case Action.ABANDON:
                self.transport.abandon_client(i)
            case Action.RESEND:
                self.send([i])
            case Action.MOVE:
                self._move(time, i, reason)
            case Action.LOSE:
                self._lose(time, i, LOST, reason)
            case Action.SET_ASIDE:
                self._lose(time, i, ASIDE, reason)
            case Action.FAIL:
                raise RunFailed(reason)

    def _refuse(self, event: Event) -> None:
        """Records an update that its client refused to send, and answers the client or sets it aside."""
        i, update = event.client, event.update
        assert update
        self.transport.release_update(i)
        self.clients.refused[i] += 1
        self._record_event(event.time, "refused", i, update.refused)
        self.failures.count_refusal(i, update.refused)
        if i not in self.clients.inactive:
            self._apply(event.time, self.failures.decide_refused(i, update.refused))

    def _lose(self, time: float, i: int, state: str, reason: str) -> None:
        """Continues without client i; what it has sent remains. Raises RunFailed where no client is left."""
        if i in self.clients.inactive:
            return
        in_flight = self.clients.deactivate(i, state)
        self.recorder.set_client_state(i, state)
        self._record_event(time, state, i, reason)
        self.failures.report_lost(i, state, reason)
        if len(self.clients.inactive) == self.clients.n:
            raise RunFailed(f"all clients are lost; the last, client {i}: {reason}")
        self.schedule.clock.cancel(i)
        self.transport.cancel(i)
        self.algorithm.forget_client(self.server, i)
        if not self.cohort:
            self.algorithm.on_client_lost(self.server, i)
        elif in_flight:
            self.schedule.round_size -= 1
            if self.schedule.round_size:
                self.algorithm.on_client_lost(self.server, i)
            else:
                self._end_round(time)  # no member of the round is left

    def _move(self, time: float, i: int, reason: str) -> None:
        """Moves client i to another rank, where it gets a new message; loses it where no rank can host it."""
        self.clients.moved[i] += 1
        destination = self.checkpointer.rehost(i, time) if self.checkpointer else ""
        if not destination:
            self._lose(time, i, LOST, reason)
            return
        self._record_event(time, "rehosted", i, f"{destination}: {reason}")
        self.algorithm.on_client_rollback(self.server, i)
        if self.clients.take_in_flight(i):
            self.schedule.clock.cancel(i)
            self.send([i])

    def _record_event(self, time: float, kind: str, i: int, text: str) -> None:
        self.recorder.append(EventRow(time, kind, i, text, self.updates, self.version))
