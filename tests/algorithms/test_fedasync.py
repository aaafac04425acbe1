"""FedAsync: its mixing, its staleness weights, its bias."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from mpifl.algorithms.fedasync import FedAsync
from tests.quadratic_runs import close, random_quadratics, run


@pytest.mark.parametrize("kind", ["constant", "polynomial", "hinge"])
@pytest.mark.parametrize(("a", "b"), [(0.5, 4.0), (10.0, 4.0), (10.0, 6.0), (0.5, 0.0)])
def test_staleness_weights(kind: str, a: float, b: float) -> None:
    """FEDASYNC.2: s(0) = 1, s never increases, and it is what the formula says."""
    algorithm = FedAsync(staleness=kind, staleness_a=a, staleness_b=b)
    s = [algorithm.discount(tau) for tau in range(40)]
    assert s[0] == 1
    assert all(x >= y > 0 for x, y in pairwise(s))
    expected = {
        "constant": lambda t: 1.0,
        "polynomial": lambda t: (t + 1) ** (-a),
        "hinge": lambda t: 1.0 if t <= b else 1 / (a * (t - b) + 1),
    }[kind]
    close(s, [expected(t) for t in range(40)])


def test_rule() -> None:
    """x <- (1-a) x + a w with a = mixing s(tau); w by steps on f_i + rho/2 ||w - base||^2; all by hand."""
    clients = random_quadratics(2, 3)
    order = [0, 1, 0, 0, 2, 2, 1, 0, 2, 1]
    algorithm = FedAsync(step_size=0.1, local_steps=3, mixing=0.7, proximal=0.4, staleness="polynomial")
    log = run(algorithm, clients, order, x0=1.0)
    x, bases = np.ones(3), [(np.ones(3), 0)] * 3
    for version, i in enumerate(order):
        base, then = bases[i]
        w = base
        for _ in range(3):
            w = w - 0.1 * (clients[i].gradient(w) + 0.4 * (w - base))
        a = 0.7 * (version - then + 1) ** -0.5
        x = (1 - a) * x + a * w
        bases[i] = x, version + 1
        close(log.models[version], x)
    assert max(row[3] for row in log.updates) > 2
