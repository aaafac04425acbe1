"""Asynchronous SGD: its rule, its steps for late gradients, and its bias to fast clients."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.async_sgd import AsyncSgd
from mpifl.algorithms.base import Clients
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from mpifl.errors import ConfigError
from tests.quadratic_runs import Quadratic, close, optimum, quadratics, random_quadratics, run

CYCLE = [0, 0, 0, 1]
RULES = ("constant", "adaptive", "drop", "inverse")


@pytest.mark.parametrize("rule", RULES)
def test_without_delay_it_is_sgd(rule: str) -> None:
    """One client: every gradient is fresh, and x <- x - eta grad f(x) under each rule."""
    clients = random_quadratics(1, 1)
    log = run(AsyncSgd(step_size=0.2, step_rule=rule), clients, [0] * 30, x0=1.0)
    close(log.models, [clients[0].steps(np.ones(3), 0.2, k) for k in range(1, 31)])
    assert {row[3] for row in log.updates} == {0}


@pytest.mark.parametrize("reply", ["before", "after"])
@pytest.mark.parametrize("rule", RULES)
def test_DA_1(rule: str, reply: str) -> None:
    """constant, adaptive, drop, inverse: x <- x - eta_t grad f_i(base) in a stale order, by hand."""
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


def test_T4() -> None:
    """Rates 3:1, curvatures 1 and 4: 4/7 as the step goes to 0 (extrapolated), the optimum is 4/5."""
    clients = quadratics([1, 4], [0, 1])
    close(optimum(clients), [0.8])
    limits = []
    for step in (0.02, 0.01, 0.005):
        limits.append(float(np.mean(run(AsyncSgd(step_size=step), clients, CYCLE * int(2.5 / step)).bases[-4:])))
    errors = np.array(limits) - 4 / 7
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)  # of first order in the step
    assert 2 * limits[2] - limits[1] == pytest.approx(4 / 7, abs=1e-4)


@pytest.mark.parametrize("reply", ["before", "after"])
def test_it_is_fedbuff_with_a_buffer_of_one(reply: str) -> None:
    """K = 1, M = 1, eta_g = 1."""
    clients = random_quadratics(3, 4)
    order = np.random.default_rng(0).integers(0, 4, 60).tolist()
    one = run(AsyncSgd(step_size=0.1, reply=reply, step_weights="relative"), clients, order, x0=1.0)
    fedbuff = FedBuff(step_size=0.1, reply=reply, step_weights="relative", trigger=Trigger(every=1))
    close(one.models, run(fedbuff, clients, order, x0=1.0).models)


def test_dropping_loses_a_client_that_is_always_late() -> None:
    """Client 1 of two comes once in ten: its gradients are all too late, and the limit is client 0's optimum."""
    clients = quadratics([1, 4], [3, 1])
    log = run(AsyncSgd(step_size=0.1, step_rule="drop"), clients, ([0] * 9 + [1]) * 40)
    close(log.x, [3.0])


@pytest.mark.parametrize("rule", RULES)
def test_a_late_gradient_does_less_harm(rule: str) -> None:
    """One gradient that is 60 steps old moves the model off the optimum by eta_t |grad|, by formula."""
    clients = quadratics([1, 1], [0, 0])
    log = run(AsyncSgd(step_size=0.5, step_rule=rule), clients, [0] * 60 + [1], x0=8.0)
    eta = {"constant": 0.5, "adaptive": 0.5 / 60, "drop": 0.0, "inverse": 0.5 * 2 / 61}[rule]
    close(log.x, [8 * 0.5**60 - eta * 8])


def test_one_vector_each_way_and_one_gradient() -> None:
    log = run(AsyncSgd(), random_quadratics(6, 3), [0, 1, 2] * 2)
    assert {len(m.vectors) for _, m in log.sent} == {1} == {AsyncSgd.vectors_down}
    assert {len(u.vectors) for _, u in log.consumed} == {1} == {AsyncSgd.vectors_up}
    assert {row[4] for row in log.updates} == {1}


@pytest.mark.parametrize("rule", RULES)
def test_float32_stays(rule: str) -> None:
    algorithm = AsyncSgd(step_size=0.1, step_rule=rule, L=2.0, step_weights="samples")
    x0 = np.ones(3, np.float32)
    server, client = algorithm.init_server(x0, Clients(np.array([1, 2]))), algorithm.init_client(x0, 0)
    objective = Quadratic(np.ones(3, np.float32), np.zeros(3, np.float32), 1, 1 / 3, 2)
    for tau in (0, 9):
        update = algorithm.train(client, algorithm.message(server, 0), objective)
        algorithm.receive(server, 0, update, tau)
        algorithm.aggregate(server)
        assert {v.dtype for v in (*update.vectors, server.x, server.step)} == {x0.dtype}


@pytest.mark.parametrize(("key", "value"), [("step_rule", "late"), ("L", 0.0), ("step_size", 0.0)])
def test_wrong_values(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        AsyncSgd(**{key: value})  # type: ignore[arg-type]


def test_deferred_replies_are_refused() -> None:
    with pytest.raises(ConfigError, match="reply"):
        AsyncSgd(reply="deferred").validate(3)
