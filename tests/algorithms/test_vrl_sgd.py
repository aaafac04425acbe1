"""VRL-SGD: its variables, its limits, and its warm-up."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.base import Clients
from mpifl.algorithms.vrl_sgd import VrlSgd
from mpifl.config.read import job_from_dict
from mpifl.errors import ConfigError
from tests.algorithms.test_feddr import JOB
from tests.algorithms.test_scaffold import MOMENTUM, Linear, at_the_optimum, sum_of_steps
from tests.quadratic_runs import Log, Quadratic, close, drift_point, optimum, quadratics, random_quadratics, run


@pytest.mark.parametrize("warm_up", [False, True])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_VRLSGD_1(warm_up: bool, weights: str) -> None:
    """sum delta_i = 0 (weighted as the mean is) in every round."""
    clients = random_quadratics(1, 4)
    p = np.array([o.share for o in clients]) if weights == "samples" else np.full(4, 0.25)
    largest = []

    def watch(log: Log) -> None:
        assert log.worker and log.link
        if len(log.link.in_flight) == 4:  # all have begun the round
            deltas = np.array([log.worker.states[i].delta for i in range(4)])
            close(p @ deltas, np.zeros(3))
            largest.append(np.abs(deltas).max())

    algorithm = VrlSgd(step_size=0.05, local_steps=4, warm_up=warm_up, weights=weights)
    run(algorithm, clients, [0, 1, 2, 3] * 40, x0=1.0, watch=watch)
    assert len(largest) >= 39
    assert max(largest) > 0.5


@pytest.mark.parametrize("warm_up", [False, True])
def test_rule(warm_up: bool) -> None:
    """By hand; with warm-up the first period is a step of gradient descent, and sets delta_i = g_i - mean g at x_0."""
    clients = random_quadratics(2, 4)
    eta, k = 0.05, 5
    log = run(VrlSgd(step_size=eta, local_steps=k, warm_up=warm_up), clients, [2, 0, 3, 1] * 40, x0=1.0)
    xhat, delta = np.ones(3), np.zeros((4, 3))
    for period, model in enumerate(log.models):
        steps = 1 if warm_up and period == 0 else k
        x = np.tile(xhat, (4, 1))
        for i, client in enumerate(clients):
            for _ in range(steps):
                x[i] = x[i] - eta * (client.gradient(x[i]) - delta[i])
        xhat = x.mean(0)
        delta += (xhat - x) / (eta * steps)
        close(model, xhat)
        if warm_up and period == 0:
            g = np.array([o.gradient(np.ones(3)) for o in clients])
            close(delta, g - g.mean(0))
            close(model, np.ones(3) - eta * g.mean(0))
    assert [row[4] for row in log.updates[:8]] == [1 if warm_up else k] * 4 + [k] * 4


@pytest.mark.parametrize("warm_up", [False, True])
def test_the_limit_is_the_optimum(warm_up: bool) -> None:
    """x -> x*, delta_i -> grad f_i(x*), where FedAvg drifts; with weights s_i/S that of the weighted mean."""
    clients = random_quadratics(3, 5, low=1.5)
    log = run(VrlSgd(step_size=0.05, local_steps=4, warm_up=warm_up), clients, list(range(5)) * 150)
    at_the_optimum(log, clients)
    assert np.abs(drift_point(clients, 0.05, 4) - optimum(clients)).max() > 1e-2
    weighted = run(VrlSgd(step_size=0.05, local_steps=4, weights="samples"), clients, list(range(5)) * 150)
    close(weighted.x, optimum(clients, [o.share for o in clients]))


@pytest.mark.parametrize("warm_up", [False, True])
def test_momentum_keeps_the_limit(warm_up: bool) -> None:
    """Heavy-ball steps: the optimum, and delta_i = grad f_i there. (With eta Q as printed it diverges.)"""
    clients = random_quadratics(10, 4, low=1.5)
    log = run(VrlSgd(**MOMENTUM, warm_up=warm_up), clients, [0, 1, 2, 3] * 150)  # type: ignore[arg-type]
    at_the_optimum(log, clients)


@pytest.mark.parametrize("warm_up", [False, True])
def test_delta_i_of_constant_gradients(warm_up: bool) -> None:
    """f_i = <g_i, x>, momentum: delta_i = g_i - mean g after the first round, and x moves along the mean."""
    clients = quadratics([[1, 1], [1, 1], [1, 1]], [[1, -2], [0.5, 4], [3, 0]], kind=Linear)
    log = run(VrlSgd(**MOMENTUM, warm_up=warm_up), clients, [0, 1, 2] * 5)  # type: ignore[arg-type]
    assert log.worker
    close([log.worker.states[i].delta for i in range(3)], [[-0.5, -8 / 3], [-1, 10 / 3], [1.5, -2 / 3]])
    ways = np.cumsum([0.02 if warm_up else sum_of_steps(10), *[sum_of_steps(10)] * 4])
    close(log.models, -np.outer(ways, [1.5, 2 / 3]))


def test_T1() -> None:
    """a = (1, 10), c = (1, -1), eta = 0.05, k = 10: -9/11."""
    log = run(VrlSgd(step_size=0.05, local_steps=10), quadratics([1, 10], [1, -1]), [0, 1] * 250)
    close(log.x, [-0.8181818181818182])


def test_one_vector_each_way() -> None:
    log = run(VrlSgd(local_steps=2), random_quadratics(6, 3), [0, 1, 2] * 2)
    assert {len(m.vectors) for _, m in log.sent} == {1} == {VrlSgd.vectors_down}
    assert {len(u.vectors) for _, u in log.consumed} == {1} == {VrlSgd.vectors_up}


def test_float32_stays() -> None:
    algorithm = VrlSgd(step_size=0.1, local_steps=2, warm_up=True, weights="samples")
    x0 = np.ones(3, np.float32)
    server, client = algorithm.init_server(x0, Clients(np.array([1, 2]))), algorithm.init_client(x0, 0)
    objective = Quadratic(np.ones(3, np.float32), np.array([1, 2, 3], np.float32))
    for round in range(3):
        algorithm.begin_round(server, [0, 1])
        message = algorithm.message(server, 0)._replace(round=round)
        update = algorithm.train(client, message, objective)
        algorithm.receive(server, 0, update, 0)
        algorithm.aggregate(server)
        assert {v.dtype for v in (*update.vectors, server.x, server.sum, client.x, client.delta)} == {x0.dtype}


@pytest.mark.parametrize(("key", "value"), [("local_steps", 0), ("weights", "all"), ("step_size", 0.0)])
def test_wrong_values(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        VrlSgd(**{key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("key", "value"), [("step_weights", "relative"), ("local_epochs", 2)])
def test_unequal_steps_are_no_option(key: str, value: object) -> None:
    """Clients' own steps or numbers of steps would take sum delta_i away from 0."""
    with pytest.raises(ConfigError, match=f"^algorithm.{key}={value}: no such key"):
        job_from_dict({**JOB, "algorithm": {"name": "vrl-sgd", key: value}})
    with pytest.raises(TypeError):
        VrlSgd(**{key: value})  # type: ignore[arg-type]
