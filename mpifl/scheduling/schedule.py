"""The order of all server events: updates, aggregations, evaluations, the end; planned by policy, or recorded.

`Plan` merges a clock's updates with the trigger, the evaluations and the stop rule; `Record` repeats what a run file
holds. The server loop follows either without knowing which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from mpifl.algorithms.base import Update
from mpifl.algorithms.common.participation import Trigger
from mpifl.errors import RunFailed
from mpifl.scheduling.clocks import Clock, Link


@dataclass(frozen=True)
class Event:
    """One thing that the server does next."""

    kind: str  # update | refused | aggregate | evaluate | checkpoint | idle, and in a record: lost
    time: float  # s of the run's clock
    client: int = -1
    update: Update | None = None
    aggregates: bool = False  # this update triggers an aggregation
    text: str = ""


class ClientIncident(NamedTuple):
    """What befell a client, and where in the order of events."""

    kind: str  # refused | lost
    time: float  # s of the run's clock
    client: int
    text: str
    updates: int  # that the server had consumed
    version: int  # aggregations before


class LiveSchedule:
    """Events as the policies make them. What it counts is kept by `save`, between two events.

    What is due by the clock comes at equal times after all updates: aggregations, evaluations, the end. An evaluation
    by updates follows its update at once. A timed aggregation under the real clock has the time at which it is made.
    Where nobody is left to work and updates have come, which only happens when clients are lost, the server aggregates.
    """

    recorded = False

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
        save_every: float | None = None,
        save_updates: int | None = None,
    ) -> None:
        self.clock, self._trigger, self._seed = clock, trigger, seed
        self._stop_time, self._stop_updates = stop_time or inf, stop_updates or inf
        self._every, self._every_updates = evaluate_every or inf, evaluate_updates
        self._save_every, self._save_updates = save_every or inf, save_updates or inf
        self.deterministic = clock.deterministic
        self.round_size = 0  # updates that complete the present synchronous round; the loop sets it
        self.save_now = False  # a checkpoint is wanted as the next event
        self._pending = self._updates = 0  # updates since the last aggregation, and all
        self._timed = self._total = 0  # aggregations by the clock, and all
        self._evaluations = self._saves = 0  # evaluations and checkpoints that were due by the clock
        self._saved = 0  # updates at the last checkpoint
        self._next_aggregation = trigger.next_time(0.0, 0, seed) if trigger else inf
        self._evaluated: tuple[float, int, int] | None = None  # time, updates, aggregations

    COUNTS = (
        "round_size", "_pending", "_updates", "_timed", "_total", "_evaluations", "_saves", "_saved",
        "_next_aggregation", "_evaluated",
    )  # fmt: skip

    def save(self) -> dict[str, Any]:
        """JSON-able, the clock included."""
        return {"clock": self.clock.save(), **{name: getattr(self, name) for name in self.COUNTS}}

    def load(self, saved: dict[str, Any]) -> None:
        for name in self.COUNTS:
            setattr(self, name, saved[name])
        self._evaluated = tuple(saved["_evaluated"])
        self.clock.load(saved["clock"])

    def sent(self, i: int, round: int, work: int = 1) -> float:
        return self.clock.sent(i, round, work)

    def forget(self, i: int) -> None:
        self.clock.forget(i)

    def _save_due(self) -> bool:
        due = self.save_now or self._updates - self._saved >= self._save_updates
        if self._save_every < inf and self.clock.now() >= (self._saves + 1) * self._save_every:
            due, self._saves = True, max(self._saves + 1, int(self.clock.now() / self._save_every))
        if due:
            self.save_now, self._saved = False, self._updates
        return due

    def events(self, link: Link) -> Iterator[Event]:
        """The run's events in order; ends when the run ends, with an evaluation."""
        clock, trigger, seed = self.clock, self._trigger, self._seed
        if self._evaluated is None:
            yield self._evaluation(0.0)
        while self._updates < self._stop_updates:
            if self._save_due():
                yield Event("checkpoint", clock.time)
            if self._pending and not clock.working and not (trigger and trigger.timed):
                self._total, self._pending = self._total + 1, 0
                yield Event("aggregate", clock.time)
            next_evaluation = (self._evaluations + 1) * self._every
            deadline = min(self._next_aggregation, next_evaluation, self._stop_time)
            got = clock.next(link, deadline)
            if got and got[1].refused:
                yield Event("refused", clock.time, got[0], got[1])
            elif got:
                self._updates, self._pending = self._updates + 1, self._pending + 1
                due = trigger.due(self._pending, self._updates, seed) if trigger else self._pending >= self.round_size
                self._pending = 0 if due else self._pending
                self._total += due
                yield Event("update", clock.time, got[0], got[1], due)
                if self._every_updates and self._updates % self._every_updates == 0:
                    yield self._evaluation(clock.time)
            elif clock.waiting:
                yield Event("idle", clock.time)
            elif deadline == self._next_aggregation:
                self._timed, self._total, self._pending = self._timed + 1, self._total + 1, 0
                self._next_aggregation = trigger.next_time(deadline, self._timed, seed) if trigger else inf
                yield Event("aggregate", clock.now())
            elif deadline == next_evaluation:
                self._evaluations += 1
                yield self._evaluation(deadline)
            else:
                break
        if self._evaluated != (clock.time, self._updates, self._total):
            yield self._evaluation(clock.time)

    def _evaluation(self, time: float) -> Event:
        self._evaluated = time, self._updates, self._total
        return Event("evaluate", time)


class ReplaySchedule:
    """Events as an earlier run recorded them; only the order counts, the times are repeated as they were."""

    deterministic = recorded = True

    def __init__(
        self,
        updates: Sequence[tuple[float, int, float, float]],  # (time, client, compute, exchange)
        aggregations: Sequence[tuple[float, int]],  # (time, updates before)
        evaluations: Sequence[tuple[float, int, int]],  # (time, updates before, aggregations before)
        timed: bool,  # aggregations come by a clock, not with an update
        incidents: Sequence[ClientIncident] = (),
    ) -> None:
        self._updates, self._timed, self._incidents = updates, timed, incidents
        self._aggregations, self._evaluations = aggregations, evaluations
        self.round_size = 0
        self.save_now = False

    def sent(self, i: int, round: int, work: int = 1) -> float:
        return 0.0

    def forget(self, i: int) -> None:
        """Nothing to do: the record knows who answered."""

    def events(self, link: Link) -> Iterator[Event]:
        """The recorded events in order. Raises RunFailed where a client does not answer as it did."""
        aggregated = evaluated = befallen = 0

        def after(k: int) -> int:
            """The updates before the k-th aggregation; -1 where there are no more."""
            return self._aggregations[k][1] if k < len(self._aggregations) else -1

        def evaluation(updates: int) -> tuple[float, int, int] | None:
            """The evaluation after this many updates and before the next aggregation."""
            found = self._evaluations[evaluated] if evaluated < len(self._evaluations) else None
            return found if found and found[1:] == (updates, aggregated) else None

        def incident(updates: int) -> ClientIncident | None:
            """What befell a client there."""
            found = self._incidents[befallen] if befallen < len(self._incidents) else None
            return found if found and (found.updates, found.version) == (updates, aggregated) else None

        def pauses(updates: int) -> Iterator[Event]:
            """What happened between this many updates and the next one."""
            nonlocal aggregated, evaluated, befallen
            while True:
                if measured := evaluation(updates):
                    evaluated += 1
                    yield Event("evaluate", measured[0])
                elif found := incident(updates):
                    befallen += 1
                    refused = self._take(link, found.client) if found.kind == "refused" else None
                    yield Event(found.kind, found.time, found.client, refused, text=found.text)
                elif after(aggregated) == updates:
                    aggregated += 1
                    yield Event("aggregate", self._aggregations[aggregated - 1][0])
                else:
                    return

        yield from pauses(0)
        for count, (time, client, compute, exchange) in enumerate(self._updates, 1):
            apart = self._timed or evaluation(count) or incident(count)  # something lies before the aggregation
            due = after(aggregated) == count and not apart
            aggregated += due
            update = self._take(link, client)._replace(compute=compute, exchange=exchange)
            yield Event("update", time, client, update, due)
            yield from pauses(count)
        for what, done, rows in (
            ("aggregation", aggregated, self._aggregations),
            ("evaluation", evaluated, self._evaluations),
            ("incident", befallen, self._incidents),
        ):
            if done < len(rows):
                raise RunFailed(f"the record contradicts itself: {what} {done + 1} has no place in it")

    def _take(self, link: Link, i: int) -> Update:
        if update := link.take(i):
            return update
        raise RunFailed("; ".join(f"client {j} was lost: {why}" for j, why in link.lost()) or f"client {i} was lost")
