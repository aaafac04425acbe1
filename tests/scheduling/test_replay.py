"""A replay of a recorded run is that run, bit for bit; a record gives every row a place, or says that it has none."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Algorithm, Update
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.participation import Trigger
from mpifl.errors import RunFailed
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import Exponential, Fixed
from mpifl.scheduling.replayed_schedule import ReplaySchedule
from tests.quadratic_runs import Answers, Log, random_quadratics, run

N = 4
CLIENTS = random_quadratics(1, N)
TRIGGERS = [Trigger(every=3), Trigger(period=0.3), Trigger(poisson=3.0), Trigger(bernoulli=0.5)]


def same(log: Log, again: Log) -> None:
    assert (again.updates, again.aggregations) == (log.updates, log.aggregations)
    assert again.evaluations == log.evaluations
    assert np.array_equal(log.evaluated, again.evaluated) and np.array_equal(log.models, again.models)
    assert np.array_equal(log.x, again.x)


def check(algorithm: Algorithm, clock: object, **plan: float) -> None:
    log = run(algorithm, CLIENTS, x0=1.0, clock=clock, seed=3, **plan)
    assert len(log.updates) > 20 and len(log.aggregations) > 3
    trigger = algorithm.aggregation_trigger()
    same(log, run(algorithm, CLIENTS, x0=1.0, seed=3, replay=log.record(bool(trigger and trigger.timed))))


def likely(trigger: Trigger, reply: str) -> Trigger:
    """A coin that falls almost always, where all clients may come to wait for it."""
    return Trigger(bernoulli=0.97) if trigger.bernoulli and reply == "deferred" else trigger


@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
@pytest.mark.parametrize("reply", ["before", "after", "deferred"])
def test_a_replay_of_every_trigger_and_reply_has_the_same_bits(reply: str, trigger: Trigger) -> None:
    """Every trigger and reply policy; also where all is at the same times: the order, and not the times, decides."""
    method = Area(step_size=0.2, step_weights="one", local_steps=2, output="average", reply=reply)
    laws = (
        Exponential(rate=2.0, spread=1.0).contact_times(N, 3),
        Fixed(seconds=[1.0, 1.0, 2.0, 0.5]).contact_times(N, 0),
    )
    for law, period, evaluate in (
        (laws[0], 0.3, {"evaluate_every": 0.7}),
        (laws[1], 1.0, {"evaluate_every": 1.0}),
        (laws[1], 1.0, {"evaluate_updates": 2}),
    ):
        trigger = likely(replace(trigger, period=trigger.period and period), reply)
        check(replace(method, trigger=trigger), VirtualClock(law), stop_time=15.0, **evaluate)


@pytest.mark.parametrize("sampling", ["uniform", "samples"])
@pytest.mark.parametrize("cohort", [None, 2, 3])
def test_replay_of_cohorts(cohort: int | None, sampling: str) -> None:
    algorithm = FedAvg(cohort=cohort, sampling=sampling, local_steps=2)
    check(algorithm, VirtualClock(Exponential(rate=2.0).contact_times(N, 3)), stop_time=25.0, evaluate_every=2.0)


@pytest.mark.parametrize("trigger", [Trigger(every=3), Trigger(period=0.004), Trigger(bernoulli=0.4)], ids=str)
def test_replay_of_real_time(trigger: Trigger) -> None:
    clock = RealClock(Exponential(rate=800.0).contact_times(N, 3))
    clock.start()
    check(Area(step_size=0.2, trigger=trigger), clock, stop_updates=80, evaluate_every=0.01)


# -- the order of recorded events -------------------------------------------------------------------------------------
UPDATES = [(float(t), t % 2, 0.0, 0.0, 0.0) for t in range(1, 5)]


def told(aggregations: Any, evaluations: Any, incidents: Any = (), timed: bool = False) -> list[tuple]:
    """The events of a record of four updates, one a second, as (kind, time, whether it aggregates)."""
    record = ReplaySchedule(UPDATES, aggregations, [(*row, 0.0) for row in evaluations], timed, incidents)
    found = []
    for i in (0, 1):
        record.clock.contact_time(i, 0)
    for event in record.events(Answers()):  # type: ignore[arg-type]
        found.append((event.kind, event.time, event.kind == "update" and record.aggregates(None)))
        if event.kind == "update":  # the server answers
            record.clock.contact_time(event.client, 0)
    return found


def test_an_aggregation_with_its_update_or_after_what_lies_between() -> None:
    """With the second update; after the fourth, an evaluation between them: version 1 is measured after it."""
    found = told([(2.0, 2), (4.0, 4)], [(0.0, 0, 0), (2.0, 2, 1), (4.0, 4, 1), (4.5, 4, 2)])
    assert found == [
        ("evaluate", 0.0, False), ("update", 1.0, False), ("update", 2.0, True), ("evaluate", 2.0, False),
        ("update", 3.0, False), ("update", 4.0, False), ("evaluate", 4.0, False), ("aggregate", 4.0, False),
        ("evaluate", 4.5, False),
    ]  # fmt: skip


def test_an_evaluation_before_a_timed_aggregation() -> None:
    found = told([(2.5, 2)], [(2.0, 2, 0), (3.0, 2, 1)], timed=True)
    assert [row[:2] for row in found[2:5]] == [("evaluate", 2.0), ("aggregate", 2.5), ("evaluate", 3.0)]


@pytest.mark.parametrize(
    ("aggregations", "evaluations", "incidents", "what"),
    [
        ([(2.0, 2), (9.0, 9)], [], [], "aggregation 2"),
        ([(2.0, 2)], [(0.0, 0, 0), (2.0, 3, 0), (4.0, 4, 1)], [], "evaluation 2"),
        ([(2.0, 2)], [(0.0, 0, 0), (4.0, 4, 2)], [], "evaluation 2"),
        ([], [(9.0, 9, 0)], [], "evaluation 1"),
        ([(2.0, 2)], [], [("lost", 1.5, 0, "", 1, 1)], "incident 1"),
        ([(2.0, 2)], [], [("lost", 1.5, 0, "", 1, 0), ("refused", 9.0, 1, "", 5, 1)], "incident 2"),
    ],
)
def test_what_has_no_place(aggregations: Any, evaluations: Any, incidents: Any, what: str) -> None:
    with pytest.raises(RunFailed, match=f"^the recorded events contradict each other: {what} has no place among them$"):
        told(aggregations, evaluations, incidents)


class Silent(Answers):
    """Client 0 answers at the third request; then client 1 fails."""

    def __init__(self) -> None:
        self.client_failures: list[tuple[int, str]] = []
        self.requests = 0

    def receive_from(self, i: int, timeout: float) -> Update | None:  # type: ignore[override]
        assert timeout < inf
        self.requests += 1
        if i:
            self.client_failures.append((i, "rank 2 died"))
        return Update((), 1) if self.requests == 3 else None


def test_a_client_that_is_awaited_lets_the_server_act() -> None:
    """By idle events, so that a signal ends the run. A client that fails, or has no message, ends the replay."""
    record, kinds = ReplaySchedule([(1.0, 0, 0.0, 0.0, 0.0), (2.0, 1, 0.0, 0.0, 0.0)], [], [], False), []
    for i in (0, 1):
        record.clock.contact_time(i, 0)
    with pytest.raises(RunFailed, match=r"^client 1 was lost: rank 2 died$"):
        kinds += [event.kind for event in record.events(Silent())]  # type: ignore[arg-type]
    kinds.clear()
    record = ReplaySchedule([(1.0, 0, 0.0, 0.0, 0.0)] * 2, [], [], False)
    record.clock.contact_time(0, 0)
    says = "^the recorded events contradict each other: client 0 has an update without a message$"
    with pytest.raises(RunFailed, match=says):
        for event in record.events(Silent()):  # type: ignore[arg-type]
            kinds.append(event.kind)
    assert kinds == ["idle", "idle", "update"]
