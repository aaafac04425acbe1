"""Inexact DANE: FedDANE with everybody in both phases."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.inexact_dane import InexactDANE
from tests.quadratic_runs import close, optimum, quadratics, random_quadratics, run


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


def test_an_exact_update_in_numbers() -> None:
    """Exact solutions with mu: w+ = w - mean_k (H_k + mu I)^-1 grad f(w), here in numbers: a = (1, 3), mu = 1."""
    log = run(InexactDANE(mu=1.0, step_size=0.25, local_steps=80), quadratics([1, 3], [4, 0]), [0, 1] * 2, x0=3.0)
    close(log.x, [3 - (1 / 2 + 1 / 4) / 2 * ((3 - 4) + 3 * 3) / 2])  # 1.5
