"""FedDyn: its invariants, its limit under partial participation, and the methods that it equals."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpifl.algorithms.common.local_solver import Gd
from mpifl.algorithms.feddyn import FedDyn
from tests.algorithms.world import World, random_sets
from tests.quadratic_runs import close, optimum, quadratics, random_quadratics, run


def exact(alpha: float, mu: float = 1.0, L: float = 10.0, **more: Any) -> FedDyn:
    """Local problems of curvatures mu to L solved to rounding, in as many steps as that takes."""
    steps = int(np.ceil(-36 / np.log1p(-(mu + alpha) / (L + alpha))))
    return FedDyn(alpha=alpha, solver=Gd(), step_size=1 / (L + alpha), local_steps=steps, **more)


RANDOM = {"mu": 0.5, "L": 3.0}  # of random_quadratics


def test_rule_by_hand() -> None:
    """Exact minimisers of 1-D problems: th = (a c + g + alpha x)/(a + alpha); n counts all clients."""
    a, c, alpha = np.array([1.0, 3.0, 10.0]), np.array([1.0, 0.5, -1.0]), 2.0
    rounds = random_sets(3, 2, 12)
    log = run(exact(alpha), quadratics(a, c), rounds=rounds, x0=0.3)
    x, h, g, models = 0.3, 0.0, np.zeros(3), []
    for members in rounds:
        th = {i: (a[i] * c[i] + g[i] + alpha * x) / (a[i] + alpha) for i in members}
        for i in members:
            g[i] -= alpha * (th[i] - x)
        h -= alpha / 3 * sum(th[i] - x for i in members)
        x = np.mean([*th.values()]) - h / alpha
        models.append([x])
    close(log.models, models, 1e-10)


def test_output() -> None:
    """members: mean_S th_i of the last round; all: the mean of the last th_i of all clients."""
    clients = random_quadratics(8, 3)
    models = {}
    for output in ("server", "members", "all"):
        here = World(FedDyn(alpha=1.0, step_size=0.1, local_steps=3, output=output), clients, np.ones(3))
        th = {i: np.ones(3) for i in range(3)}
        for members in ([0, 1], [1, 2], [0, 2]):
            x = here.server.x
            before = {i: here.states[i].q for i in members}
            here.round(members)
            th |= {i: x + here.states[i].q - before[i] for i in members}
        models[output] = here.algorithm.model(here.server)
        close(here.server.x, here.server.mean - here.server.h)
        expected = {"server": here.server.x, "members": (th[0] + th[2]) / 2, "all": sum(th.values()) / 3}
        close(models[output], expected[output])
    assert np.abs(models["all"] - models["members"]).max() > 1e-3


def test_the_limit_of_weighted_clients() -> None:
    """weights: samples minimises sum (s_i/S) f_i, with two of four clients a round."""
    clients = random_quadratics(9, 4)
    log = run(exact(2.0, **RANDOM, weights="samples"), clients, rounds=random_sets(4, 2, 400), x0=1.0)
    close(log.x, optimum(clients, [o.samples for o in clients]), 1e-9)
