"""The order of events under the virtual clock: ties, the stop rule, evaluations."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from mpifl.algorithms.area import Area
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.participation import Trigger
from mpifl.config import read
from mpifl.errors import ConfigError, RunFailed
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import Fixed, NoDelay
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.scheduling.schedule import Event
from tests.quadratic_runs import Answers, quadratics, run

CLIENTS = quadratics([1, 1, 1], [0, 1, 2])


def events(plan: LiveSchedule) -> list[tuple]:
    """The plan's events with three clients, each sent a new message after its update."""
    found = []
    for i in range(3):
        plan.clock.contact_time(i, 0)
    for event in plan.events(Answers()):  # type: ignore[arg-type]
        update = event.kind == "update"
        found.append((event.kind, event.time, event.client, update and plan.aggregates(None)))
        if update:
            plan.clock.contact_time(event.client, 1)
    return found


def virtual(*seconds: float) -> VirtualClock:
    return VirtualClock(Fixed(seconds=list(seconds)).contact_times(3, 0))


def test_ties_are_in_the_order_update_aggregation_evaluation_end() -> None:
    """At equal times: updates by client, then aggregations, then evaluations, then the end."""
    plan = LiveSchedule(virtual(1, 1, 1), Trigger(period=1), 0, stop_time=2, evaluate_every=1)
    second = [("update", 0), ("update", 1), ("update", 2), ("aggregate", -1), ("evaluate", -1)]
    expected = [("evaluate", 0.0, -1), *((kind, t, i) for t in (1.0, 2.0) for kind, i in second)]
    assert [event[:3] for event in events(plan)] == expected


def test_updates_come_at_their_times_and_every_second_one_aggregates() -> None:
    plan = LiveSchedule(virtual(1, 2.5, 0.7), Trigger(every=2), 0, stop_time=2.5)
    updates = [e[1:] for e in events(plan) if e[0] == "update"]
    expected = sorted([(0.7 * k, 2) for k in (1, 2, 3)] + [(1.0, 0), (2.0, 0), (2.5, 1)])
    assert [(round(t, 12), i) for t, i, _ in updates] == [(round(t, 12), i) for t, i in expected]
    assert [due for *_, due in updates] == [False, True] * 3


def test_stop_at_a_time() -> None:
    """What is due at the stop time still happens, what is due later does not; the run ends at that time, evaluated."""
    log = run(Area(), CLIENTS, clock=virtual(1, 2, 3), stop_time=3)
    assert [(row[0], row[1]) for row in log.updates] == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2)]
    log = run(Area(), CLIENTS, clock=virtual(1, 2, 3), stop_time=2.5)
    assert len(log.updates) == 3
    assert log.evaluations == [(0.0, 0, 0), (2.5, 3, 3)]


def test_stop_after_updates_or_at_what_comes_first() -> None:
    """Exactly this number of updates, with the last one's aggregation; the run ends at its time."""
    for count in range(1, 8):
        log = run(Area(trigger=Trigger(every=2)), CLIENTS, clock=virtual(1, 2, 3), stop_updates=count)
        assert (len(log.updates), len(log.aggregations)) == (count, count // 2)
        assert log.evaluations[-1] == (log.updates[-1][0], count, count // 2)
    for updates, time in ((3, 9.0), (9, 2.0)):
        log = run(Area(), CLIENTS, clock=virtual(1, 2, 3), stop_updates=updates, stop_time=time)
        assert log.evaluations[-1][:2] == (2.0, 3)


def test_evaluations_by_time() -> None:
    """At 0, at every multiple, and at the end once; a multiple is k * every, not a sum."""
    log = run(Area(), CLIENTS, clock=virtual(1, 2, 3), stop_time=3.05, evaluate_every=0.1)
    assert [row[0] for row in log.evaluations] == [*(k * 0.1 for k in range(31)), 3.05]
    log = run(Area(), CLIENTS, clock=virtual(1, 2, 3), stop_time=3, evaluate_every=1.5)
    assert [row[0] for row in log.evaluations] == [0.0, 1.5, 3.0]
    for (time, updates, version), x in zip(log.evaluations, log.evaluated, strict=True):
        assert updates == version == sum(row[0] <= time for row in log.updates)
        assert np.array_equal(x, [np.zeros(1), *log.models][version])


def test_evaluations_by_updates() -> None:
    """At 0, after every such number of updates with what they triggered, and at the end once, with the last model."""
    log = run(Area(trigger=Trigger(every=3)), CLIENTS, clock=virtual(1, 2, 3), stop_updates=10, evaluate_updates=3)
    assert [row[1:] for row in log.evaluations] == [(0, 0), (3, 1), (6, 2), (9, 3), (10, 3)]
    log = run(Area(), CLIENTS, clock=virtual(1, 2, 3), stop_updates=6, evaluate_updates=3)
    assert [row[1] for row in log.evaluations] == [0, 3, 6]
    log = run(Area(trigger=Trigger(period=3.0)), CLIENTS, clock=virtual(1, 2, 3), stop_time=3.0, evaluate_updates=5)
    assert [row[1] for row in log.evaluations[:2]] == [0, 5]
    assert len(log.aggregations) == 1 and np.array_equal(log.evaluated[-1], log.x)


def test_synchronous_rounds_last_as_long_as_their_slowest() -> None:
    """Under the virtual clock a round ends with its last member, and the next one starts then."""
    log = run(FedAvg(), CLIENTS, clock=virtual(1, 2.5, 0.5), stop_time=8)
    assert [time for time, _ in log.aggregations] == [2.5, 5.0, 7.5]
    assert log.order == [2, 0, 1] * 3 + [2]


@pytest.mark.parametrize("evaluate", [{}, {"evaluate_every": 1.0}], ids=["", "evaluated by time"])
def test_a_run_where_nobody_works_fails(evaluate: dict[str, float]) -> None:
    for clock in (VirtualClock(NoDelay().contact_times(3, 0)), RealClock(NoDelay().contact_times(3, 0))):
        clock.start()
        plan = LiveSchedule(clock, Trigger(every=5), 0, stop_updates=9, **evaluate)  # type: ignore[arg-type]
        with pytest.raises(RunFailed, match="no update is in flight and nothing is due"):
            list(islice(plan.events(None), 100))  # type: ignore[arg-type]


def test_idle_events_reach_the_loop() -> None:
    """While the real clock waits, the loop gets idle events; these are not evaluations."""
    clock = RealClock(Fixed(seconds=0.25).contact_times(1, 0))
    clock.start()
    seen: list[int] = []
    run(Area(), CLIENTS[:1], clock=clock, stop_updates=1, watch=lambda log: seen.append(len(log.updates)))
    assert seen[:2] == [0, 0]  # the evaluation at 0, then an idle look
    assert Event("idle", 0.2).client == -1


@pytest.mark.timeout(20)
def test_deferred_replies_by_coin_end() -> None:
    """All clients may wait for an aggregation that no update is left to trigger: the run is refused or fails, but
    ends."""
    algorithm = Area(trigger=Trigger(bernoulli=0.01), reply="deferred")
    with pytest.raises((ConfigError, RunFailed)):
        algorithm.validate(3)
        run(algorithm, CLIENTS, clock=virtual(1, 1, 1), stop_updates=99, evaluate_every=1.0)


def test_virtual_time_passes(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "{name: a, seed: 0, problem: {clients: 3}, algorithm: area, clock: {mode: virtual}, stop: {time: 1}}"
    )
    for words in ([], ["clock.delay={name: fixed, seconds: [1, 0, 2]}"]):
        with pytest.raises(ConfigError, match="its times may be 0, and virtual time would stand still; expected a mod"):
            read.load(path, words)
    for word in ("stop.updates=9", "clock.delay={name: fixed, seconds: [1, 3, 2]}"):
        read.load(path, [word])


def test_one_checkpoint_at_a_time() -> None:
    """At multiples of 0.1 s, whatever the quotient of two floats is rounded to."""
    clock = VirtualClock(lambda i, round: 0.1)
    plan = LiveSchedule(clock, None, 0, stop_time=30.0, checkpoint_every=0.1, evaluate_every=0.1)
    times = [time for kind, time, *_ in events(plan) if kind == "checkpoint"]
    assert len(times) == len(set(times)) and 295 <= len(times) <= 300
