"""FedDANE, Inexact DANE, F-SVRG, Mime and MimeLite against their formulas."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.common.local_solver import Gd
from mpifl.algorithms.f_svrg import FSVRG
from mpifl.algorithms.feddane import FedDANE
from mpifl.algorithms.inexact_dane import InexactDANE
from mpifl.algorithms.mime import Mime
from tests.algorithms.world import in_rounds
from tests.quadratic_runs import Quadratic, close, random_quadratics, run

ALL = list(range(4))
START = [1.0, -2.0, 0.5]


def weights(clients: list[Any], members: list[int], kind: str) -> np.ndarray:
    """Of sum 1 over the members."""
    p = np.array([clients[i].samples if kind == "samples" else 1 for i in members], float)
    return p / p.sum()


def solution(o: Quadratic, w: np.ndarray, correction: np.ndarray, mu: float) -> np.ndarray:
    """Four steps of gradient descent on F(v) + <correction, v - w> + mu/2 ||v - w||^2 from v = w."""
    v = w
    for _ in range(4):
        v = v - 0.1 * (o.matrix @ (v - o.c) + correction + mu * (v - w))
    return v


# -- FedDANE and Inexact DANE ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "mu"), [("uniform", 0.0), ("samples", 1.0), ("uniform", [0.5, 1.0, 2.0, 4.0])], ids=str
)
def test_exact_updates_by_formula(kind: Any, mu: Any) -> None:
    """FEDDANE.1: All clients, exact solutions (600 steps): w+ = w - mean_k (H_k + mu_k I)^-1 grad f(w); mu_k is one
    number, or each client's own."""
    clients = random_quadratics(1, 4)
    p = weights(clients, ALL, kind)
    log = run(FedDANE(mu=mu, weights=kind, step_size=1 / (3 + np.max(mu)), local_steps=600), clients, ALL * 6, x0=START)
    w = np.array(START)
    own = [np.linalg.inv(o.matrix + m * np.eye(3)) for o, m in zip(clients, np.broadcast_to(mu, 4), strict=True)]
    for before, after in zip(log.models[::2], log.models[1::2], strict=True):
        close(before, w)  # the gradients' phase leaves the model as it is
        w = w - np.tensordot(p, own, 1) @ (p @ [o.gradient(w) for o in clients])
        close(after, w)


@pytest.mark.parametrize("variant", ["pipelined", "pipelined-memory"])
@pytest.mark.parametrize("cohort", [2, None])
def test_pipelined_rounds_one_by_one(variant: Any, cohort: int | None) -> None:
    """One phase: down (w, gbar), up (w_k, grad F_k(w)); gbar is of the round before, no correction at the start."""
    clients = random_quadratics(4, 4)
    algorithm = FedDANE(mu=0.5, variant=variant, cohort=cohort, weights="samples", step_size=0.1, local_steps=4)
    log, members = in_rounds(algorithm, clients, 12, x0=1.0)
    w, gbar, memory = np.ones(3), None, {}
    for model, cohort_ in zip(log.models, members, strict=True):
        p, ends = weights(clients, cohort_, "samples"), []
        for i in cohort_:
            o = clients[i]
            local = o.gradient(w) if variant == "pipelined" else memory.get(i)
            correction = 0 * w if gbar is None or local is None else gbar - local
            ends.append(solution(o, w, correction, 0.5))
            memory[i] = o.gradient(w)
        gbar, w = p @ [memory[i] for i in cohort_], p @ ends
        close(model, w)
    assert all(len(message.vectors) == 2 for _, message in log.sent)
    assert all(len(update.vectors) == 2 for _, update in log.consumed)


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"sampling": "samples"}, False),  # the text
        ({"weights": "samples", "same_set": True}, True),  # the released code
        ({"correction": 0.8, "decay": 0.6}, False),
        ({"sampling": "samples", "same_set": True}, True),
        ({"cohort": None, "weights": "samples"}, True),  # Inexact DANE
    ],
    ids=str,
)
def test_two_phases_by_formula(options: dict[str, Any], same: bool) -> None:
    """g_t is the mean over S_t, w+ the mean over S'_t; repeats count twice; `same_set` makes the two sets one. Inexact
    DANE: everybody in both. The correction of update t, not of phase t, is gamma_0 delta^t (g_t - grad F_k(w))."""
    clients, kind = random_quadratics(6, 5), InexactDANE if "cohort" in options else FedDANE
    more = {"cohort": 3, **options} if kind is FedDANE else {"weights": "samples"}
    algorithm = kind(mu=0.4, step_size=0.1, local_steps=4, **more)
    log, members = in_rounds(algorithm, clients, 40, x0=1.0)
    assert all(a == b for a, b in zip(members[::2], members[1::2], strict=True)) == same
    assert len({tuple(m) for m in members[::2]}) > 5 or kind is InexactDANE
    w = np.ones(3)
    for t, (first, second) in enumerate(zip(members[::2], members[1::2], strict=True)):
        p, q = (weights(clients, m, algorithm.weights) for m in (first, second))
        gamma = options.get("correction", 1.0) * options.get("decay", 1.0) ** t
        g = p @ [clients[i].gradient(w) for i in first]
        w = q @ [solution(clients[i], w, gamma * (g - clients[i].gradient(w)), 0.4) for i in second]
        close(log.models[2 * t + 1], w)


@pytest.mark.parametrize("gamma", [0.5, 0.1, 0.01])
def test_gamma_inexact_solutions(gamma: float) -> None:
    """FEDDANE.9, one client: ||w_k - w*|| <= gamma ||w* - w|| with w* = w - (H + mu I)^-1 grad f(w), and not ten times
    as accurate; without `accuracy` the same steps go on."""
    (o,), mu, w = random_quadratics(1, 1), 1.0, np.array(START)
    exact = w - np.linalg.solve(o.matrix + mu * np.eye(3), o.gradient(w))
    options: dict[str, Any] = {"mu": mu, "step_size": 0.02, "local_steps": 10_000, "solver": Gd()}
    found = run(FedDANE(accuracy=gamma, **options), [o], [0, 0], x0=START).x
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact - w)
    assert 0.1 * gamma < error <= gamma
    assert np.linalg.norm(run(FedDANE(**options), [o], [0, 0], x0=START).x - exact) < 1e-9


# -- F-SVRG, Mime and MimeLite -----------------------------------------------------------------------------------------
@dataclass
class Batches(Quadratic):
    """f(x) = mean over rows r of a_r/2 (x - c_r)^2, a and c (rows, d), entry by entry. Step k of round r: row r + k."""

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list[int]:
        return [(round + k) % len(self.a) for k in range(steps)]

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        each = self.a * (x - self.c)
        return each.mean(0) if rows is None else each[rows]  # type: ignore[index]


def batched(seed: int, n: int) -> list[Batches]:
    rng = np.random.default_rng(seed)
    samples = rng.integers(1, 9, n)
    return [
        Batches(rng.uniform(0.5, 3, (5, 2)), rng.standard_normal((5, 2)), int(s), s / samples.sum(), n) for s in samples
    ]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (FSVRG, {}),
        (Mime, {}),
        (Mime, {"momentum": 0.6}),
        (Mime, {"lite": True}),
        (Mime, {"lite": True, "momentum": 0.6}),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["uniform", "samples"])
@pytest.mark.parametrize("steps", ["one", "relative"])
def test_rounds_by_formula(method: Any, options: dict[str, Any], kind: str, steps: str) -> None:
    """y <- y - eta ((1 - beta) v + beta s), s frozen; v = g_k(y; xi) - g_k(x; xi) + c, lite: g_k(y; xi).

    Then x <- mean y and s <- (1 - beta) c + beta s. With `step_weights: relative` eta is 0.1 n s_k/S. F-SVRG: beta = 0.
    Means are over one cohort, of both phases where there are two, and a new one in each update.
    """
    clients = batched(4, 5)
    total = sum(o.samples for o in clients)
    algorithm = method(step_size=0.1, local_steps=4, cohort=2, weights=kind, step_weights=steps, **options)
    lite, beta = "lite" in options, options.get("momentum", 0.0)
    phases = 1 if lite else 2
    log, members = in_rounds(algorithm, clients, 12 * phases, x0=np.ones(2))
    x, s, contacts = np.ones(2), np.zeros(2), [0] * 5
    for k, cohort in enumerate(members[::phases]):
        p = weights(clients, cohort, kind)
        c, ends = p @ [clients[i].gradient(x) for i in cohort], []
        for i in cohort:
            o, y = clients[i], x
            eta = 0.1 * (5 * o.samples / total if steps == "relative" else 1)
            for rows in o.batches(contacts[i] + phases - 1, 4):  # the last of the update's contacts
                v = o.a[rows] * (y - o.c[rows])
                if not lite:
                    v = v - o.a[rows] * (x - o.c[rows]) + c
                y = y - eta * ((1 - beta) * v + beta * s)
            ends.append(y)
            contacts[i] += phases
        x, s = p @ ends, (1 - beta) * c + beta * s
        close(log.models[phases * (k + 1) - 1], x)
    assert sum(a == b for a, b in pairwise(members[::phases])) < 6  # of 11; two draws are equal with probability 1/10
