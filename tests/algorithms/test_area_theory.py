"""The step sizes and constants of AREA's theorems."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients
from mpifl.algorithms.common.step_schedules import Convex, StronglyConvex, event_probabilities
from mpifl.algorithms.participation import Trigger
from mpifl.errors import ConfigError
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Exponential
from tests.quadratic_runs import close, quadratics, random_quadratics, run

RATES = np.array([1.0, 2.0, 5.0, 12.0])
CLIENTS = Clients(np.ones(4, int), RATES)


def test_event_probabilities() -> None:
    """p_i = lambda_i/(lambda_s + sum lambda), p_s = lambda_s/(...); every Delta: p_s = 1/(1+Delta); they sum to 1."""
    for trigger, p_s in (
        (Trigger(poisson=4.0), 4 / 24),
        (Trigger(period=0.25), 4 / 24),
        (Trigger(every=5), 1 / 6),
        (Trigger(bernoulli=0.2), 1 / 6),
    ):
        p, server = event_probabilities(trigger, CLIENTS)
        close(server, p_s)
        close(p, (1 - p_s) * RATES / 20)
    p, server = event_probabilities(Trigger(every=4), Clients(np.ones(8, int)))
    close(p, np.full(8, 0.1))
    with pytest.raises(ConfigError):
        event_probabilities(Trigger(poisson=1.0), Clients(np.ones(8, int)))


@pytest.mark.parametrize("M", [1, 2, 10])
@pytest.mark.parametrize("trigger", [Trigger(every=2), Trigger(poisson=3.0)], ids=str)
def test_steps_of_theorem_7(M: int, trigger: Trigger) -> None:
    """AREA.9: Theorem 7: alpha_k = 1/(p_min M gamma k/48 + 1/D) = c/(k+d), alpha_0 = D; k counts uploads and
    aggregations."""
    mu, L = 0.5, 3.0
    gamma = 2 * mu * L / (mu + L)
    D = min(
        2 / (M * (mu + L)),
        gamma / (L**2 * (M - 1)) if M > 1 else inf,
        sqrt(M * gamma**2 / (64 * L**4 * (M - 1) ** 3)) if M > 1 else inf,
        (gamma / (32 * L**4 * (M - 1) ** 3)) ** (1 / 3) if M > 1 else inf,
    )
    p, p_s = event_probabilities(trigger, CLIENTS)
    p_min = min(*p, p_s)
    c = 48 / (p_min * M * gamma)
    schedule = StronglyConvex(mu=mu, L=L)
    algorithm = Area(local_steps=M, trigger=trigger, step_schedule=schedule, step_size=99.0, step_weights="one")
    delays = Exponential(rate=1.0).contact_times(4, 0)
    clock = VirtualClock(lambda i, round: delays(i, round) / RATES[i])
    log = run(algorithm, random_quadratics(1, 4), clock=clock, rates=RATES, stop_updates=200)
    steps = [m.numbers[0] for _, m in log.sent]
    close(steps[:4], [D] * 4)
    k, expected = 0, []
    aggregations = [updates for _, updates in log.aggregations]
    for count in range(1, len(log.updates) + 1):
        k = count + sum(a < count for a in aggregations)  # the reply leaves before the aggregation of its own event
        expected.append(1 / (p_min * M * gamma * k / 48 + 1 / D))
        close(expected[-1], c / (k + c / D))
    close(steps[4:], expected)
    assert k > 220


def spread(server: float, rates: np.ndarray) -> float:
    """1/p_s + 2 qbar, what Theorem 8's bound depends on the rates by."""
    p, p_s = event_probabilities(Trigger(poisson=server), Clients(np.ones(len(rates), int), rates))
    return 1 / p_s + 2 * float(np.mean(1 / p))


@pytest.mark.parametrize("rates", [RATES, np.full(128, 10.0), np.array([0.1, 30.0])], ids=["four", "128", "two"])
def test_the_best_server_rate(rates: np.ndarray) -> None:
    """AREA.11, AREA.12: the bound for given K is least at the server rate sqrt(sum lambda_i / ((2/n) sum 1/lambda_i)),
    for equal rates every sqrt(2 n) uploads."""
    best = sqrt(rates.sum() / (2 / len(rates) * (1 / rates).sum()))
    logarithmic = {"bounds": (-8, 12), "method": "bounded", "options": {"xatol": 1e-9}}
    found = minimize_scalar(lambda s: spread(np.exp(s), rates), **logarithmic)
    assert np.exp(found.x) == pytest.approx(best, rel=1e-6)
    if np.ptp(rates) == 0:
        close(rates.sum() / best, sqrt(2 * len(rates)))
    h = 1e-4 * best  # the derivative vanishes there: -S/s^2 + (2/n) sum 1/lambda_i = 0
    assert abs(spread(best + h, rates) - spread(best - h, rates)) / (2 * h) < 1e-6 * spread(best, rates) / best


@pytest.mark.parametrize("M", [1, 5])
@pytest.mark.parametrize("trigger", [Trigger(every=4), Trigger(poisson=3.0)], ids=str)
def test_the_step_of_theorem_8_minimises_its_bound(M: int, trigger: Trigger) -> None:
    """AREA.13: Theorem 8's step minimises a/(2 alpha M K) + alpha b/2, a = (1/p_s + 2 qbar) R^2, b = sigma^2 + (M+1)
    B^2/2, and the minimum is the printed bound sqrt(ab/(M K))."""
    B, sigma, radius, K = 1.3, 0.7, 2.5, 1000
    schedule = Convex(B=B, sigma=sigma, radius=radius, events=K)
    alpha, slope = schedule.coefficients(99.0, M, trigger, CLIENTS)
    p, p_s = event_probabilities(trigger, CLIENTS)
    a = (1 / p_s + 2 * np.mean(1 / p)) * radius**2
    b = sigma**2 + (M + 1) * B**2 / 2

    def bound(step: float) -> float:
        return a / (2 * step * M * K) + step * b / 2

    assert slope == 0
    close(bound(alpha), sqrt((1 / p_s + 2 * np.mean(1 / p)) * b * radius**2 / (M * K)))
    found = minimize_scalar(bound, bounds=(alpha / 100, alpha * 100), method="bounded", options={"xatol": 1e-12})
    assert found.x == pytest.approx(alpha, rel=1e-5)
    algorithm = Area(local_steps=M, trigger=trigger, step_schedule=schedule, step_weights="one")
    log = run(algorithm, quadratics([1] * 4, range(4)), [0, 1, 2, 3], rates=RATES)
    close([m.numbers[0] for _, m in log.sent], [alpha] * 8)
