"""The step sizes and constants of AREA's theorems."""

from __future__ import annotations

from dataclasses import dataclass
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
from tests.quadratic_runs import Quadratic, close, quadratics, random_quadratics, run

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


@pytest.mark.parametrize(
    "trigger", [Trigger(every=3), Trigger(poisson=4.0), Trigger(bernoulli=0.3), Trigger(period=0.2)], ids=str
)
def test_event_probabilities_are_what_happens(trigger: Trigger) -> None:
    """The shares of events in a run under Exp(lambda_i) contacts, within five standard errors of a multinomial."""
    rates = np.array([1.0, 3.0])
    delays = [np.random.default_rng(i).exponential(1 / rates[i], 4000) for i in range(2)]
    algorithm = Area(trigger=trigger)
    clock = VirtualClock(lambda i, round: delays[i][round])
    log = run(algorithm, quadratics([1, 1], [0, 1]), clock=clock, rates=rates, stop_updates=3000)
    p, p_s = event_probabilities(trigger, Clients(np.ones(2, int), rates))
    counts = np.array([log.order.count(0), log.order.count(1), len(log.aggregations)])
    expected = np.array([*p, p_s])
    assert np.abs(counts / counts.sum() - expected).max() < 5 * sqrt(0.25 / counts.sum())


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


@pytest.mark.parametrize("M", [1, 3, 10])
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("L", [0.5, 2.0, 50.0])
def test_the_matrix_inequality_of_theorem_7(M: int, n: int, L: float) -> None:
    """AREA.10: Lemmas 10 and 11 hold with the steps of the schedule, for random event probabilities: w'A <= rho w' with
    rho = 1 - p_min + p_min beta^(1/3), beta = 1 - alpha_k M gamma/4 >= 1/2, and rho (k+d)^4 <= (k+d-1)^4."""
    mu, trigger = 0.5, Trigger(poisson=1.0)
    *q, p_s = np.random.default_rng(M).dirichlet(np.full(n + 1, 1.5))
    p = np.array(q)
    clients = Clients(np.ones(n, int), p / p_s)  # with lambda_s = 1 these rates have the event probabilities p, p_s
    close(event_probabilities(trigger, clients)[0], p)
    first, slope = StronglyConvex(mu=mu, L=L).coefficients(1.0, M, trigger, clients)
    p_min, gamma, eye = min(*p, p_s), 2 * mu * L / (mu + L), np.eye(n)
    d = 48 / (p_min * M * gamma) / first
    for k in (0, 1, 2, 5, 100, 10**6):
        beta = 1 - first / (slope * k + 1) * M * gamma / 4
        assert 0.5 <= beta < 1
        rho = 1 - p_min + p_min * beta ** (1 / 3)
        A = np.block([  # of the distances of the x_i, of the y_i, and of x_s
            [eye - np.diag(p), np.zeros((n, n)), beta * p[:, None]],
            [np.diag(p), eye - np.diag(p), np.zeros((n, 1))],
            [np.zeros((1, n)), np.full((1, n), p_s / n), np.array([[1 - p_s]])],
        ])  # fmt: skip
        w = np.concatenate([1 / (n * beta ** (2 / 3) * p), 1 / (n * beta ** (1 / 3) * p), [1 / p_s]])
        assert (w @ A <= rho * w * (1 + 1e-12)).all(), k
        assert rho * (k + d) ** 4 <= (k + d - 1) ** 4 * (1 + 1e-12), k


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


@dataclass
class Absolute(Quadratic):
    """f(x) = sum |x - c|: convex, not smooth; its subgradient is the sign."""

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        return np.sign(x - self.c)

    def loss(self, x: np.ndarray, rows: object = None) -> float:
        return float(np.abs(x - self.c).sum())


@pytest.mark.parametrize("M", [1, 4])
def test_the_bound_of_theorem_8_holds(M: int) -> None:
    """f_i = |x - c_i|, Poisson aggregations: the averaged model, mean of five runs, is within the printed bound."""
    clients, rates, server, horizon = quadratics([1] * 5, [0, 1, 2, 4, 9], kind=Absolute), np.ones(5), 1.5, 200.0
    K, radius = int(horizon * (5 + server)), 8.0
    schedule = Convex(B=1.0, radius=radius, events=K)
    algorithm = Area(local_steps=M, trigger=Trigger(poisson=server), step_schedule=schedule, step_weights="one",
                     output="average")  # fmt: skip
    gaps = []
    for seed in range(5):
        clock = VirtualClock(Exponential(rate=1.0).contact_times(5, seed))
        log = run(algorithm, clients, x0=2 + radius, clock=clock, rates=rates, seed=seed, stop_time=horizon)
        mean = algorithm.model(log.server)
        gaps.append(np.mean([o.loss(mean) - o.loss(np.array([2.0])) for o in clients]))
    bound = sqrt(spread(server, rates) * (M + 1) / 2 * radius**2 / (M * K))
    assert 0 <= np.mean(gaps) <= bound < 3
