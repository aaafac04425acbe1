"""FedDR: its invariants, its limits for every regulariser, its accuracies, and the methods that it equals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, log
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.base import Clients, Message, State
from mpifl.algorithms.common.local_solver import Gd
from mpifl.algorithms.common.proximal import L1
from mpifl.algorithms.common.splitting import AbsoluteAccuracy, RelativeAccuracy
from mpifl.algorithms.feddr import FedDR
from mpifl.algorithms.fedsplit import FedSplit
from tests.algorithms.world import World, in_rounds
from tests.quadratic_runs import Quadratic, close, optimum, quadratics, random_quadratics, run

X0 = np.array([1.0, -2.0, 0.5])


def exact(eta: float = 0.5, low: float = 0.5, high: float = 3.0, kind: Any = FedDR, **more: Any) -> Any:
    """With a prox that is exact up to rounding: gradient descent, each step of which brings phi's minimiser nearer by
    the factor (q-1)/(q+1), q = (high + 1/eta)/(low + 1/eta)."""
    q = (high + 1 / eta) / (low + 1 / eta)
    count = 2 if q == 1 else ceil(log(1e-17) / log((q - 1) / (q + 1)))
    return kind(step_size=2 / (low + high + 2 / eta), local_steps=count, solver=Gd(), eta=eta, **more)


def prox(o: Quadratic, y: np.ndarray, eta: float) -> np.ndarray:
    """argmin f(x) + ||x - y||^2/(2 eta): (1 + eta A) x = y + eta A c."""
    return np.linalg.solve(np.eye(len(y)) + eta * o.matrix, y + eta * o.matrix @ o.c)


def by_formula(
    clients: Sequence[Quadratic], rounds: Iterable[Sequence[int]], alpha: float, eta: float,
    x0: np.ndarray = X0, p: np.ndarray | None = None, prox_g: Callable = lambda v: v,
) -> list[np.ndarray]:  # fmt: skip
    """xbar after each round of FedDR, from its pseudo-code."""
    n = len(clients)
    p = np.full(n, 1 / n) if p is None else p
    y, x, xhat = ([x0] * n for _ in range(3))
    xtilde = xbar = x0
    models = []
    for members in rounds:
        for i in dict.fromkeys(members):  # one drawn twice works once
            y[i] = y[i] + alpha * (xbar - x[i])
            x[i] = prox(clients[i], y[i], eta)
            new = 2 * x[i] - y[i]
            xtilde = xtilde + p[i] * (new - xhat[i])
            xhat[i] = new
        xbar = prox_g(xtilde)
        models.append(xbar)
    return models


# -- the methods that it equals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"cohort": 2}, {"cohort": 2, "weights": "samples"}, {"cohort": 3, "sampling": "samples"}],
    ids=["uniform", "weights", "drawn twice"],
)
def test_the_pseudo_code(options: dict[str, Any]) -> None:
    """FEDDR.9: every round of a run with cohorts, a relaxation and a regulariser is what Algorithm 1 says, weights p_i
    in the server's sum alone; the increment of a client that is drawn twice is added once."""
    clients, eta, tau = random_quadratics(3, 5), 0.7, 0.2
    log, members = in_rounds(exact(eta, alpha=1.3, regulariser=L1(tau=tau), **options), clients, 40, x0=X0)
    p = np.array([o.samples for o in clients]) / sum(o.samples for o in clients) if "weights" in options else None

    def soft(v: np.ndarray) -> np.ndarray:
        return np.sign(v) * np.maximum(np.abs(v) - eta * tau, 0)

    assert ({len(m) for m in members} == {2}) == ("sampling" not in options)
    close(log.models, by_formula(clients, members, 1.3, eta, p=p, prox_g=soft))


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["x0", "mean"])
def test_both_starts_reach_the_optimum(init: str) -> None:
    """FEDDR.5: Both starts reach the optimum; `mean` begins with everybody, and xtilde is then the mean of xhat_i = 2
    prox(x^0) - x^0."""
    clients = random_quadratics(7, 5)
    log, members = in_rounds(exact(alpha=1.5, cohort=2, init=init), clients, 200, x0=X0)
    close(log.x, optimum(clients))
    first = list(range(5)) if init == "mean" else members[0]
    assert members[0] == first and {len(m) for m in members[1:]} == {2}
    start = np.zeros(3) + X0
    for i in first:
        start = start + (2 * prox(clients[i], X0, 0.5) - X0 - X0) / 5
    close(log.models[0], start)
    if init == "mean":
        close(log.models[0], np.mean([2 * prox(o, X0, 0.5) - X0 for o in clients], axis=0))


# -- accuracies --------------------------------------------------------------------------------------------------------


def steps_needed(o: Quadratic, y: np.ndarray, old: np.ndarray, eta: float, step: float, bound: Callable) -> int:
    """Steps of gradient descent from the old x_i until eta ||grad phi|| <= bound(distance moved)."""
    x = old
    for count in range(10_000):
        g = o.gradient(x) + (x - y) / eta
        if eta * np.linalg.norm(g) <= bound(np.linalg.norm(x - old)):
            return count
        x = x - step * g
    raise AssertionError


@pytest.mark.parametrize("accuracy", [AbsoluteAccuracy(M=0.3), RelativeAccuracy(theta=0.2)], ids=lambda a: a.name)
def test_accuracy_is_kept_and_no_more(accuracy: Any) -> None:
    """At every contact ||x_i - prox(y_i)|| <= eps, with eps_k^2 = M/(2 (k+1)^2) for the k-th global model or
    eps = theta ||x_i - old x_i||, after just the steps that the certificate eta ||grad phi|| needs."""
    clients, eta, step = random_quadratics(13, 4), 0.6, 0.2
    algorithm = FedDR(step_size=step, solver=Gd(), eta=eta, alpha=1.5, accuracy=accuracy)
    server = algorithm.init_server(X0, Clients(np.ones(4, int)))
    states = [algorithm.init_client(X0, i) for i in range(4)]
    counts = []
    for k in range(1, 16):  # the k-th global model comes of this round
        sent = [algorithm.message(server, i)._replace(version=k - 1) for i in range(4)]
        for i, state in enumerate(states):
            before = State(**vars(state))
            update = algorithm.train(state, sent[i], clients[i])
            counts.append(update.local_steps)

            def bound(moved: float, k: int = k) -> float:
                return (0.15 / (k + 1) ** 2) ** 0.5 if accuracy.name == "absolute" else 0.2 * moved

            y = before.y + 1.5 * (sent[i].vectors[0] - before.x)
            close(state.y, y)
            assert np.linalg.norm(state.x - prox(clients[i], y, eta)) <= bound(np.linalg.norm(state.x - before.x))
            assert update.local_steps == steps_needed(clients[i], y, before.x, eta, step, bound)
            algorithm.receive(server, i, update, 0)
        algorithm.aggregate(server)
    assert max(counts) > 1


def test_accuracy_ends_at_its_step_limit() -> None:
    """A contact takes at_most steps; none where the model is no number any more (its answer the loop would refuse)."""
    clients = quadratics([4.0], [1.0])
    for accuracy in (AbsoluteAccuracy(M=1e-9, at_most=7), RelativeAccuracy(theta=1e-9, at_most=7)):
        algorithm = FedDR(step_size=1e-6, solver=Gd(), accuracy=accuracy)
        for x0, steps in ((3.0, 7), (np.nan, 0)):
            assert World(algorithm, clients, np.array([x0])).contact(0).local_steps == steps
    with np.errstate(over="ignore"):
        update = World(
            FedDR(step_size=100.0, solver=Gd(), accuracy=AbsoluteAccuracy()), clients, np.array([3.0])
        ).contact(0)
    assert update.local_steps < 100  # it diverges: the end is where squares overflow


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "accuracy", [AbsoluteAccuracy(M=1e-60, at_most=900), RelativeAccuracy(theta=1e-30, at_most=900)], ids=str
)
def test_rounding_ends_a_contact(accuracy: Any, dtype: Any) -> None:
    """An accuracy that no number of this type has: the steps end where eta ||grad phi|| is eps_machine (||x|| + ||y||).

    phi's Hessian is a + 1/eta, diagonal here, so x - prox shrinks by 1 - step (a + 1/eta) a step, by a half or more;
    rounding makes a step or two of difference."""
    a, c, eta, step = np.array([1.0, 2.0, 3.0]), np.array([0.3, 1.7, -1.1]), 0.6, 0.15
    algorithm = FedDR(step_size=step, solver=Gd(), eta=eta, alpha=1.5, accuracy=accuracy)
    client = Quadratic(a.astype(dtype), c.astype(dtype))
    x0 = X0.astype(dtype)
    state = algorithm.init_client(x0, 0)
    H = a + 1 / eta
    rates, goal = 1 - step * H, (a * c + X0 / eta) / H
    assert (np.abs(rates) < 0.7).all()
    count = 0
    while True:
        left = rates**count * (X0 - goal)
        if eta * np.linalg.norm(H * left) <= np.finfo(dtype).eps * (np.linalg.norm(goal + left) + np.linalg.norm(X0)):
            break
        count += 1
    assert 20 < count < 100
    update = algorithm.train(state, Message((x0,)), client)
    assert abs(update.local_steps - count) <= 2
    close(state.x, goal, 4 * np.finfo(dtype).eps)


# -- budgets, wire, configuration --------------------------------------------------------------------------------------
def test_budget_of_steps_is_warm_started() -> None:
    """Local steps: y <- y - s (grad f_i(y) + (y - y_i)/eta) from the old x_i."""
    clients = quadratics([[1.0, 2, 3]], [[1.0, 0, -1]])
    log = run(FedDR(step_size=0.1, local_steps=3, eta=2.0, alpha=1.5), clients, [0, 0], x0=X0)
    y = x = xbar = X0
    for model in log.models:
        y = y + 1.5 * (xbar - x)
        for _ in range(3):
            x = x - 0.1 * (clients[0].gradient(x) + (x - y) / 2)
        xbar = 2 * x - y
        close(model, xbar)


def test_penalty_is_the_regulariser() -> None:
    assert FedDR(regulariser=L1(tau=0.5)).penalty(np.array([1.0, -3.0])) == 2.0
    assert FedDR().penalty(X0) == 0


# -- FedSplit: alpha = 2, no regulariser, all clients ------------------------------------------------------------------
def test_fedsplit_by_hand_and_bit_for_bit() -> None:
    """FEDDR.1: z_i <- z_i + 2 (prox(2 X - z_i) - X), X <- mean z_i, from z_i = X = x^0; and bit for bit FedDR with
    alpha = 2."""
    clients, order = random_quadratics(1, 4), list(range(4)) * 25
    log = run(exact(kind=FedSplit), clients, order, x0=X0)
    z, x = [X0] * 4, X0
    for model in log.models:
        z = [z[i] + 2 * (prox(o, 2 * x - z[i], 0.5) - x) for i, o in enumerate(clients)]
        x = np.mean(z, axis=0)
        close(model, x)
    other = run(exact(kind=FedDR, alpha=2.0), clients, order, x0=X0)
    assert all((a == b).all() for a, b in zip(log.models, other.models, strict=True))
