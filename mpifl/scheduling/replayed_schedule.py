"""The replayed schedule: the order of server events as an earlier run recorded them."""

from __future__ import annotations

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


class ReplaySchedule(Schedule):
    """Repeats recorded events in their order; the times are those that were recorded."""

    deterministic = is_replay = True

    def __init__(
        self,
        updates: Sequence[tuple[float, int, float, float, float]],  # (time, client, compute, exchange, waited)
        aggregations: Sequence[tuple[float, int]],  # (time, updates before)
        evaluations: Sequence[tuple[float, int, int, float]],  # (time, updates before, aggregations before, age)
        timed: bool,  # aggregations were due by a clock, not with an update
        incidents: Sequence[ClientIncident] = (),
        timeline: Timeline | None = None,
        progress: LocalProgress | None = None,
    ) -> None:
        super().__init__(timeline, progress)
        self._updates, self._timed, self._incidents = updates, timed, incidents
        self._aggregations, self._evaluations = aggregations, evaluations
        self._aggregated = 0
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

    def aggregates(self, ready: bool | None) -> bool:
        due = self._due and ready is not False  # else the recorded aggregation came later, by an alarm
        self._aggregated += due
        return due

    def events(self, source: UpdateSource) -> Iterator[Event]:
        """The recorded events in order. Raises RunFailed where a client does not answer as it did."""
        self._aggregated = evaluated = failed = 0

        def after(k: int) -> int:
            """The updates before the k-th aggregation; -1 where there are no more."""
            return self._aggregations[k][1] if k < len(self._aggregations) else -1

        def evaluation(updates: int) -> tuple[float, int, int, float] | None:
            """The evaluation after this many updates and before the next aggregation."""
            found = self._evaluations[evaluated] if evaluated < len(self._evaluations) else None
            return found if found and found[1:3] == (updates, self._aggregated) else None

        def incident(updates: int) -> ClientIncident | None:
            """The refusal or loss after this many updates and before the next aggregation."""
            found = self._incidents[failed] if failed < len(self._incidents) else None
            return found if found and (found.updates, found.version) == (updates, self._aggregated) else None

        def between(updates: int) -> Iterator[Event]:
            """The events between this many updates and the next one."""
            nonlocal evaluated, failed
            while True:
                if due := evaluation(updates):
                    evaluated += 1
                    yield Event("evaluate", due[0], late_by=due[3])
                elif (found := incident(updates)) and self.polls and self.alarm <= found.time:
                    yield Event("poll", self.alarm)
                elif found:
                    failed += 1
                    refused = self._receive(source, found.client) if found.kind == "refused" else None
                    yield Event(found.kind, found.time, found.client, refused, text=found.text)
                elif after(self._aggregated) == updates:
                    self._aggregated += 1
                    yield Event("aggregate", self._aggregations[self._aggregated - 1][0])
                else:
                    return

        yield from between(0)
        for count, (time, client, compute, exchange, waited) in enumerate(self._updates, 1):
            separate = self._timed or evaluation(count) or incident(count)  # an event precedes the aggregation
            self._due = after(self._aggregated) == count and not separate
            if self.polls and self.alarm < inf:
                yield Event("poll", self.alarm)
            update = self._receive(source, client)
            update = update._replace(compute=compute, exchange=exchange, time=time, waited=waited)
            yield Event("update", time, client, update)
            yield from between(count)
        for what, done, rows in (
            ("aggregation", self._aggregated, self._aggregations),
            ("evaluation", evaluated, self._evaluations),
            ("incident", failed, self._incidents),
        ):
            if done < len(rows):
                raise RunFailed(f"the recorded events contradict each other: {what} {done + 1} has no place among them")

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
