"""Asynchronous SGD: its rule, its steps for late gradients, and its bias to fast clients."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.async_sgd import AsyncSgd
from tests.quadratic_runs import close, quadratics, random_quadratics, run

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


@pytest.mark.parametrize("reply", ["before", "after"])
@pytest.mark.parametrize("step", [0.1, 0.05, 0.02])
def test_periodic_schedule_balances_the_gradients_that_arrive(step: float, reply: str) -> None:
    """sum over the cycle of a_i (b_k - c_i) = 0 for any step, b_k the models of the gradients: not the optimum 4/5."""
    a, c = np.array([1.0, 4.0]), np.array([0.0, 1.0])
    log = run(AsyncSgd(step_size=step, reply=reply), quadratics(a, c), CYCLE * int(6 / step))
    cycle = np.array(log.order[-4:])
    close(np.sum(a[cycle] * (np.ravel(log.bases[-4:]) - c[cycle])), 0.0)
    assert log.x[0] < 0.75
