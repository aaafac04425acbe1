"""FedGATE: its tracking variables, its limits, and FedCOMGATE's quantiser."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.fedgate import FedGate, quantise
from mpifl.rng import stream
from tests.quadratic_runs import close, random_quadratics, run


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
