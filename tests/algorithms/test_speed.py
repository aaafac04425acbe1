"""How fast the methods move while the gradient is constant, and how many events a second there are.

All of it is law under Exp(lambda) contact times: a run's slope is a random number. Each is the mean of R seeded runs,
and may miss its expectation by five of its standard errors, estimated from the spread of the runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import pytest

from mpifl.algorithms.area import Area
from mpifl.algorithms.async_fedavg import AsyncFedAvg
from mpifl.algorithms.base import Algorithm
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Exponential
from tests.quadratic_runs import Log, Quadratic, close, quadratics, run


@dataclass
class Slope(Quadratic):
    """f(x) = <a, x>: a gradient that is the same everywhere."""

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        return self.a.copy()


R = 5  # runs
ALPHA, LAMBDA = 0.25, 2.0


def go(algorithm: Algorithm, n: int, seed: int, rate: float, **stop: float) -> Log:
    clients = quadratics([1.0] * n, [0.0] * n, kind=Slope)
    return run(algorithm, clients, clock=VirtualClock(Exponential(rate=rate).contact_times(n, seed)), seed=seed, **stop)


def slopes(algorithm: Algorithm, n: int, contacts: int) -> np.ndarray:
    """(R,) -dx/dt of runs of so many contacts a client; the first 8 contact times are left out."""
    found = []
    for seed in range(R):
        log = go(algorithm, n, seed, LAMBDA, stop_time=contacts / LAMBDA, evaluate_every=8 / LAMBDA)
        (t0, *_), (t1, *_) = log.evaluations[1], log.evaluations[-1]
        found.append((log.evaluated[1][0] - log.evaluated[-1][0]) / (t1 - t0))
    return np.array(found)


def agrees(samples: np.ndarray, expected: float, systematic: float = 0.0) -> None:
    """The mean of the samples is what is expected, within five standard errors, which are below 4 %."""
    error = samples.std(ddof=1) / sqrt(len(samples))
    assert error < 0.04 * expected
    assert abs(samples.mean() - expected) < 5 * error + systematic * expected


def blocks(n: int, every: int) -> float:
    """E ceil(S/Delta), S the events that two contacts of a client take: how many aggregations old AREA's memories are.

    Each contact takes a geometric number of events, P(S = s) = (s-1) (1/n)^2 (1-1/n)^(s-2).
    """
    s = np.arange(2, 200 * n)
    return float(np.sum((s - 1) / n**2 * (1 - 1 / n) ** (s - 2) * np.ceil(s / every)))


def test_speed_along_a_constant_gradient() -> None:
    """SPEED.1: -dx/dt is for AREA alpha lambda/2, AS-FedAvg alpha lambda up to Delta/n, FedBuff
    n lambda alpha eta_g/Delta."""
    n = 16
    area = Area(step_size=ALPHA, step_weights="one", trigger=Trigger(every=1))
    agrees(slopes(area, n, 80), ALPHA * LAMBDA / 2)
    replace = AsyncFedAvg(step_size=ALPHA, step_weights="one", trigger=Trigger(every=1))
    agrees(slopes(replace, n, 80), ALPHA * LAMBDA, systematic=1 / n)
    fedbuff = FedBuff(step_size=ALPHA, server_step=0.5, trigger=Trigger(every=3))
    agrees(slopes(fedbuff, n, 50), n * LAMBDA / 3 * ALPHA * 0.5)
    log = go(fedbuff, n, 0, LAMBDA, stop_updates=300)
    close(np.ravel(log.models), -ALPHA * 0.5 * np.arange(1, 101))  # of each aggregation it is exact


@pytest.mark.parametrize(("n", "every"), [(8, 4), (4, 4), (6, 2)])
def test_contact_times_of_a_loop(n: int, every: int) -> None:
    """SPEED.2: A loop takes 1 + Delta/n contact times in AS-FedAvg, exactly; in AREA it takes Delta/n E ceil(S/Delta),
    which is 2 + (Delta-1)/(2n) up to 2 %."""
    trigger = Trigger(every=every)
    replace = AsyncFedAvg(step_size=ALPHA, step_weights="one", trigger=trigger)
    agrees(slopes(replace, n, 150), ALPHA * LAMBDA / (1 + every / n))
    loop = every / n * blocks(n, every)
    assert loop == pytest.approx(2 + (every - 1) / (2 * n), rel=0.02)
    agrees(slopes(Area(step_size=ALPHA, step_weights="one", trigger=trigger), n, 150), ALPHA * LAMBDA / loop)


def test_rounds_and_arrivals_in_a_time() -> None:
    """T9, DATA.4: a round of 4 of 128 clients at rate 10 takes 25/120 s: 72 rounds in 15 s. All clients at their own
    pace have 128*10*2 = 2560 arrivals in 2 s.

    A round is the largest of four exponential times; arrivals are Poisson.
    """
    mean, deviation = 25 / 120, 0.1 * sqrt(1 + 1 / 4 + 1 / 9 + 1 / 16)
    ends = np.array([time for time, _ in go(FedAvg(cohort=4), 128, 0, 10.0, stop_time=500.0).aggregations])
    rounds = np.diff(ends, prepend=0.0)
    assert rounds.mean() == pytest.approx(mean, abs=4 * deviation / sqrt(len(rounds)))
    assert rounds.std() == pytest.approx(deviation, rel=0.1)
    counts = np.histogram(ends, np.arange(0, 500, 15))[0]
    error = sqrt(15 * deviation**2 / mean**3 / len(counts))  # of the mean of renewal counts
    assert counts.mean() == pytest.approx(72, abs=4 * error + 0.5)
    assert len(go(Area(), 128, 1, 10.0, stop_time=2.0).updates) == pytest.approx(2560, abs=4 * sqrt(2560))
