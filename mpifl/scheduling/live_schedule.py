"""The live schedule: the order of server events that the clock, the trigger and the stop rule decide."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan, nextafter
from time import perf_counter

from mpifl.algorithms.participation import Trigger
from mpifl.checkpoint.snapshot import ScheduleState
from mpifl.errors import RunFailed
from mpifl.scheduling.clocks import Clock, UpdateSource
from mpifl.scheduling.polls import StepsSoFar
from mpifl.scheduling.schedule import Event, Schedule

STALLED = (
    "no client with a message is on again (clock.availability): the run cannot continue; give stop.time, "
    "after: repeat, or cohort_from: available"
)


class LiveSchedule(Schedule):
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
        checkpoint_end: bool = False,
        progress: StepsSoFar | None = None,
    ) -> None:
        super().__init__(clock, progress)
        self._trigger, self._seed = trigger, seed
        self._stop_time, self._stop_updates = stop_time or inf, stop_updates or inf
        self._evaluate_every, self._evaluate_updates = evaluate_every or inf, evaluate_updates
        self._checkpoint_every, self._updates_per_checkpoint = checkpoint_every or inf, checkpoint_updates or inf
        self.checkpoint_end, self.next_checkpoint = checkpoint_end, inf
        self._updates = 0
        self._unaggregated = 0  # updates since the last aggregation
        self._aggregations = self._timed_aggregations = 0  # all aggregations, and those that were due by time
        self._evaluations = self._checkpoints = 0  # due times of evaluations and of checkpoints that have passed
        self._next_evaluation = self._evaluate_every
        self._updates_at_checkpoint = 0  # updates before the last checkpoint
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
            checkpoint_updates=self._updates_at_checkpoint, evaluated_time=time, evaluated_updates=updates,
            evaluated_aggregations=aggregations,
        )  # fmt: skip

    def load(self, saved: ScheduleState) -> None:
        self.clock.load(saved.clock)
        self.round_size, self._updates, self._unaggregated = saved.round_size, saved.updates, saved.pending
        self._aggregations, self._timed_aggregations = saved.aggregations, saved.timed_aggregations
        self._next_aggregation, self._evaluations = saved.next_aggregation, saved.evaluations
        self._next_evaluation = (self._evaluations + 1) * self._evaluate_every
        self._checkpoints, self._updates_at_checkpoint = saved.checkpoints, saved.checkpoint_updates
        evaluated = saved.evaluated_time, saved.evaluated_updates, saved.evaluated_aggregations
        self._evaluated = None if saved.evaluated_updates < 0 else evaluated

    def aggregates(self, ready: bool | None) -> bool:
        if ready is None and self._trigger:
            ready = self._trigger.due(self._unaggregated, self._updates, self._seed)
        elif ready is None:
            ready = self._unaggregated >= self.round_size
        if ready:
            self._count_aggregation()
        return ready

    def _count_aggregation(self) -> None:
        self._aggregations, self._unaggregated = self._aggregations + 1, 0

    def _checkpoint_due(self) -> bool:
        due = self.checkpoint_requested or self._updates - self._updates_at_checkpoint >= self._updates_per_checkpoint
        due = due or perf_counter() >= self.next_checkpoint
        if self._checkpoint_every < inf and self.clock.now() >= (self._checkpoints + 1) * self._checkpoint_every:
            due, self._checkpoints = True, max(self._checkpoints + 1, int(self.clock.now() / self._checkpoint_every))
        if due:
            self.checkpoint_requested, self._updates_at_checkpoint = False, self._updates
        return due

    def events(self, source: UpdateSource) -> Iterator[Event]:
        """The run's events in order; ends when the run ends, with an evaluation."""
        clock, trigger, seed = self.clock, self._trigger, self._seed
        if self._evaluated is None:
            yield self._evaluation(0.0)
        while self._updates < self._stop_updates:
            if self._checkpoint_due():
                yield Event("checkpoint", clock.time)
            if self._unaggregated and not clock.has_in_flight and self.alarm == inf and not (trigger and trigger.timed):
                self._count_aggregation()
                yield Event("aggregate", clock.time)
            if self._stop_time == self._next_aggregation == self.alarm == inf and clock.is_stalled:
                nothing = "no update is in flight and nothing is due: the run cannot continue"
                raise RunFailed(STALLED if clock.has_in_flight else nothing)
            next_evaluation = self._next_evaluation
            deadline = min(next_evaluation, self._next_aggregation, self.alarm)
            if got := clock.next_update(source, deadline, self._stop_time):
                i, update = got
                if update.refused:
                    yield Event("refused", clock.time, i, update)
                    continue
                self._updates += 1
                self._unaggregated += 1
                yield Event("update", clock.time, i, update)
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
                self._evaluations = max(self._evaluations + 1, int(clock.time / self._evaluate_every))
                self._next_evaluation = (self._evaluations + 1) * self._evaluate_every
                yield self._evaluation(clock.time, clock.time - next_evaluation)
            else:
                break
        if self.checkpoint_end:  # before the evaluation, which a run that goes on does not have
            yield Event("checkpoint", clock.time, ends=True)
        if self._evaluated != (clock.time, self._updates, self._aggregations):
            yield self._evaluation(clock.time, max(0.0, clock.time - self._stop_time))

    def _evaluation(self, time: float, late_by: float = 0.0) -> Event:
        self._evaluated = time, self._updates, self._aggregations
        return Event("evaluate", time, late_by=late_by)
