"""F-SVRG against its formula, its limit and its special cases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from mpifl.algorithms.f_svrg import FSVRG
from tests.algorithms.world import in_rounds
from tests.quadratic_runs import Quadratic, close


@dataclass
class Batches(Quadratic):
    """f(x) = mean over rows r of a_r/2 (x - c_r)^2, a and c (rows, d), entry by entry. Step k of round r: row r + k."""

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list[int]:
        return [(round + k) % len(self.a) for k in range(steps)]

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        each = self.a * (x - self.c)
        return each.mean(0) if rows is None else each[rows]  # type: ignore[index]


def batched(seed: int, n: int, rows: int = 5) -> list[Batches]:
    rng = np.random.default_rng(seed)
    samples = rng.integers(1, 9, n)
    return [
        Batches(rng.uniform(0.5, 3, (rows, 2)), rng.standard_normal((rows, 2)), int(s), s / samples.sum(), n)
        for s in samples
    ]


@pytest.mark.parametrize("kind", ["uniform", "samples"])
def test_batches_and_cohorts_by_formula(kind: str) -> None:
    """y <- y - eta (g_k(y; xi) - g_k(x; xi) + g), g and x means over one cohort, a new one in each update."""
    clients = batched(3, 5)
    algorithm = FSVRG(step_size=0.1, local_steps=4, cohort=2, weights=kind)
    log, members = in_rounds(algorithm, clients, 20, x0=np.ones(2))
    x, contacts = np.ones(2), [0] * 5
    for k, cohort in enumerate(members[::2]):
        assert members[2 * k + 1] == cohort
        p = np.array([clients[i].samples if kind == "samples" else 1 for i in cohort], float)
        g, ends = p / p.sum() @ [clients[i].gradient(x) for i in cohort], []
        for i in cohort:
            o, y = clients[i], x
            for rows in o.batches(contacts[i] + 1, 4):  # the second of the update's two contacts
                y = y - 0.1 * (o.a[rows] * (y - o.c[rows]) - o.a[rows] * (x - o.c[rows]) + g)
            ends.append(y)
            contacts[i] += 2
        x = p / p.sum() @ ends
        close(log.models[2 * k + 1], x)
    assert len({tuple(m) for m in members}) > 3
