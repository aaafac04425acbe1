"""The live schedule: the order of server events that the clock, the trigger and the stop rule decide.

real     updates in order of completion; a client holds its update back until its drawn contact time is over. Every
         event has the time at which it happens; what is overdue happens late, once.
virtual  an update is due at the time of its message + the drawn contact time; ties go to the lower client.
         Deterministic, whatever computes the updates and however long that takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import inf, isnan, nan, nextafter
from typing import NamedTuple, Protocol

from mpifl.algorithms.base import Update
from mpifl.algorithms.participation import Trigger
from mpifl.checkpoint.snapshot import ClockState, ScheduleState
from mpifl.errors import RunFailed
from mpifl.scheduling.delays import ContactTimes, SplitTimes
from mpifl.scheduling.due_queue import DueQueue
from mpifl.scheduling.polls import LocalProgress
from mpifl.scheduling.schedule import Event, UpdateSource
from mpifl.scheduling.timeline import Timeline

STALLED = (
    "no client with a message is on again (clock.availability): the run cannot continue; give stop.time, "
    "after: repeat, or cohort_from: available"
)
POLL_INTERVAL = 0.2  # s of real time that a clock waits at most, so that the server can handle signals and failures


class Clock(Protocol):
    """Decides the order in which updates are consumed, and what time it is."""

    time: float  # s since start
    waited: float  # s that the message of the last update waited until the client was on
    deterministic: bool
    timed_out: bool  # `next_update` returned None before the deadline, for the server to poll

    @property
    def has_in_flight(self) -> bool:
        """Whether any client has been sent a message whose update is not consumed."""

    @property
    def is_stalled(self) -> bool:
        """Whether updates are in flight and none of their clients is on again."""

    @property
    def held(self) -> int:
        """Updates that have arrived and wait until their clients are on."""

    def start(self) -> None:
        """Starts or continues the run."""

    def cancel(self, i: int) -> None:
        """Stops expecting an update of client i."""

    def save(self) -> ClockState:
        """The state that `load` restores."""

    def load(self, saved: ClockState) -> None:
        """Restores a state; `start` is to follow."""

    def now(self) -> float: ...

    def on_seconds(self, i: int, seconds: float) -> float:
        """How many of the last `seconds` s of wall time client i was on; `faults.patience` is compared with that."""

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        """Notes that a message asking for `work` units is sent to client i now; returns the delay (s) it carries."""

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        """The next update up to the deadline and the stop time, with the times of its computing and exchange, or None.

        Sets `time`, which never decreases and does not change once the stop time is reached:

        an update           its time
        deadline or stop    that time, or in real time a later one
        timed out           a time before both
        """


class RealClock:
    """Seconds of wall time since `start`."""

    deterministic = False
    waited = 0.0
    held = 0
    is_stalled = False

    def __init__(self, contact_times: ContactTimes, split_times: SplitTimes | None = None) -> None:
        self._contact_times, self._split_times, self.time = contact_times, split_times, 0.0
        self._last_receive, self.timed_out = 0.0, False  # _last_receive: s, when updates were last asked for
        # By client: when its message was sent (s), and the emulated times of computing and exchange.
        self._in_flight: dict[int, tuple[float, tuple[float, float] | None]] = {}

    @property
    def has_in_flight(self) -> bool:
        return bool(self._in_flight)

    def start(self) -> None:
        self._origin = time.perf_counter() - self.time

    def cancel(self, i: int) -> None:
        self._in_flight.pop(i, None)

    def save(self) -> ClockState:
        times = [times or (nan, nan) for _, times in self._in_flight.values()]
        return ClockState(
            self.now(), list(self._in_flight), [sent for sent, _ in self._in_flight.values()],
            [compute for compute, _ in times], [exchange for _, exchange in times], [0.0] * len(times),
        )  # fmt: skip

    def load(self, saved: ClockState) -> None:
        self.time = self._last_receive = saved.time
        in_flight = zip(saved.client, saved.due, saved.compute, saved.exchange, strict=True)
        self._in_flight = {i: (sent, None if isnan(c) else (c, e)) for i, sent, c, e in in_flight}

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        times = self._split_times(i, round, work) if self._split_times else None
        self._in_flight[i] = time.perf_counter() - self._origin, times
        return sum(times) if times else self._contact_times(i, round)

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        end = min(deadline, stop)
        if end == inf and not self._in_flight:
            raise RunFailed("no update is in flight and nothing is due: the run cannot continue")
        now = time.perf_counter() - self._origin
        # Events already overdue at the last receive come first. Later ones wait for one receive, so that they cannot
        # starve updates.
        if now < end or (self._last_receive < end and now < stop):
            got = self._receive(source, min(POLL_INTERVAL, max(0.0, end - now)))
            self._last_receive = self.time = now = time.perf_counter() - self._origin
            if got:
                self.timed_out = False
                i, update = got
                sent, times = self._in_flight.pop(i)
                # The times of the delay model if it has them, else those that were measured.
                compute, exchange = times or (update.compute, now - sent - update.busy)
                return i, update._replace(compute=compute, exchange=exchange, time=now)
        elif self.time < stop:
            self.time = now
        self.timed_out = self.time < end
        return None

    def _receive(self, source: UpdateSource, timeout: float) -> tuple[int, Update] | None:
        """The next update of any client, as `UpdateSource.receive_any`."""
        return source.receive_any(timeout)

    def now(self) -> float:
        """The time (s) at this instant."""
        return time.perf_counter() - self._origin

    def on_seconds(self, i: int, seconds: float) -> float:
        return seconds


class Contact(NamedTuple):
    """What the clock knows of a contact before it is over."""

    compute: float = nan  # s of computing, where the delay model has it
    exchange: float = nan  # s of exchanging, where the delay model has it
    waited: float = 0.0  # s that the message waits until its client is on


class VirtualClock:
    """Time that jumps from one due event to the next."""

    deterministic = True
    held = 0

    def __init__(
        self, contact_times: ContactTimes, split_times: SplitTimes | None = None, timeline: Timeline | None = None
    ) -> None:
        self._contact_times, self._split_times, self.time, self.timed_out = contact_times, split_times, 0.0, False
        self._timeline, self.waited = timeline, 0.0
        self._due = DueQueue[Contact]()

    @property
    def has_in_flight(self) -> bool:
        return len(self._due) > 0

    @property
    def is_stalled(self) -> bool:
        return len(self._due) > 0 and self._due.first()[0] == inf

    def start(self) -> None: ...

    def cancel(self, i: int) -> None:
        self._due.discard(i)

    def save(self) -> ClockState:
        entries = self._due.entries()
        contacts = [contact for _, contact in entries.values()]
        return ClockState(
            self.time, list(entries), [due for due, _ in entries.values()], [c.compute for c in contacts],
            [c.exchange for c in contacts], [c.waited for c in contacts],
        )  # fmt: skip

    def load(self, saved: ClockState) -> None:
        self.time = saved.time
        columns = saved.client, saved.due, saved.compute, saved.exchange, saved.waited
        for i, due, compute, exchange, waited in zip(*columns, strict=True):
            self._due.add(i, due, Contact(compute, exchange, waited))

    def contact_time(self, i: int, round: int, work: int = 1) -> float:
        compute = exchange = nan
        if self._split_times:
            compute, exchange = self._split_times(i, round, work)
            delay = compute + exchange
        else:
            delay = self._contact_times(i, round)
        begin, due = self.time, self.time + delay
        if self._timeline:
            begin, due = self._timeline.contact(i, self.time, delay)
        self._due.add(i, due, Contact(compute, exchange, begin - self.time))
        return 0.0

    def next_update(self, source: UpdateSource, deadline: float, stop: float = inf) -> tuple[int, Update] | None:
        end = min(deadline, stop)
        due, i = self._due.first()
        self.timed_out = False
        if due > end or i < 0:
            if end == inf:
                raise RunFailed("no update is in flight and nothing is due: the run cannot continue")
            self.time = end
            return None
        if due == inf:  # `end` is infinite too
            raise RunFailed(STALLED)
        if not (update := source.receive_from(i, POLL_INTERVAL)):
            self.timed_out = True
            return None
        contact = self._due.pop(i)
        self.time, self.waited = due, contact.waited
        return i, update._replace(compute=contact.compute, exchange=contact.exchange, time=due)

    def now(self) -> float:
        """The time (s) of the present event."""
        return self.time

    def on_seconds(self, i: int, seconds: float) -> float:
        return seconds  # the clients compute whatever the virtual time is


class LiveSchedule:
    """Merges a clock's updates with aggregations, evaluations, checkpoints and the stop rule.

    At equal times, what is due by the clock comes after all updates: polls, aggregations, evaluations, the end. An
    evaluation by updates follows its update at once. Under the real clock an event may be overdue; it then stands for
    all of its kind that became due meanwhile, and the stop time counts before updates that have come. If clients were
    lost, it can happen that no update is in flight but some are not aggregated: the server then aggregates these.
    """

    is_replay = False

    def __init__(
        self,
        clock: Clock,
        trigger: Trigger | None,
        seed: int,
        *,
        stop_time: float | None = None,
        stop_updates: int | None = None,
        evaluate_every: float | None = None,
        evaluate_updates: int | None = None,
        checkpoint_every: float | None = None,
        checkpoint_updates: int | None = None,
        timeline: Timeline | None = None,
        progress: LocalProgress | None = None,
    ) -> None:
        self.clock, self._trigger, self._seed, self.timeline = clock, trigger, seed, timeline
        self.progress, self.polls = progress, False
        self._stop_time, self._stop_updates = stop_time or inf, stop_updates or inf
        self._evaluate_every, self._evaluate_updates = evaluate_every or inf, evaluate_updates
        self._checkpoint_every, self._updates_per_checkpoint = checkpoint_every or inf, checkpoint_updates or inf
        self._periodic_checkpoints = min(self._checkpoint_every, self._updates_per_checkpoint) < inf
        self.deterministic = clock.deterministic
        self.contact_time, self.cancel, self.on_seconds = clock.contact_time, clock.cancel, clock.on_seconds
        self.round_size = 0
        self.checkpoint_requested = False
        self.alarm = inf
        self._updates = 0
        self._unaggregated = 0  # updates since the last aggregation
        self._unaggregated_at_update = 0  # updates that an aggregation by the last update takes, itself included
        self._aggregates = False  # whether the last update triggers an aggregation
        self._aggregations = self._timed_aggregations = 0  # all aggregations, and those that were due by time
        self._evaluations = self._checkpoints = 0  # due times of evaluations and of checkpoints that have passed
        self._next_evaluation = self._evaluate_every
        self._checkpoint_updates = 0  # updates before the last checkpoint
        self._next_aggregation = trigger.next_time(0.0, 0, seed) if trigger else inf
        # Time, updates and aggregations at the last evaluation.
        self._evaluated: tuple[float, int, int] | None = None

    def save(self) -> ScheduleState:
        """The state between two events, the clock's included."""
        time, updates, aggregations = self._evaluated or (nan, -1, -1)
        return ScheduleState(
            clock=self.clock.save(), round_size=self.round_size, updates=self._updates, pending=self._unaggregated,
            aggregations=self._aggregations, timed_aggregations=self._timed_aggregations,
            next_aggregation=self._next_aggregation, evaluations=self._evaluations, checkpoints=self._checkpoints,
            checkpoint_updates=self._checkpoint_updates, evaluated_time=time, evaluated_updates=updates,
            evaluated_aggregations=aggregations,
        )  # fmt: skip

    def load(self, saved: ScheduleState) -> None:
        self.clock.load(saved.clock)
        self.round_size, self._updates, self._unaggregated = saved.round_size, saved.updates, saved.pending
        self._aggregations, self._timed_aggregations = saved.aggregations, saved.timed_aggregations
        self._next_aggregation, self._evaluations = saved.next_aggregation, saved.evaluations
        self._next_evaluation = (self._evaluations + 1) * self._evaluate_every
        self._checkpoints, self._checkpoint_updates = saved.checkpoints, saved.checkpoint_updates
        evaluated = saved.evaluated_time, saved.evaluated_updates, saved.evaluated_aggregations
        self._evaluated = None if saved.evaluated_updates < 0 else evaluated

    @property
    def held(self) -> int:
        return self.clock.held

    def set_aggregates(self, ready: bool) -> bool:
        self._aggregations += ready - self._aggregates
        self._aggregates, self._unaggregated = ready, 0 if ready else self._unaggregated_at_update
        return ready

    def _count_aggregation(self) -> None:
        self._aggregations, self._unaggregated = self._aggregations + 1, 0

    def _checkpoint_due(self) -> bool:
        due = self.checkpoint_requested or self._updates - self._checkpoint_updates >= self._updates_per_checkpoint
        if self._checkpoint_every < inf and self.clock.now() >= (self._checkpoints + 1) * self._checkpoint_every:
            due, self._checkpoints = True, max(self._checkpoints + 1, int(self.clock.now() / self._checkpoint_every))
        if due:
            self.checkpoint_requested, self._checkpoint_updates = False, self._updates
        return due

    def events(self, source: UpdateSource) -> Iterator[Event]:
        """The run's events in order; ends when the run ends, with an evaluation."""
        clock, trigger, seed = self.clock, self._trigger, self._seed
        if self._evaluated is None:
            yield self._evaluation(0.0)
        while self._updates < self._stop_updates:
            if (self._periodic_checkpoints or self.checkpoint_requested) and self._checkpoint_due():
                yield Event("checkpoint", clock.time)
            if self._unaggregated and not clock.has_in_flight and self.alarm == inf and not (trigger and trigger.timed):
                self._count_aggregation()
                yield Event("aggregate", clock.time)
            next_evaluation = self._next_evaluation
            deadline = min(next_evaluation, self._next_aggregation, self.alarm)
            if got := clock.next_update(source, deadline, self._stop_time):
                i, update = got
                if update.refused:
                    yield Event("refused", clock.time, i, update)
                    continue
                self._updates += 1
                self._unaggregated += 1
                self._unaggregated_at_update = self._unaggregated
                if trigger:
                    self._aggregates = trigger.due(self._unaggregated, self._updates, seed)
                else:
                    self._aggregates = self._unaggregated >= self.round_size
                if self._aggregates:
                    self._count_aggregation()
                yield Event(
                    "update", clock.time, i, update, aggregates=self._aggregates, waited_for_client=clock.waited
                )
                if self._evaluate_updates and self._updates % self._evaluate_updates == 0:
                    yield self._evaluation(clock.time)
            elif clock.timed_out:
                yield Event("idle", clock.time)
            elif self.polls and self.alarm <= min(clock.time, self._stop_time):
                yield Event("poll", self.alarm)  # a poll precedes an evaluation, whose model it does not change
            elif self._next_aggregation <= min(clock.time, self._stop_time, next_evaluation):
                assert trigger
                self._timed_aggregations += 1
                self._count_aggregation()
                after = trigger.next_time(clock.time, self._timed_aggregations, seed)
                self._next_aggregation = max(after, nextafter(clock.time, inf))
                yield Event("aggregate", clock.time)
            elif self.alarm <= min(clock.time, self._stop_time, next_evaluation):
                self._count_aggregation()
                yield Event("aggregate", clock.time)
            elif next_evaluation <= min(clock.time, self._stop_time):
                if clock.is_stalled and self._stop_time == self._next_aggregation == self.alarm == inf:
                    raise RunFailed(STALLED)
                self._evaluations = max(self._evaluations + 1, int(clock.time / self._evaluate_every))
                self._next_evaluation = (self._evaluations + 1) * self._evaluate_every
                yield self._evaluation(clock.time, clock.time - next_evaluation)
            else:
                break
        if self._evaluated != (clock.time, self._updates, self._aggregations):
            yield self._evaluation(clock.time, max(0.0, clock.time - self._stop_time))

    def _evaluation(self, time: float, late_by: float = 0.0) -> Event:
        self._evaluated = time, self._updates, self._aggregations
        return Event("evaluate", time, late_by=late_by)
