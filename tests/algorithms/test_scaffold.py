"""SCAFFOLD: its control variates, its limits, and how it relates to FedAvg, FedGATE and VRL-SGD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from mpifl.algorithms.base import Clients, State
from mpifl.algorithms.common.local_solver import Gd, Sgd
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedgate import FedGate
from mpifl.algorithms.scaffold import Scaffold
from mpifl.algorithms.vrl_sgd import VrlSgd
from mpifl.errors import ConfigError
from mpifl.rng import stream
from tests.quadratic_runs import Log, Quadratic, close, drift_point, optimum, quadratics, random_quadratics, run


@dataclass
class Noisy(Quadratic):
    """A quadratic whose gradient has fresh noise in every local step: the "rows" of a step are its noise."""

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list:
        return list(stream(int(1e6 * abs(self.c[0])), "noise", round=round).standard_normal((steps, self.c.size)))

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        return super().gradient(x) + (rows if isinstance(rows, np.ndarray) else 0.0)


class Linear(Quadratic):
    """f(x) = <c, x>: one gradient everywhere."""

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        return self.c.copy()


class Passes(Quadratic):
    """A quadratic an epoch of which is `samples` batches; batch j adds (-1)^j/(1 + j) to each entry of the gradient."""

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list:
        return [j % self.samples for j in range(epochs * self.samples if epochs else steps)]

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        return super().gradient(x) + ((-1) ** rows / (1 + rows) if isinstance(rows, int) else 0.0)


def cohorts(algorithm: Scaffold, clients: list, rounds: int) -> list[list[int]]:
    """The members of the first rounds, drawn as the run draws them."""
    n = len(clients)
    drawn = algorithm.participation(Clients(np.array([o.samples for o in clients])), 0)
    assert n == drawn.clients
    return [drawn.sample(r) for r in range(rounds)]


def follow(algorithm: Scaffold, clients: list, rounds: int, **more: object) -> Log:
    members = cohorts(algorithm, clients, rounds)
    return run(algorithm, clients, [i for m in members for i in dict.fromkeys(m)], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("cohort", [2, 5])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_SCAFFOLD_1(option: str, cohort: int, weights: str) -> None:
    """c = mean c_i: with what has come in this round, and what is on its way, after every event."""
    clients = random_quadratics(1, 5)
    p = np.array([o.share for o in clients]) if weights == "samples" else np.full(5, 0.2)
    algorithm = Scaffold(step_size=0.1, local_steps=3, cohort=cohort, option=option, weights=weights)
    seen = []

    def watch(log: Log) -> None:
        assert log.worker and log.link
        mine = [log.worker.states[i].c for i in range(5)]
        flying = sum((p[i] * u.vectors[1] for i, u in log.link.in_flight.items()), np.zeros(3))
        close(log.server.c + log.server.dc + flying, p @ np.array(mine))
        if not log.server.dc.any() and not log.link.in_flight:  # between two rounds
            close(log.server.c, p @ np.array(mine))
            seen.append(np.abs(log.server.c).max())

    follow(algorithm, clients, 20, watch=watch)
    assert len(seen) == 20
    assert max(seen) > 0.1


@pytest.mark.parametrize("option", ["I", "II"])
def test_SCAFFOLD_2(option: str) -> None:
    """Two of five clients a round, several local steps: the limit is the optimum, where FedAvg drifts."""
    clients = random_quadratics(2, 5, low=1.5)
    algorithm = Scaffold(step_size=0.05, local_steps=4, cohort=2, option=option)
    close(follow(algorithm, clients, 400).x, optimum(clients))
    assert np.abs(drift_point(clients, 0.05, 4) - optimum(clients)).max() > 1e-2


def test_SCAFFOLD_3() -> None:
    """c_i tends to the gradient of f_i at the optimum, and c to 0."""
    clients = random_quadratics(3, 5, low=1.5)
    for cohort in (2, 5):
        log = follow(Scaffold(step_size=0.05, local_steps=4, cohort=cohort), clients, 400)
        assert log.worker
        x = optimum(clients)
        for i, client in enumerate(clients):
            close(log.worker.states[i].c, client.gradient(x))
        close(log.server.c, np.zeros(3))


@pytest.mark.parametrize("server_step", [1.0, 0.5])
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("cohort", [2, 4])
def test_SCAFFOLD_4(option: str, cohort: int, server_step: float) -> None:
    """Both options, all clients or some, any eta_g: by hand, iterate by iterate, and the optimum in the end."""
    clients = random_quadratics(4, 4, low=1.5)
    eta, steps, rounds = 0.05, 5, 400
    algorithm = Scaffold(step_size=eta, local_steps=steps, cohort=cohort, option=option, server_step=server_step)
    log = follow(algorithm, clients, rounds, x0=1.0)
    x, c, ci = np.ones(3), np.zeros(3), np.zeros((4, 3))
    for model, members in zip(log.models[:30], cohorts(algorithm, clients, 30), strict=True):
        dx, dc = np.zeros(3), np.zeros(3)
        for i in members:
            y = x
            for _ in range(steps):
                y = y - eta * (clients[i].gradient(y) - ci[i] + c)
            new = clients[i].gradient(x) if option == "I" else ci[i] - c + (x - y) / (steps * eta)
            dx, dc, ci[i] = dx + (y - x) / len(members), dc + (new - ci[i]) / len(members), new
        x, c = x + server_step * dx, c + len(members) / 4 * dc
        close(model, x)
    close(log.x, optimum(clients))


@pytest.mark.parametrize("kind", [Quadratic, Noisy])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_SCAFFOLD_5(kind: type[Quadratic], weights: str) -> None:
    """All clients, option II, eta_g = 1: FedGATE with gamma = 1 and VRL-SGD, iterate by iterate, batches or none."""
    base = random_quadratics(5, 4)
    clients = [kind(o.a, o.c, o.samples, o.share, o.clients) for o in base]
    options = {"step_size": 0.05, "local_steps": 6, "weights": weights}
    order = [0, 1, 2, 3] * 60
    scaffold = run(Scaffold(**options), clients, order, x0=1.0)  # type: ignore[arg-type]
    gate = run(FedGate(**options), clients, order, x0=1.0)  # type: ignore[arg-type]
    vrl = run(VrlSgd(**options), clients, order, x0=1.0)  # type: ignore[arg-type]
    close(gate.models, scaffold.models)
    close(vrl.models, scaffold.models)
    assert scaffold.worker and scaffold.link and gate.worker and vrl.worker
    for i in range(4):  # delta_i is c_i - c with the c_i of the round's start: before the change that is on its way
        then = scaffold.worker.states[i].c - scaffold.link.in_flight[i].vectors[1]
        close(gate.worker.states[i].delta, then - scaffold.server.c)
        close(vrl.worker.states[i].delta, then - scaffold.server.c)


@pytest.mark.parametrize("option", ["I", "II"])
def test_SCAFFOLD_6(option: str) -> None:
    """All control variates are 0 at first: the first round is FedAvg's, whoever is drawn."""
    clients = random_quadratics(6, 5)
    for cohort in (2, 5):
        options = {"step_size": 0.1, "local_steps": 4, "cohort": cohort}
        scaffold = Scaffold(option=option, **options)  # type: ignore[arg-type]
        first = cohorts(scaffold, clients, 1)[0]
        one = run(scaffold, clients, first, x0=1.0)
        other = run(FedAvg(**options), clients, first, x0=1.0)  # type: ignore[arg-type]
        close(one.models, other.models)


@pytest.mark.parametrize("option", ["I", "II"])
def test_T1(option: str) -> None:
    """a = (1, 10), c = (1, -1), eta = 0.05, Q = 10: the optimum -9/11, where FedAvg stops at -0.4268843393694543."""
    log = run(Scaffold(step_size=0.05, local_steps=10, option=option), quadratics([1, 10], [1, -1]), [0, 1] * 350)
    close(log.x, [-0.8181818181818182])


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("eta", [0.1, 0.3])
def test_T2(option: str, eta: float) -> None:
    """f1 = x^2, f2 = -x^2, Q = 2: x_{k+1} - x_k = 4 eta^2 (x_k - x_{k-1}), so x ends at 1/(1 - 4 eta^2), where FedAvg
    grows by 1 + 4 eta^2 in each round for ever."""
    log = run(Scaffold(step_size=eta, local_steps=2, option=option), quadratics([2, -2], [0, 0]), [0, 1] * 60, x0=1.0)
    close(np.ravel(log.models), (1 - (4 * eta**2) ** np.arange(2, 62)) / (1 - 4 * eta**2))


def test_T4() -> None:
    """a = (1, 4), c = (0, 1), one of the two clients a round: 4/5."""
    clients = quadratics([1, 4], [0, 1])
    close(follow(Scaffold(step_size=0.05, local_steps=3, cohort=1), clients, 400).x, [0.8])


def test_weights_by_samples() -> None:
    """weights: samples minimises sum (s_i/S) f_i, whatever the sampling; uniform minimises the plain mean."""
    clients = random_quadratics(7, 4, low=1.5)
    shares = [o.share for o in clients]
    for sampling in ("uniform", "samples"):
        options = {"step_size": 0.05, "local_steps": 4, "cohort": 2, "sampling": sampling}
        close(follow(Scaffold(weights="samples", **options), clients, 500).x, optimum(clients, shares))  # type: ignore[arg-type]
        close(follow(Scaffold(**options), clients, 500).x, optimum(clients))  # type: ignore[arg-type]
    assert np.abs(optimum(clients) - optimum(clients, shares)).max() > 1e-2


def test_unequal_client_steps_keep_the_limit() -> None:
    """Steps alpha n s_i/S differ between clients; the limit is still the optimum of the plain mean."""
    clients = random_quadratics(8, 4, low=1.5)
    algorithm = Scaffold(step_size=0.02, step_weights="relative", local_steps=4)
    close(follow(algorithm, clients, 800).x, optimum(clients))


def at_the_optimum(log: Log, clients: Sequence[Quadratic]) -> None:
    """The model is the optimum, and delta_i = grad f_i there (FedGATE, VRL-SGD)."""
    close(log.x, optimum(clients))
    assert log.worker
    for i, client in enumerate(clients):
        close(log.worker.states[i].delta, client.gradient(optimum(clients)))


MOMENTUM = {"step_size": 0.02, "local_steps": 10, "solver": Sgd(momentum=0.9)}


def sum_of_steps(Q: int, eta: float = 0.02, beta: float = 0.9) -> float:
    """The way of Q steps along one and the same gradient, over it."""
    velocity = way = 0.0
    for _ in range(Q):
        velocity = beta * velocity + 1
        way += eta * velocity
    return way


@pytest.mark.parametrize("cohort", [2, 4])
@pytest.mark.parametrize("solver", [Sgd(momentum=0.9), Gd(momentum=0.9)], ids=lambda s: s.name)
def test_momentum_keeps_the_limit(cohort: int, solver: Sgd) -> None:
    """Heavy-ball steps, option II: the optimum, and c_i = grad f_i there. (With Q eta_l as printed it diverges.)"""
    clients = random_quadratics(10, 4, low=1.5)
    log = follow(Scaffold(**{**MOMENTUM, "solver": solver}, cohort=cohort), clients, 150)  # type: ignore[arg-type]
    close(log.x, optimum(clients))
    assert log.worker
    for i, client in enumerate(clients):
        close(log.worker.states[i].c, client.gradient(optimum(clients)))


def test_c_i_of_a_constant_gradient_is_that_gradient() -> None:
    """f_i = <g_i, x>, momentum, option II: c_i = g_i from the first round on, and x moves along the mean of the g_i."""
    clients = quadratics([[1, 1], [1, 1], [1, 1]], [[1, -2], [0.5, 4], [3, 0]], kind=Linear)
    log = run(Scaffold(**MOMENTUM), clients, [0, 1, 2] * 5)  # type: ignore[arg-type]
    assert log.worker
    close([log.worker.states[i].c for i in range(3)], [[1, -2], [0.5, 4], [3, 0]])
    close(log.server.c, [1.5, 2 / 3])
    close(log.models, -sum_of_steps(10) * np.outer(np.arange(1, 6), [1.5, 2 / 3]))


@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize(
    "more", [{"step_weights": "relative"}, {"local_epochs": 2}, {"local_epochs": 2, "step_weights": "samples"}], ids=str
)
def test_c_i_is_the_mean_of_the_local_gradients(more: dict, beta: float) -> None:
    """Option II: c_i+ is the mean of the gradients along the way, for any step and number of steps of client i.

    With momentum gradient j of Q is in the velocities of the Q - j + 1 steps from its own on, and weighs
    1 + beta + ... + beta^(Q-j)."""
    samples = [2, 3, 7]
    clients = [Passes(o.a, o.c, s, s / 12, 3) for o, s in zip(random_quadratics(11, 3), samples, strict=True)]
    log = run(Scaffold(step_size=0.05, local_steps=4, solver=Sgd(momentum=beta), **more), clients, [0, 1, 2] * 6)
    factors = {"relative": [0.5, 0.75, 1.75], "samples": [1 / 6, 1 / 4, 7 / 12]}.get(more.get("step_weights"), [1] * 3)
    counts = [2 * s for s in samples] if "local_epochs" in more else [4, 4, 4]
    x, c, ci = np.zeros(3), np.zeros(3), np.zeros((3, 3))
    for round in range(6):
        dys, dcs = [], []
        for i, o in enumerate(clients):
            y, v, seen = x, np.zeros(3), []
            for j in range(counts[i]):
                seen.append(o.matrix @ (y - o.c) + (-1) ** (j % o.samples) / (1 + j % o.samples))
                v = beta * v + seen[-1] - ci[i] + c
                y = y - 0.05 * factors[i] * v
            shares = [sum(beta**m for m in range(counts[i] - j)) for j in range(counts[i])]
            dys.append(y - x)
            dcs.append(np.average(seen, axis=0, weights=shares) - ci[i])
            j, update = log.consumed[3 * round + i]
            assert (j, update.local_steps) == (i, counts[i])
            close(update.vectors, (dys[i], dcs[i]))
        x, c, ci = x + np.mean(dys, 0), c + np.mean(dcs, 0), ci + dcs
        close(log.models[round], x)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_a_client_drawn_twice(weights: str) -> None:
    """It counts twice in the mean of dy and once in c, which stays the mean of the c_i."""
    clients = random_quadratics(12, 4)
    samples = np.array([o.samples for o in clients])
    p = samples / samples.sum() if weights == "samples" else np.full(4, 0.25)
    algorithm = Scaffold(step_size=0.05, local_steps=3, cohort=3, sampling="samples", weights=weights)
    drawn, log = cohorts(algorithm, clients, 30), follow(algorithm, clients, 30)
    assert sum(len(set(m)) < 3 for m in drawn) > 5
    x, c, ci = np.zeros(3), np.zeros(3), np.zeros((4, 3))
    for model, members in zip(log.models, drawn, strict=True):
        ends, dc = {}, np.zeros((4, 3))
        for i in set(members):
            y, seen = x, []
            for _ in range(3):
                seen.append(clients[i].gradient(y))
                y = y - 0.05 * (seen[-1] - ci[i] + c)
            ends[i], dc[i] = y, np.mean(seen, axis=0) - ci[i]
        x = np.average([ends[i] for i in members], axis=0, weights=samples[members] if weights == "samples" else None)
        ci = ci + dc
        c = p @ ci
        close(model, x)
    close(log.server.c, c)


def test_two_vectors_each_way() -> None:
    """Down x and c, up dy and dc: what FedPD's paper holds against it."""
    log = run(Scaffold(local_steps=2), random_quadratics(9, 3), [0, 1, 2] * 2)
    assert {len(m.vectors) for _, m in log.sent} == {2} == {Scaffold.vectors_down}
    assert {len(u.vectors) for _, u in log.consumed} == {2} == {Scaffold.vectors_up}


def test_float32_stays() -> None:
    """All states and all that is sent are of the model's dtype."""
    algorithm = Scaffold(step_size=0.1, local_steps=2, server_step=0.7, weights="samples")
    x0 = np.ones(3, np.float32)
    server, client = algorithm.init_server(x0, Clients(np.array([1, 2]))), algorithm.init_client(x0, 0)
    objective = Quadratic(np.ones(3, np.float32), np.zeros(3, np.float32))
    for _ in range(3):
        algorithm.begin_round(server, [0, 1])
        update = algorithm.train(client, algorithm.message(server, 0), objective)
        assert {v.dtype for v in update.vectors} == {x0.dtype}
        algorithm.receive(server, 0, update, 0)
        algorithm.aggregate(server)
        assert {v.dtype for s in (server, client) for v in vectors(s)} == {x0.dtype}


def vectors(state: State) -> list[np.ndarray]:
    return [v for k, v in vars(state).items() if isinstance(v, np.ndarray) and k not in ("p", "samples")]


@pytest.mark.parametrize(
    ("key", "value"), [("option", "III"), ("server_step", 0.0), ("cohort", 0), ("weights", "all"), ("step_size", -1.0)]
)
def test_wrong_values(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        Scaffold(**{key: value})  # type: ignore[arg-type]
