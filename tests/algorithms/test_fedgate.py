"""FedGATE: its tracking variables, its limits, and FedCOMGATE's quantiser."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.base import Clients
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedgate import FedGate, quantise
from mpifl.config.read import job_from_dict
from mpifl.errors import ConfigError
from mpifl.rng import stream
from tests.algorithms.test_feddr import JOB
from tests.algorithms.test_scaffold import MOMENTUM, Linear, at_the_optimum, sum_of_steps
from tests.quadratic_runs import Log, Quadratic, close, optimum, quadratics, random_quadratics, run


@pytest.mark.parametrize("levels", [None, 1, 5])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_FEDGATE_1(levels: int | None, weights: str) -> None:
    """sum delta_i = 0 (weighted as the mean is), in every round, whatever gamma and quantiser."""
    clients = random_quadratics(1, 4)
    p = np.array([o.share for o in clients]) if weights == "samples" else np.full(4, 0.25)
    largest = []

    def watch(log: Log) -> None:
        assert log.worker and log.link
        if len(log.link.in_flight) == 4:  # all have begun the round
            deltas = np.array([log.worker.states[i].delta for i in range(4)])
            close(p @ deltas, np.zeros(3))
            largest.append(np.abs(deltas).max())

    algorithm = FedGate(step_size=0.05, local_steps=4, server_step=0.6, levels=levels, weights=weights)
    run(algorithm, clients, [0, 1, 2, 3] * 40, x0=1.0, watch=watch)
    assert len(largest) >= 39
    assert max(largest) > 0.5


@pytest.mark.parametrize("gamma", [1.0, 0.7, 1.3])
def test_rule(gamma: float) -> None:
    """By hand, with Dbar sent in clear: what the client finds from two server models is the same."""
    clients = random_quadratics(2, 4)
    eta, steps = 0.05, 5
    log = run(FedGate(step_size=eta, local_steps=steps, server_step=gamma), clients, [2, 0, 3, 1] * 40, x0=1.0)
    x, delta = np.ones(3), np.zeros((4, 3))
    for model in log.models:
        D = np.zeros((4, 3))
        for i, client in enumerate(clients):
            w = x
            for _ in range(steps):
                w = w - eta * (client.gradient(w) - delta[i])
            D[i] = x - w
        x = x - gamma * D.mean(0)
        delta += (D - D.mean(0)) / (eta * steps)
        close(model, x)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_the_limit_is_the_optimum(gamma: float) -> None:
    """Any gamma: x -> x*, delta_i -> grad f_i(x*); with weights s_i/S the optimum of the weighted mean."""
    clients = random_quadratics(3, 5, low=1.5)
    log = run(FedGate(step_size=0.05, local_steps=4, server_step=gamma), clients, list(range(5)) * 250)
    at_the_optimum(log, clients)
    weighted = run(FedGate(step_size=0.05, local_steps=4, weights="samples"), clients, list(range(5)) * 250)
    close(weighted.x, optimum(clients, [o.share for o in clients]))


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_momentum_keeps_the_limit(gamma: float) -> None:
    """Heavy-ball steps: the optimum, and delta_i = grad f_i there. (With eta Q as printed it diverges.)"""
    clients = random_quadratics(10, 4, low=1.5)
    log = run(FedGate(**MOMENTUM, server_step=gamma), clients, [0, 1, 2, 3] * 150)  # type: ignore[arg-type]
    at_the_optimum(log, clients)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_delta_i_of_constant_gradients(gamma: float) -> None:
    """f_i = <g_i, x>, momentum: delta_i = g_i - mean g after the first round, and x moves along the mean."""
    clients = quadratics([[1, 1], [1, 1], [1, 1]], [[1, -2], [0.5, 4], [3, 0]], kind=Linear)
    log = run(FedGate(**MOMENTUM, server_step=gamma), clients, [0, 1, 2] * 5)  # type: ignore[arg-type]
    assert log.worker
    close([log.worker.states[i].delta for i in range(3)], [[-0.5, -8 / 3], [-1, 10 / 3], [1.5, -2 / 3]])
    close(log.models, -gamma * sum_of_steps(10) * np.outer(np.arange(1, 6), [1.5, 2 / 3]))


def test_T1() -> None:
    """a = (1, 10), c = (1, -1), eta = 0.05, Q = 10: -9/11, where FedAvg stops at -0.4268843393694543."""
    clients = quadratics([1, 10], [1, -1])
    close(run(FedGate(step_size=0.05, local_steps=10), clients, [0, 1] * 250).x, [-0.8181818181818182])
    close(run(FedAvg(step_size=0.05, local_steps=10), clients, [0, 1] * 250).x, [-0.4268843393694543])


def test_first_round_is_fedavg() -> None:
    """All delta_i are 0 at first."""
    clients = random_quadratics(4, 3)
    gate = run(FedGate(step_size=0.1, local_steps=3), clients, [0, 1, 2], x0=1.0)
    close(gate.x, run(FedAvg(step_size=0.1, local_steps=3), clients, [0, 1, 2], x0=1.0).x)


@pytest.mark.parametrize("levels", [1, 4, 100])
def test_quantiser(levels: int) -> None:
    """Multiples of max|v|/levels, next to v, and equal to v in the mean over the draws."""
    v = np.array([0.3, -1.7, 0.0, 0.05, 1.1])
    unit = 1.7 / levels
    draws = np.array([quantise(v, levels, stream(0, "test", round=r)) for r in range(4000)])
    close(draws / unit, np.round(draws / unit), 1e-9)  # the quotient rounds
    assert (np.abs(draws - v) < unit * (1 + 1e-9)).all()
    # each entry's variance is at most unit^2/4, so 5 standard errors of the mean are 2.5 unit/sqrt(4000)
    assert (np.abs(draws.mean(0) - v) < 2.5 * unit / 4000**0.5).all()
    assert (draws[:, 1] == draws[0, 1]).all()  # the largest is on a level
    close(quantise(0 * v, levels, stream(0, "test")), 0 * v)


def test_FedCOMGATE_reaches_the_optimum() -> None:
    """The error of a quantised D_i falls with D_i, so the limit is exact with four levels: no drift, no noise floor."""
    clients = random_quadratics(5, 4, low=1.5)
    algorithm = FedGate(step_size=0.05, local_steps=4, levels=4, server_step=0.5)
    log = run(algorithm, clients, [0, 1, 2, 3] * 350)
    close(log.x, optimum(clients))
    again = run(algorithm, clients, [3, 1, 2, 0] * 50)  # the draws belong to client and round
    close(again.models, log.models[:50])
    sent = {np.unique(np.abs(u.vectors[0]) / np.abs(u.vectors[0]).max()).size for _, u in log.consumed[:40]}
    assert max(sent) <= 5


def test_one_vector_each_way() -> None:
    """Dbar is found from the models: down x, up D_i."""
    log = run(FedGate(local_steps=2), random_quadratics(6, 3), [0, 1, 2] * 2)
    assert {len(m.vectors) for _, m in log.sent} == {1} == {FedGate.vectors_down}
    assert {len(u.vectors) for _, u in log.consumed} == {1} == {FedGate.vectors_up}


@pytest.mark.parametrize("levels", [None, 3])
def test_float32_stays(levels: int | None) -> None:
    algorithm = FedGate(step_size=0.1, local_steps=2, server_step=0.7, levels=levels, weights="samples")
    x0 = np.ones(3, np.float32)
    server, client = algorithm.init_server(x0, Clients(np.array([1, 2]))), algorithm.init_client(x0, 0)
    objective = Quadratic(np.ones(3, np.float32), np.array([1, 2, 3], np.float32))
    for _ in range(3):
        algorithm.begin_round(server, [0, 1])
        update = algorithm.train(client, algorithm.message(server, 0), objective)
        algorithm.receive(server, 0, update, 0)
        algorithm.aggregate(server)
        found = [*update.vectors, server.x, server.D, client.x, client.D, client.delta]
        assert {v.dtype for v in found} == {x0.dtype}


@pytest.mark.parametrize(("key", "value"), [("server_step", 0.0), ("levels", 0), ("step_size", 0.0)])
def test_wrong_values(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        FedGate(**{key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("key", "value"), [("step_weights", "relative"), ("local_epochs", 2)])
def test_unequal_steps_are_no_option(key: str, value: object) -> None:
    """Clients' own steps or numbers of steps would take sum delta_i away from 0."""
    with pytest.raises(ConfigError, match=f"^algorithm.{key}={value}: no such key"):
        job_from_dict({**JOB, "algorithm": {"name": "fedgate", key: value}})
    with pytest.raises(TypeError):
        FedGate(**{key: value})  # type: ignore[arg-type]
