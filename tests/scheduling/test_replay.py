"""A replay of a recorded run is that run: the same events and the same model, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpifl.algorithms.area import Area
from mpifl.algorithms.async_fedavg import AsyncFedAvg
from mpifl.algorithms.base import Algorithm
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import Exponential, Fixed
from tests.quadratic_runs import Log, random_quadratics, run

N = 4
CLIENTS = random_quadratics(1, N)
TRIGGERS = [Trigger(every=3), Trigger(period=0.3), Trigger(poisson=3.0), Trigger(bernoulli=0.5)]


def same(log: Log, again: Log) -> None:
    assert again.updates == log.updates
    assert again.aggregations == log.aggregations
    assert again.evaluations == log.evaluations
    for x, y in zip(log.evaluated, again.evaluated, strict=True):
        assert np.array_equal(x, y)
    assert np.array_equal(log.models, again.models)
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
@pytest.mark.parametrize("name", ["area", "async-fedavg", "fedbuff"])
def test_replay(name: str, reply: str, trigger: Trigger) -> None:
    """Every trigger and reply policy, evaluations by time."""
    algorithm: Algorithm = {
        "area": Area(step_size=0.2, step_weights="one", local_steps=2, output="average"),
        "async-fedavg": AsyncFedAvg(step_weights="one", rule="server-memory"),
        "fedbuff": FedBuff(staleness="inverse-sqrt", server_step=0.7),
    }[name]
    algorithm = replace(algorithm, trigger=likely(trigger, reply), reply=reply)  # type: ignore[call-arg]
    check(
        algorithm,
        VirtualClock(Exponential(rate=2.0, spread=1.0).contact_times(N, 3)),
        stop_time=15.0,
        evaluate_every=0.7,
    )


@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
@pytest.mark.parametrize("reply", ["before", "after", "deferred"])
def test_replay_where_times_are_equal(reply: str, trigger: Trigger) -> None:
    """Updates, aggregations and evaluations at the same times: the order, and not the times, decides."""
    trigger = likely(replace(trigger, period=trigger.period and 1.0), reply)
    algorithm = Area(step_size=0.2, trigger=trigger, reply=reply)
    for evaluate in ({"evaluate_every": 1.0}, {"evaluate_updates": 2}):
        check(
            algorithm, VirtualClock(Fixed(seconds=[1.0, 1.0, 2.0, 0.5]).contact_times(N, 0)), stop_time=12.0, **evaluate
        )


@pytest.mark.parametrize("sampling", ["uniform", "samples"])
@pytest.mark.parametrize("cohort", [None, 2, 3])
def test_replay_of_cohorts(cohort: int | None, sampling: str) -> None:
    """Synchronous rounds: the cohorts are drawn again, and their members answer in the recorded order."""
    algorithm = FedAvg(cohort=cohort, sampling=sampling, local_steps=2)
    check(algorithm, VirtualClock(Exponential(rate=2.0).contact_times(N, 3)), stop_time=25.0, evaluate_every=2.0)


@pytest.mark.parametrize("trigger", [Trigger(every=3), Trigger(period=0.004), Trigger(bernoulli=0.4)], ids=str)
def test_replay_of_real_time(trigger: Trigger) -> None:
    """A run in real time, whose order does not follow from the seed, is repeated too."""
    clock = RealClock(Exponential(rate=800.0).contact_times(N, 3))
    clock.start()
    check(Area(step_size=0.2, trigger=trigger), clock, stop_updates=80, evaluate_every=0.01)
