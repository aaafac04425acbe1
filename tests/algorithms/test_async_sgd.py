"""Asynchronous SGD: its steps for late gradients, Ringmaster and Rescaled ASGD, and its bias to fast clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.async_sgd import AsyncSgd
from mpifl.algorithms.base import Clients
from mpifl.errors import ConfigError
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Fixed
from tests.quadratic_runs import Log, close, optimum, quadratics, random_quadratics, run

CYCLE = [0, 0, 0, 1]
RULES = ("constant", "adaptive", "drop", "inverse")


@pytest.mark.parametrize("reply", ["before", "after"])
@pytest.mark.parametrize("rule", RULES)
def test_steps_for_late_gradients_by_hand(rule: str, reply: str) -> None:
    """DA.1: constant, adaptive, drop, inverse: x <- x - eta_t grad f_i(base) in a stale order, by hand."""
    clients, eta, L = random_quadratics(2, 3), 0.1, 4.0
    order = [0, 1, 0, 0, 2, 2, 0, 0, 0, 0, 0, 1, 1, 2, 0, 1]
    log = run(AsyncSgd(step_size=eta, step_rule=rule, L=L, reply=reply), clients, order, x0=1.0)
    x, bases, late = np.ones(3), [(np.ones(3), 0)] * 3, 0
    for k, i in enumerate(order):
        base, then = bases[i]
        tau = k - then
        steps = {
            "constant": eta,
            "adaptive": eta if tau <= 3 else min(eta, 1 / (4 * L * tau)),
            "drop": eta if tau <= 3 else 0,
            "inverse": eta * 3 / max(3, tau + 1),
        }
        new = x - steps[rule] * clients[i].gradient(base)
        bases[i] = (new, k + 1) if reply == "after" else (x, k)
        x, late = new, late + (tau > 3)
        close(log.models[k], x)
    assert late >= 2


def test_theorem_8() -> None:
    """(11): eta while tau <= tau_C = n; beyond, no more than eta and 1/(4 L tau). Null L means eta <= 1/(4 L) is an
    equality: eta/tau, as the paper's paragraph on tuning has it."""
    for n in (1, 4, 10):
        for eta in (0.01, 0.25, 3.0):
            for tau in range(60):
                for L in (0.5, 7.0):
                    given = AsyncSgd(step_size=eta, step_rule="adaptive", L=L).eta(tau, n)
                    close(given, eta if tau <= n else np.minimum(eta, 1 / (4 * L * tau)))
                close(AsyncSgd(step_size=eta, step_rule="adaptive").eta(tau, n), eta if tau <= n else eta / tau)
                close(AsyncSgd(step_size=eta, step_rule="drop").eta(tau, n), eta * (tau <= n))
                close(AsyncSgd(step_size=eta, step_rule="inverse").eta(tau, n), eta if tau < n else eta * n / (tau + 1))


T3, T4 = quadratics([1, 1], [0, 1]), quadratics([1, 4], [0, 1])


def ringmaster(R: int, step: float = 0.1) -> AsyncSgd:
    return AsyncSgd(step_size=step, step_rule="ringmaster", threshold=R)


@pytest.mark.parametrize("R", [1, 2, 4])
def test_late_gradients_are_discarded(R: int) -> None:
    """k counts applied gradients; one of delay k - k_i >= R is discarded, its client gets x and k all the same."""
    clients = random_quadratics(1, 4)
    order = np.random.default_rng(1).integers(0, 4, 40).tolist()
    log = run(ringmaster(R), clients, order, x0=1.0)
    x, k, bases, models, discarded = np.ones(3), 0, [(np.ones(3), 0)] * 4, [], 0
    for i in order:
        base, then = bases[i]
        if k - then < R:
            x, k = x - 0.1 * clients[i].gradient(base), k + 1
            models.append(x)
        else:
            discarded += 1
        bases[i] = x, k
    close(log.models, models, 1e-10)
    assert discarded and len(log.updates) == 40 == discarded + len(log.aggregations)
    assert [row[3] >= R for row in log.updates].count(True) == discarded


class CountsDiscarded(AsyncSgd):
    """Ringmaster, if discarded gradients made versions too."""

    def ready(self, server: Any) -> bool:
        if not server.applies:
            server.step = 0 * server.step
        return True


def test_discarded_gradients_make_no_version() -> None:
    """RM.3: R = 1, two clients in turn: of 200 gradients the 100 of client 0 are applied, none of client 1. RM.4: if
    discarded ones counted, all would be too late after the first step."""
    log = run(ringmaster(1), T3, [0, 1] * 100)
    assert len(log.aggregations) == 100
    assert [row[1] for row in log.updates if row[3] < 1] == [0] * 100
    algorithm = CountsDiscarded(step_size=0.1, step_rule="ringmaster", threshold=1)
    log = run(algorithm, quadratics([1, 1], [1, 1]), [0, 1] * 100)
    assert len(log.aggregations) == 200 and np.count_nonzero(np.diff([0.0, *np.ravel(log.models)])) == 1


def rescaled(rule: str, clients: list, gamma: float, cycles: int) -> Log:
    """The cycle 0,0,0,1 by a clock in which client 1 takes three times as long."""
    fixed = Fixed(seconds=[1.0, 3.0])
    algorithm = AsyncSgd(step_size=gamma, rescale=rule)
    clock = VirtualClock(fixed.contact_times(2, 0))
    return run(algorithm, clients, clock=clock, rates=fixed.rates(2, 0), stop_updates=4 * cycles)


def test_rescaled_factors() -> None:
    """Cycle 0,0,0,1: factors 1/(2 q_i) = 2/3 (RS.g0) and 2 (RS.g1), exactly by rates and by times once both are heard;
    by counts in the limit, so that the mean step is gamma."""
    for rule, accuracy in (("rates", 1e-12), ("times", 1e-8), ("counts", 0.02)):
        log = rescaled(rule, quadratics([1, 1], [1, 1]), 0.001, 40)
        steps = np.diff([0.0, *np.ravel(log.models)])
        factors = steps / (0.001 * (1 - np.ravel(log.bases)))
        assert log.order[-4:] == CYCLE
        close(factors[-4:], [0.666667] * 3 + [2.0], accuracy + 1e-6)
        close(factors[-4:].mean(), 1, accuracy)


def test_counts_by_hand() -> None:
    """q_i from updates so far, of which each client has one at the start; any order of arrivals."""
    clients, order = random_quadratics(4, 3), [0, 0, 2, 0, 1, 0, 0, 2, 1, 0]
    log = run(AsyncSgd(step_size=0.1, rescale="counts"), clients, order, x0=1.0)
    x, bases, counts, models = np.ones(3), [np.ones(3)] * 3, np.ones(3), []
    for i in order:
        counts[i] += 1
        x = x - 0.1 / (3 * counts[i] / counts.sum()) * clients[i].gradient(bases[i])
        bases[i] = x
        models.append(x)
    close(log.models, models, 1e-10)


def test_rates_are_those_of_the_delay_model() -> None:
    with pytest.raises(
        ConfigError, match=r"clock.delay and clock.availability give no rates; expected times or counts"
    ):
        AsyncSgd(rescale="rates").init_server(np.zeros(1), Clients(np.ones(2, int)))


def test_times_without_any() -> None:
    """Contacts that take no time are equally fast."""
    clients = random_quadratics(5, 2)
    log = run(AsyncSgd(step_size=0.1, rescale="times"), clients, clock=VirtualClock(lambda i, k: 0.0), stop_updates=400)
    assert np.isfinite(log.x).all()
    assert optimum(clients).shape == log.x.shape
