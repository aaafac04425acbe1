"""VRL-SGD: its variables, its limits, and its warm-up."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.vrl_sgd import VrlSgd
from tests.quadratic_runs import close, random_quadratics, run


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
