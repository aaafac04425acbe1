"""The replayed schedule: the order of server events as an earlier run recorded them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from heapq import merge
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from mpifl.algorithms.base import Update
from mpifl.errors import ConfigError, RunFailed
from mpifl.scheduling.clocks import POLL_INTERVAL, RecordedClock, UpdateSource
from mpifl.scheduling.polls import StepsSoFar
from mpifl.scheduling.schedule import Event, Schedule
from mpifl.scheduling.timeline import Timeline

if TYPE_CHECKING:
    from mpifl.runfile.reader import Run


class Recorded(NamedTuple):
    """An event other than an update, and its place in the order of events."""

    place: tuple[int, int]  # number of updates and of aggregations before it
    event: Event
    name: str  # "evaluation 2"


class ReplaySchedule(Schedule):
    """Repeats recorded events in their order, once; the times are those that were recorded."""

    is_replay = True

    def __init__(
        self,
        updates: Sequence[tuple[float, int, float, float, float]],  # (time, client, compute, exchange, waited)
        aggregations: Iterable[tuple[float, int]],  # (time, updates before)
        evaluations: Iterable[tuple[float, int, int, float]],  # (time, updates before, aggregations before, late by)
        timed: bool,  # aggregations were due by a clock, not with an update
        incidents: Iterable[tuple[str, float, int, str, int, int]] = (),  # as `_incidents` returns them
        timeline: Timeline | None = None,
        progress: StepsSoFar | None = None,
    ) -> None:
        super().__init__(RecordedClock(timeline), progress)
        self.clock: RecordedClock
        self._updates, self._timed, self._version = updates, timed, 0
        # At one place evaluations come first, then incidents.
        self._others = merge(
            (Recorded((u, v), Event("evaluate", time, late_by=late), f"evaluation {k}")
             for k, (time, u, v, late) in enumerate(evaluations, 1)),
            (Recorded((u, v), Event(kind, time, i, text=text), f"incident {k}")
             for k, (kind, time, i, text, u, v) in enumerate(incidents, 1)),
            (Recorded((u, k - 1), Event("aggregate", time), f"aggregation {k}")
             for k, (time, u) in enumerate(aggregations, 1)),
            key=lambda each: each.place,
        )  # fmt: skip
        self._next = next(self._others, None)  # the first of those that were not repeated
        self._due = False  # whether the last update triggered an aggregation

    @classmethod
    def from_run(
        cls, run: Run, timed: bool, timeline: Timeline | None = None, progress: StepsSoFar | None = None
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

    def _follows(self, updates: int) -> Event | None:
        """The next event other than an update, if it comes after this many updates and before the next one."""
        following = self._next
        return following.event if following and following.place == (updates, self._version) else None

    def _take(self) -> None:
        """Moves on from the next event other than an update, which takes place now."""
        assert self._next
        self._version += self._next.event.kind == "aggregate"
        self._next = next(self._others, None)

    def aggregates(self, ready: bool | None) -> bool:
        due = self._due and ready is not False  # else the recorded aggregation came later, by an alarm
        if due:
            self._take()
        return due

    def events(self, source: UpdateSource) -> Iterator[Event]:
        """The recorded events in order. Raises RunFailed where a client does not answer as it did."""
        yield from self._between(source, 0)
        for count, (time, client, compute, exchange, waited) in enumerate(self._updates, 1):
            # An event between an update and its aggregation makes that an event of its own.
            following = self._follows(count)
            self._due = following is not None and following.kind == "aggregate" and not self._timed
            if self.polls and self.alarm < inf:
                yield Event("poll", self.alarm)
            update = yield from self._receive(source, client, time)
            update = update._replace(compute=compute, exchange=exchange, time=time, waited=waited)
            yield Event("update", time, client, update)
            yield from self._between(source, count)

    def _between(self, source: UpdateSource, updates: int) -> Iterator[Event]:
        """The events between this many updates and the next one."""
        while event := self._follows(updates):
            if self.polls and event.client >= 0 and self.alarm <= event.time:
                yield Event("poll", self.alarm)
                continue
            self._take()
            if event.kind == "refused":
                event = event._replace(update=(yield from self._receive(source, event.client, event.time)))
            yield event
        if (left := self._next) and (left.place[0] <= updates or updates == len(self._updates)):
            raise RunFailed(f"the recorded events contradict each other: {left.name} has no place among them")

    def _receive(self, source: UpdateSource, i: int, time: float) -> Generator[Event, None, Update]:
        """Client i's next update; idle events while that is awaited. Raises RunFailed where a client fails."""
        if i not in self.clock.in_flight:
            raise RunFailed(f"the recorded events contradict each other: client {i} has an update without a message")
        while not (update := source.receive_from(i, POLL_INTERVAL)):
            if failures := [f"client {j} was lost: {reason}" for j, reason in source.client_failures]:
                raise RunFailed("; ".join(failures))
            yield Event("idle", time)
        self.clock.in_flight.discard(i)
        return update


def _incidents(run: Run) -> list[tuple[str, float, int, str, int, int]]:
    """Refused updates and lost clients: (kind, time, client, text, updates before, aggregations before)."""
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
    return list(failures[columns].itertuples(index=False, name=None))
