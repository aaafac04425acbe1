"""FedDyn: its invariants, its limit under partial participation, and the methods that it equals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.common.local_solver import Gd
from mpifl.algorithms.feddyn import FedDyn
from tests.algorithms.world import World, random_sets
from tests.quadratic_runs import close, optimum, quadratics, random_quadratics, run

T1 = quadratics([1, 10], [1, -1])


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


def test_h_is_the_mean_of_g() -> None:
    """DYN.1: h = (1/n) sum g_i after every round of any members, inexact solver too; g_i = grad f_i(th_i) for an exact
    one."""
    clients = random_quadratics(4, 5)
    here = World(FedDyn(alpha=0.7, step_size=0.1, local_steps=3), clients, np.ones(3))
    for members in random_sets(5, 2, 30):
        here.round(members)
        close(here.server.h, np.mean([-0.7 * s.q for s in here.states.values()], axis=0))


def test_g_is_the_gradient_at_an_exact_solution() -> None:
    """DYN.1b: After an exact local solution th_i: g_i = grad f_i(th_i)."""
    clients = random_quadratics(4, 4)
    here = World(FedDyn(alpha=0.7, solver=Gd(), step_size=0.25, local_steps=200), clients, np.ones(3))
    for members in random_sets(4, 2, 10):
        x = here.server.x
        here.algorithm.begin_round(here.server, members)
        for i in members:
            th = x + here.contact(i).vectors[0]
            close(-0.7 * here.states[i].q, clients[i].gradient(th), 1e-11)
            here.receive(i)
        here.aggregate()


def test_two_clients_in_numbers() -> None:
    """DYN.6, DYN.7, DYN.8: T1, alpha 1: x_1 = -9/22, x_2 = -27/44, limit -9/11."""
    log = run(exact(1.0), T1, [0, 1] * 150)
    close(log.models[0], [-0.409091], 1e-6)
    close(log.models[0], [-9 / 22])
    close(log.models[1], [-0.613636], 1e-6)
    close(log.models[1], [-27 / 44])
    close(log.x, [-9 / 11])
    close(log.server.h, [0], 1e-11)


@pytest.mark.parametrize(("size", "n"), [(2, 5), (1, 2)])
def test_partial_participation_reaches_the_optimum(size: int, n: int) -> None:
    """DYN.5, DYN.10: Partial participation: the limit is the optimum, with h = 0; 2 of 5 clients, and 1 of 2 on T1."""
    clients = random_quadratics(4, 5) if n == 5 else T1
    algorithm = exact(2.0, **RANDOM) if n == 5 else exact(2.0)
    log = run(algorithm, clients, rounds=random_sets(n, size, 400), x0=0.5)
    close(log.x, optimum(clients), 1e-9)
    close(log.server.h, 0 * log.x, 1e-8)


def test_very_large_and_very_small_alpha() -> None:
    """DYN.9: alpha -> infinity: x_1 = x_0 - (2/alpha) grad f(x_0) + O(alpha^-2); to 0: th_i are the own optima."""
    clients = random_quadratics(7, 3)
    gradient = np.mean([c.gradient(np.ones(3)) for c in clients], axis=0)
    errors = []
    for alpha in (1e3, 1e4):
        log = run(
            FedDyn(alpha=alpha, solver=Gd(), step_size=1 / (alpha + 3), local_steps=60), clients, [0, 1, 2], x0=1.0
        )
        errors.append(np.abs(log.x - 1 + 2 / alpha * gradient).max() * alpha**2)
    assert max(errors) < 50 and errors[0] == pytest.approx(errors[1], rel=0.05)
    log = run(FedDyn(alpha=1e-9, solver=Gd(), step_size=0.3, local_steps=400), clients, [0, 1, 2], x0=1.0)
    close(log.server.mean, np.mean([c.c for c in clients], axis=0), 1e-7)


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
