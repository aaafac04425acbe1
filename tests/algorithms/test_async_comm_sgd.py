"""AsyncCommSGD: its rule, its equal pace, and how it relates to FedAvg and asynchronous SGD."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.async_comm_sgd import AsyncCommSgd
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Speed
from tests.quadratic_runs import Log, close, quadratics, random_quadratics, run

CYCLE = [0, 0, 0, 1]


def fixed(gap: int | list[int], step: float, **more: object) -> AsyncCommSgd:
    return AsyncCommSgd(step_size=step, gap=gap, draw="fixed", **more)  # type: ignore[arg-type]


def timed(algorithm: AsyncCommSgd, clients: list, **stop: float) -> Log:
    """Run by time: a local step takes 1 s, an exchange next to nothing."""
    speed = Speed(compute=1.0, exchange=1e-6)
    n = len(clients)
    return run(algorithm, clients, clock=VirtualClock(speed.contact_times(n, 0), speed.split_times(n, 0)), **stop)  # type: ignore[arg-type]


@pytest.mark.parametrize("reply", ["before", "after"])
@pytest.mark.parametrize("draw", ["fixed", "uniform"])
def test_rule(draw: str, reply: str) -> None:
    """x <- x + (1/n)(y - base), y after the drawn number of local steps, by hand and in a stale order."""
    clients = random_quadratics(1, 3)
    order = np.random.default_rng(0).integers(0, 3, 40).tolist()
    algorithm = AsyncCommSgd(step_size=0.1, gap=[2, 5, 3], draw=draw, reply=reply)
    log = run(algorithm, clients, order, x0=1.0)
    x, bases, contacts, taken = np.ones(3), [np.ones(3)] * 3, [0, 0, 0], []
    for k, i in enumerate(order):
        steps = algorithm.steps(0, i, contacts[i])
        taken.append(steps)
        contacts[i] += 1
        new = x + (clients[i].steps(bases[i], 0.1, steps) - bases[i]) / 3
        bases[i] = new if reply == "after" else x
        x = new
        close(log.models[k], x)
    assert [row[4] for row in log.updates] == taken
    assert draw == "uniform" or taken == [[2, 5, 3][i] for i in order]


def test_equal_pace_by_the_clock() -> None:
    """Gaps 1 and 3 by time: arrivals 0,0,0,1, and at all times both clients have taken as many steps as seconds passed,
    but for the contact under way; drawn gaps likewise."""
    clients = quadratics([1, 1], [0, 1])
    log = timed(fixed([1, 3], 0.01), clients, stop_time=1500.5)
    assert sorted(log.order[:4]) == CYCLE
    assert log.x[0] == pytest.approx(1 / 2, abs=0.01)
    drawn = AsyncCommSgd(step_size=0.01, gap=[1, 7])
    for each in (log, timed(drawn, clients, stop_time=1500.5)):
        taken = np.zeros(2)
        for row in each.updates:
            taken[row[1]] += row[4]
            assert abs(taken[row[1]] - row[0]) < 0.01  # the exchanges are in the time
        assert np.ptp(taken) <= 7


def test_gaps() -> None:
    """Drawn from 1 to gap, each about as often, by (seed, client, contact) alone."""
    algorithm = AsyncCommSgd(gap=4)
    draws = np.array([[algorithm.steps(7, i, k) for k in range(2000)] for i in range(2)])
    for row in draws:
        counts = np.bincount(row, minlength=5)
        assert counts[0] == 0
        assert len(counts) == 5
        assert (np.abs(counts[1:] - 500) < 5 * np.sqrt(2000 * 0.25 * 0.75)).all()  # five standard deviations
    assert (draws[0] != draws[1]).any()
    assert [algorithm.steps(8, 0, k) for k in range(50)] != draws[0, :50].tolist()
    assert AsyncCommSgd(gap=4, draw="fixed").steps(7, 1, 3) == 4
