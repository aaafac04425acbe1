"""The replayed schedule: the order of server events as an earlier run recorded them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from mpifl.algorithms.base import Update
from mpifl.errors import ConfigError, RunFailed
from mpifl.scheduling.polls import LocalProgress
from mpifl.scheduling.schedule import Event, Schedule, UpdateSource
from mpifl.scheduling.timeline import Timeline

if TYPE_CHECKING:
    from mpifl.runfile import Run


class ClientIncident(NamedTuple):
    """A refused update or the loss of a client, and its place in the order of events."""

    kind: str  # refused | lost
    time: float  # s of the run's clock
    client: int
    text: str
    updates: int  # number of updates before it
    version: int  # number of aggregations before it


class Evaluation(NamedTuple):
    """An evaluation, and its place in the order of events."""

    time: float  # s of the run's clock
    updates: int  # number of updates before it
    version: int  # number of aggregations before it
    late_by: float  # s


class ReplaySchedule(Schedule):
    """Repeats recorded events in their order, once; the times are those that were recorded."""

    deterministic = is_replay = True

    def __init__(
        self,
        updates: Sequence[tuple[float, int, float, float, float]],  # (time, client, compute, exchange, waited)
        aggregations: Sequence[tuple[float, int]],  # (time, updates before)
        evaluations: Sequence[tuple[float, int, int, float]],  # the fields of `Evaluation`
        timed: bool,  # aggregations were due by a clock, not with an update
        incidents: Sequence[ClientIncident] = (),
        timeline: Timeline | None = None,
        progress: LocalProgress | None = None,
    ) -> None:
        super().__init__(timeline, progress)
        self._updates, self._timed, self._version = updates, timed, 0
        # What has not been repeated, in its order.
        self._aggregations, self._incidents = deque(aggregations), deque(incidents)
        self._evaluations = deque(Evaluation(*row) for row in evaluations)
        self._due = False  # whether the last update triggered an aggregation

    @classmethod
    def from_run(
        cls, run: Run, timed: bool, timeline: Timeline | None = None, progress: LocalProgress | None = None
    ) -> ReplaySchedule:
        """The order of events of a run file. Raises ConfigError where it cannot be repeated.

        timeline: when clients are on, which decides who the members of rounds are. progress: their local steps between
        polls, a function of recorded times.
        """
        updates, aggregations, evaluations = run.updates, run.aggregations, run.evaluations
        return cls(
            list(zip(*(updates[c].tolist() for c in ("time", "client", "compute", "exchange", "waited")), strict=True)),
            list(zip(aggregations["time"].tolist(), aggregations["updates"].tolist(), strict=True)),
            list(zip(*(evaluations[c].tolist() for c in ("time", "updates", "version", "age")), strict=True)),
            timed,
            _incidents(run),
            timeline,
            progress,
        )

    def _aggregation_follows(self, updates: int) -> bool:
        """Whether the next aggregation is the one after this many updates."""
        return bool(self._aggregations) and self._aggregations[0][1] == updates

    def _follows(self, rows: Sequence[Evaluation | ClientIncident], updates: int) -> bool:
        """Whether the next of these comes after this many updates and before the next aggregation."""
        return bool(rows) and (rows[0].updates, rows[0].version) == (updates, self._version)

    def aggregates(self, ready: bool | None) -> bool:
        due = self._due and ready is not False  # else the recorded aggregation came later, by an alarm
        if due:
            self._next_aggregation()
        return due

    def _next_aggregation(self) -> float:
        """The time of the next aggregation, which takes place now."""
        self._version += 1
        return self._aggregations.popleft()[0]

    def events(self, source: UpdateSource) -> Iterator[Event]:
        """The recorded events in order. Raises RunFailed where a client does not answer as it did."""
        left: dict[str, Sequence[object]] = {
            "aggregation": self._aggregations,
            "evaluation": self._evaluations,
            "incident": self._incidents,
        }
        counts = {what: len(rows) for what, rows in left.items()}
        yield from self._between(source, 0)
        for count, (time, client, compute, exchange, waited) in enumerate(self._updates, 1):
            # An event between an update and its aggregation makes that an event of its own.
            separate = self._timed or self._follows(self._evaluations, count) or self._follows(self._incidents, count)
            self._due = self._aggregation_follows(count) and not separate
            if self.polls and self.alarm < inf:
                yield Event("poll", self.alarm)
            update = self._receive(source, client)
            update = update._replace(compute=compute, exchange=exchange, time=time, waited=waited)
            yield Event("update", time, client, update)
            yield from self._between(source, count)
        for what, rows in left.items():
            if rows:
                number = counts[what] - len(rows) + 1
                raise RunFailed(f"the recorded events contradict each other: {what} {number} has no place among them")

    def _between(self, source: UpdateSource, updates: int) -> Iterator[Event]:
        """The events between this many updates and the next one."""
        while True:
            if self._follows(self._evaluations, updates):
                evaluation = self._evaluations.popleft()
                yield Event("evaluate", evaluation.time, late_by=evaluation.late_by)
            elif self._follows(self._incidents, updates):
                incident = self._incidents[0]
                if self.polls and self.alarm <= incident.time:
                    yield Event("poll", self.alarm)
                    continue
                self._incidents.popleft()
                refused = self._receive(source, incident.client) if incident.kind == "refused" else None
                yield Event(incident.kind, incident.time, incident.client, refused, text=incident.text)
            elif self._aggregation_follows(updates):
                yield Event("aggregate", self._next_aggregation())
            else:
                return

    @staticmethod
    def _receive(source: UpdateSource, i: int) -> Update:
        if update := source.receive_from(i):
            return update
        failures = [f"client {j} was lost: {reason}" for j, reason in source.client_failures]
        raise RunFailed("; ".join(failures) or f"client {i} was lost")


def _incidents(run: Run) -> list[ClientIncident]:
    events, clients = run.events, run.updates.client
    if (events.kind == "rehosted").any():
        wrong = "rehosted clients continue from an older state, which the file does not hold"
        raise ConfigError("run file", run.path, wrong, "a run without them")
    if events.text[events.kind == "changed"].str.startswith("algorithm.").any():
        raise ConfigError("run file", run.path, "its method was changed on the way", "a run of one method")
    failures = events[events.kind.isin(["refused", "lost"])]
    lost = failures[(failures.kind == "lost") & (failures.updates >= 0)]
    late = any((clients[row.updates :] == row.client).any() for row in lost.itertuples())
    if late or not failures.client.between(0, len(run.clients) - 1).all():
        raise ConfigError("run file", run.path, "a lost client has updates later", "events that agree with the updates")
    columns = ["kind", "time", "client", "text", "updates", "version"]
    return [ClientIncident(*row) for row in failures[columns].itertuples(index=False)]
