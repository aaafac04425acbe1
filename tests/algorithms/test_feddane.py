"""FedDANE against its formulas, its limits and its special cases."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.common.local_solver import Gd, Sgd
from mpifl.algorithms.feddane import FedDANE
from mpifl.algorithms.inexact_dane import InexactDANE
from mpifl.errors import ConfigError
from tests.algorithms.world import in_rounds
from tests.quadratic_runs import Quadratic, close, optimum, random_quadratics, run

ALL = list(range(4))


def gradient(clients: list[Quadratic], x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """sum_k p_k grad F_k(x)"""
    return sum(p * o.matrix @ (x - o.c) for p, o in zip(weights, clients, strict=True))


def solution(o: Quadratic, w: np.ndarray, correction: np.ndarray, mu: float, eta: float, steps: int) -> np.ndarray:
    """`steps` of gradient descent on F(v) + <correction, v - w> + mu/2 ||v - w||^2 from v = w."""
    v = w
    for _ in range(steps):
        v = v - eta * (o.matrix @ (v - o.c) + correction + mu * (v - w))
    return v


@pytest.mark.parametrize("kind", ["uniform", "samples"])
@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_exact_updates_by_formula(kind: str, mu: float) -> None:
    """FEDDANE.1: All clients, exact solutions (400 steps): w+ = w - mean_k (H_k + mu I)^-1 grad f(w)."""
    clients = random_quadratics(1, 4)
    p = np.array([o.share for o in clients]) if kind == "samples" else np.full(4, 1 / 4)
    algorithm = FedDANE(mu=mu, weights=kind, step_size=1 / (3 + mu), local_steps=400)
    log = run(algorithm, clients, ALL * 6, x0=[1.0, -2.0, 0.5])
    w = np.array([1.0, -2.0, 0.5])
    for before, after in zip(log.models[::2], log.models[1::2], strict=True):
        close(before, w)  # the gradients' phase leaves the model as it is
        eye = np.eye(3)
        step = sum(q * np.linalg.inv(o.matrix + mu * eye) for q, o in zip(p, clients, strict=True))
        w = w - step @ gradient(clients, w, p)
        close(after, w)


def test_gamma_t_is_gamma_0_delta_to_the_t() -> None:
    """Update t has the correction gamma_0 delta^t (g_t - grad F_k(w))."""
    clients, eye = random_quadratics(5, 4), np.full(4, 1 / 4)
    log = run(FedDANE(mu=0.3, correction=0.8, decay=0.6, step_size=0.1, local_steps=4), clients, ALL * 8)
    w = np.zeros(3)
    for t, model in enumerate(log.models[1::2]):
        g, gamma = gradient(clients, w, eye), 0.8 * 0.6**t
        w = np.mean([solution(o, w, gamma * (g - o.gradient(w)), 0.3, 0.1, 4) for o in clients], axis=0)
        close(model, w)


@pytest.mark.parametrize("variant", ["pipelined", "pipelined-memory"])
@pytest.mark.parametrize("cohort", [2, None])
def test_pipelined_rounds_one_by_one(variant: str, cohort: int | None) -> None:
    """One phase: down (w, gbar), up (w_k, grad F_k(w)); gbar is of the round before, no correction at the start."""
    clients = random_quadratics(4, 4)
    algorithm = FedDANE(mu=0.5, variant=variant, cohort=cohort, weights="samples", step_size=0.1, local_steps=3)
    log, members = in_rounds(algorithm, clients, 12, x0=1.0)
    w, gbar, memory = np.ones(3), None, {}
    for model, cohort_ in zip(log.models, members, strict=True):
        p = np.array([clients[i].samples for i in cohort_], float)
        ends = []
        for i in cohort_:
            o = clients[i]
            local = o.gradient(w) if variant == "pipelined" else memory.get(i)
            correction = 0 * w if gbar is None or local is None else gbar - local
            ends.append(solution(o, w, correction, 0.5, 0.1, 3))
            memory[i] = o.gradient(w)
        gbar, w = p / p.sum() @ [memory[i] for i in cohort_], p / p.sum() @ ends
        close(model, w)
    assert all(len(message.vectors) == 2 for _, message in log.sent)
    assert all(len(update.vectors) == 2 for _, update in log.consumed)


@pytest.mark.parametrize(("sampling", "kind", "same"), [
    ("samples", "uniform", False),  # the text
    ("uniform", "samples", True),  # the released code
    ("uniform", "uniform", False), ("samples", "uniform", True),
])  # fmt: skip
def test_sampling_weights_and_sets(sampling: str, kind: str, same: bool) -> None:
    """g_t is the mean over S_t, w+ the mean over S'_t; repeats count twice; `same_set` makes the two sets one."""
    clients = random_quadratics(6, 5)
    algorithm = FedDANE(mu=0.4, cohort=3, sampling=sampling, weights=kind, same_set=same, step_size=0.1, local_steps=4)
    log, members = in_rounds(algorithm, clients, 40, x0=1.0)
    assert all(a == b for a, b in zip(members[::2], members[1::2], strict=True)) == same
    assert len({tuple(m) for m in members[::2]}) > 5
    w = np.ones(3)
    for model, first, second in zip(log.models[1::2], members[::2], members[1::2], strict=True):
        p, q = (np.array([clients[i].samples if kind == "samples" else 1 for i in m]) for m in (first, second))
        g = p / p.sum() @ [clients[i].gradient(w) for i in first]
        ends = [solution(clients[i], w, g - clients[i].gradient(w), 0.4, 0.1, 4) for i in second]
        w = q / q.sum() @ ends
        close(model, w)


# -- Inexact DANE: everybody in both phases ----------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["uniform", "samples"])
def test_updates_by_formula_and_limit(kind: str) -> None:
    """g = mean grad F_k(w) and w+ = mean of Q steps on F_k(v) + <g - grad F_k(w), v - w> + mu/2 ||v - w||^2."""
    clients = random_quadratics(1, 4)
    p = np.array([o.samples if kind == "samples" else 1 for o in clients], float)
    p /= p.sum()
    log = run(InexactDANE(mu=1.0, weights=kind, step_size=0.1, local_steps=7), clients, list(range(4)) * 200)
    w = np.zeros(3)
    for before, after in zip(log.models[::2], log.models[1::2], strict=True):
        close(before, w)
        g, ends = p @ [o.gradient(w) for o in clients], []
        for o in clients:
            v = w
            for _ in range(7):
                v = v - 0.1 * (o.gradient(v) + g - o.gradient(w) + (v - w))
            ends.append(v)
        w = p @ ends
        close(after, w)
    close(log.x, optimum(clients, p))


def test_each_client_has_its_own_mu() -> None:
    """All clients, exact solutions: w+ = w - mean_k (H_k + mu_k I)^-1 grad f(w)."""
    clients, mu = random_quadratics(1, 4), [0.5, 1.0, 2.0, 4.0]
    log = run(FedDANE(mu=mu, step_size=1 / 7, local_steps=600), clients, ALL * 2, x0=[1.0, -2.0, 0.5])
    w, p, eye = np.array([1.0, -2.0, 0.5]), np.full(4, 1 / 4), np.eye(3)
    step = sum(np.linalg.inv(o.matrix + m * eye) for o, m in zip(clients, mu, strict=True)) / 4
    close(log.x, w - step @ gradient(clients, w, p))
    with pytest.raises(ConfigError, match="3 values: there are 4 clients"):
        FedDANE(mu=[1.0, 2.0, 3.0]).validate(4)


@pytest.mark.parametrize("gamma", [0.5, 0.1, 0.01])
def test_gamma_inexact_solutions(gamma: float) -> None:
    """FEDDANE.9, one client: ||w_k - w*|| <= gamma ||w* - w|| with w* = w - (H + mu I)^-1 grad f(w), and not ten times
    as accurate; without `accuracy` the same steps go on."""
    (o,), mu, w = random_quadratics(1, 1), 1.0, np.array([1.0, -2.0, 0.5])
    exact = w - np.linalg.solve(o.matrix + mu * np.eye(3), gradient([o], w, np.ones(1)))
    options = {"mu": mu, "step_size": 0.02, "local_steps": 10_000, "solver": Gd()}
    found = run(FedDANE(accuracy=gamma, **options), [o], [0, 0], x0=list(w)).x
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact - w)
    assert 0.1 * gamma < error <= gamma
    assert np.linalg.norm(run(FedDANE(**options), [o], [0, 0], x0=list(w)).x - exact) < 1e-9
    for wrong in ({"solver": Sgd()}, {"mu": 0.0}, {"mu": [1.0, 0.0]}):
        with pytest.raises(ConfigError, match="accuracy="):
            FedDANE(**{"accuracy": gamma, **options, **wrong})
