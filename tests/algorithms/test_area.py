"""AREA: its exact invariants, its limits, how it relates to FedAvg, and the step sizes of its theorems."""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients
from mpifl.algorithms.common.step_schedules import Convex, StronglyConvex, event_probabilities
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.participation import Trigger
from mpifl.errors import ConfigError
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Exponential
from tests.quadratic_runs import Log, Picked, close, optimum, quadratics, random_quadratics, run
from tests.tiers import examples


def plain(step: float = 0.1, every: int = 1, **more: Any) -> Area:
    return Area(step_size=step, reply="before", **{"step_weights": "one", "trigger": Trigger(every=every), **more})


# -- AREA.1 and AREA.7: what holds after every event -------------------------------------------------------------------
@st.composite
def cases(draw: st.DrawFn) -> tuple[Area, int, int, list[int]]:
    """An algorithm, the number of clients, a seed for them, and which client at work is next, event by event."""
    n = draw(st.integers(1, 7))
    trigger = draw(
        st.one_of(
            st.builds(Trigger, every=st.integers(1, n)),
            st.builds(Trigger, period=st.floats(0.3, 7)),
            st.builds(Trigger, poisson=st.floats(0.1, 3)),
            st.builds(Trigger, bernoulli=st.floats(0.1, 1)),
        )
    )
    algorithm = Area(
        step_size=draw(st.sampled_from([0.05, 0.2])),
        step_weights=draw(st.sampled_from(["one", "samples", "uniform"])),
        local_steps=draw(st.integers(1, 8)),
        trigger=trigger,
        reply=draw(st.sampled_from(["before", "after", "deferred"])),
        first_contact=draw(st.sampled_from(["compute", "zero"])),
    )
    return algorithm, n, draw(st.integers(0, 10**6)), draw(st.lists(st.integers(0, 59), min_size=1, max_size=40))


@settings(max_examples=examples(80), deadline=None, derandomize=True)
@given(cases())
def test_memories_add_up_after_every_event(case: tuple[Area, int, int, list[int]]) -> None:
    """AREA.1: x_s + u/n = (1/n) sum y_i, y_i the memory in client i's last consumed upload. AREA.7: with the uploads in
    flight, the same holds for the clients' own memories."""
    algorithm, n, seed, picks = case
    events = []

    def watch(log: Log) -> None:
        assert log.worker and log.link
        known = log.server.x + log.server.u / n
        close(known, sum(log.memories.values()) / n)
        flying = sum((update.vectors[0] for update in log.link.in_flight.values()), np.zeros(2))
        close(known + flying / n, sum(log.worker.states[i].y for i in range(n)) / n)
        events.append(1)

    times = {"stop_updates": len(picks), "stop_time": 100.0}
    x0, clock = np.array([1.0, -2.0]), Picked(picks)
    log = run(algorithm, random_quadratics(seed, n, 2), x0=x0, clock=clock, watch=watch, seed=seed, **times)
    assert len(events) > len(log.updates) + len(log.aggregations)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_step_weights_by_samples_weight_the_objectives() -> None:
    """AREA.4: Client step a w_i with w_i = s_i/S, server factor 1/n, M = 1: the limit is argmin sum w_i f_i."""
    clients = random_quadratics(14, 4, low=1.5)
    order = np.random.default_rng(3).choice(4, 2500, p=[0.4, 0.3, 0.2, 0.1]).tolist()
    log = run(plain(0.5, 3, step_weights="samples"), clients, order)
    close(log.x, optimum(clients, [o.share for o in clients]))
    assert np.abs(log.x - optimum(clients)).max() > 1e-2


def test_round_robin_is_fedavg_at_half_the_pace() -> None:
    """AREA.5: Round robin, Delta = n, reply before: after round r, x_s is FedAvg's iterate ceil(r/2). first_contact:
    zero delays the iterates by one contact and changes nothing else."""
    clients, order = random_quadratics(15, 4), [0, 1, 2, 3] * 20
    for steps in (1, 3):
        log, late = (run(plain(0.1, 4, local_steps=steps, first_contact=first), clients, order, x0=1.0)
                     for first in ("compute", "zero"))  # fmt: skip
        fedavg = run(FedAvg(step_size=0.1, local_steps=steps), clients, order[:40], x0=1.0)
        close(log.models, np.repeat(fedavg.models, 2, axis=0))
        close(late.models, [np.ones(3), *log.models[:-1]])
        assert [row[4] for row in late.updates[:8]] == [0] * 4 + [steps] * 4
        assert [row[6] for row in late.updates[:4]] == [0.0] * 4


# -- the event counter and the output ----------------------------------------------------------------------------------
@pytest.mark.parametrize("trigger", [Trigger(every=3), Trigger(period=1.7)], ids=str)
def test_the_average_output_is_the_mean_after_every_upload_and_aggregation(trigger: Trigger) -> None:
    clients = random_quadratics(22, 3)
    order = [0, 1, 2, 1, 0, 0, 2, 1, 0, 2]
    algorithm = plain(trigger=trigger, output="average")
    log = run(algorithm, clients, order, x0=1.0)
    assert len(log.trail) == len(log.updates) + len(log.aggregations) == log.server.k
    close(algorithm.model(log.server), np.mean(log.trail, axis=0))
    last = run(replace(algorithm, output="last"), clients, order, x0=1.0)
    close(last.x, log.x)


def test_step_of_a_contact_is_the_one_it_was_given() -> None:
    """A client takes all its steps with the alpha_k of its message, k counted when the message left."""
    clients = random_quadratics(23, 3)
    algorithm = plain(every=2, local_steps=2, step_schedule=StronglyConvex(mu=0.5, L=3.0), step_weights="one")
    log = run(algorithm, clients, clock=VirtualClock(Exponential(rate=1.0).contact_times(3, 0)), stop_updates=40)
    steps: dict[tuple[int, int], float] = {(i, m.round): m.numbers[0] for i, m in log.sent}
    y = {i: np.zeros(3) for i in range(3)}
    for (i, update), base in zip(log.consumed, log.bases, strict=True):
        new = clients[i].steps(base, steps[i, update.round], 2)
        close(update.vectors[0], new - y[i])
        y[i] = new
    assert len(set(steps.values())) > 30


# -- its theorems ------------------------------------------------------------------------------------------------------
RATES = np.array([1.0, 2.0, 5.0, 12.0])
CLIENTS = Clients(np.ones(4, int), RATES)


def test_event_probabilities_follow_the_trigger_and_the_rates() -> None:
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
