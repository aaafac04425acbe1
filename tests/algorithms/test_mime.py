"""Mime and MimeLite against their formulas, their limits and their special cases."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.mime import Mime
from tests.algorithms.test_f_svrg import batched
from tests.algorithms.world import cohorts, in_rounds
from tests.quadratic_runs import close


@pytest.mark.parametrize("lite", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.6])
@pytest.mark.parametrize("kind", ["uniform", "samples"])
@pytest.mark.parametrize("steps", ["one", "relative"])
def test_rounds_by_formula(lite: bool, beta: float, kind: str, steps: str) -> None:
    """y <- y - eta ((1 - beta) v + beta s), s frozen; v = g_k(y; xi) - g_k(x; xi) + c, lite: g_k(y; xi).

    Then x <- mean y and s <- (1 - beta) c + beta s. With `step_weights: relative` eta is 0.1 n s_k/S.
    """
    clients = batched(4, 5)
    total = sum(o.samples for o in clients)
    options = {"step_size": 0.1, "local_steps": 4, "cohort": 2, "weights": kind, "step_weights": steps}
    algorithm = Mime(momentum=beta, lite=lite, **options)  # type: ignore[arg-type]
    phases = 1 if lite else 2
    log, members = in_rounds(algorithm, clients, 12 * phases, x0=np.ones(2))
    x, s, contacts = np.ones(2), np.zeros(2), [0] * 5
    for k, cohort in enumerate(members[::phases]):
        p = np.array([clients[i].samples if kind == "samples" else 1 for i in cohort], float)
        c, ends = p / p.sum() @ [clients[i].gradient(x) for i in cohort], []
        for i in cohort:
            o, y = clients[i], x
            eta = 0.1 * (5 * o.samples / total if steps == "relative" else 1)
            for rows in o.batches(contacts[i] + phases - 1, 4):
                v = o.a[rows] * (y - o.c[rows])
                if not lite:
                    v = v - o.a[rows] * (x - o.c[rows]) + c
                y = y - eta * ((1 - beta) * v + beta * s)
            ends.append(y)
            contacts[i] += phases
        x, s = p / p.sum() @ ends, (1 - beta) * c + beta * s
        close(log.models[phases * (k + 1) - 1], x)
    close(log.server.s, s)
    assert len({tuple(m) for m in members}) > 3


def test_cohorts() -> None:
    """Two of six clients: Mime keeps them for its two phases, MimeLite draws anew for each round.

    Two draws are equal with probability 1/15: 13 of 200 on average, and hardly ever 40."""
    mime, lite = (cohorts(Mime(cohort=2, lite=lite), batched(5, 6), 401) for lite in (False, True))
    assert all(a == b for a, b in zip(mime[:400:2], mime[1:400:2], strict=True))
    assert sum(a == b for a, b in zip(mime[1::2], mime[2::2], strict=True)) < 40
    for start in (0, 1):
        pairs = list(zip(lite[start:400:2], lite[start + 1 :: 2], strict=False))
        assert len(pairs) == 200
        assert sum(a == b for a, b in pairs) < 40
