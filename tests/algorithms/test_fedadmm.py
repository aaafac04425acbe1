"""FedADMM: FedDR where the server step is |S|/n, and the bias of any other one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.common.local_solver import Gd
from mpifl.algorithms.fedadmm import FedADMM
from tests.algorithms.world import World, random_sets
from tests.quadratic_runs import close, quadratics, random_quadratics, run


def exact(rho: float, **more: Any) -> FedADMM:
    return FedADMM(rho=rho, solver=Gd(), step_size=1 / (10 + rho), local_steps=200, **more)


def test_rule_by_hand() -> None:
    """Exact minimisers of 1-D problems: w = (a c - lam + rho x)/(a + rho); two of three clients, eta .8."""
    a, c, rho, eta = np.array([1.0, 3.0, 10.0]), np.array([1.0, 0.5, -1.0]), 2.0, 0.8
    rounds = random_sets(3, 2, 12)
    log = run(exact(rho, eta=eta), quadratics(a, c), rounds=rounds, x0=0.3)
    x, w, lam, models = 0.3, np.full(3, 0.3), np.zeros(3), []
    for members in rounds:
        moved = 0.0
        for i in members:
            z = w[i] + lam[i] / rho
            w[i] = (a[i] * c[i] - lam[i] + rho * x) / (a[i] + rho)
            lam[i] += rho * (w[i] - x)
            moved += w[i] + lam[i] / rho - z
        x += eta / 2 * moved
        models.append([x])
    close(log.models, models, 1e-10)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_x_is_the_mean_of_z_where_eta_is_null(weights: str) -> None:
    """ADMM.0: eta null: x = mean z_i after every round of any members, inexact solver too; the number |S|/n is the
    same."""
    clients = random_quadratics(1, 5)
    p = (
        np.array([c.samples for c in clients]) / sum(c.samples for c in clients)
        if weights == "samples"
        else np.ones(5) / 5
    )
    algorithm = FedADMM(rho=1.0, eta=None, step_size=0.1, local_steps=2, weights=weights)
    here = World(algorithm, clients, np.ones(3))
    there = World(FedADMM(rho=1.0, eta=2 / 5, step_size=0.1, local_steps=2), clients, np.ones(3))
    for members in random_sets(5, 2, 20):
        here.round(members)
        there.round(members)
        close(here.server.x, sum(p[i] * here.states[i].z for i in range(5)))
        if weights == "uniform":
            close(here.server.x, there.server.x)
