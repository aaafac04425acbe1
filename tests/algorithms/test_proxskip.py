"""ProxSkip (Scaffnew): its invariant, its limit, and gradient descent and VRL-SGD as special cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.common.local_solver import Sgd
from mpifl.algorithms.fedgate import FedGate
from mpifl.algorithms.proxskip import ProxSkip
from mpifl.algorithms.scaffold import Scaffold
from mpifl.algorithms.vrl_sgd import VrlSgd
from mpifl.errors import ConfigError
from tests.algorithms.world import World
from tests.quadratic_runs import Quadratic, close, optimum, quadratics, random_quadratics, run

T1 = quadratics([1, 10], [1, -1])


def by_coins(clients: Sequence[Quadratic], gamma: float, p: float, k: Sequence[int], x0: Any) -> tuple[list, list]:
    """As printed, coin by coin: the models after each communication, and the h_i then."""
    n = len(clients)
    x, h = [np.array(x0, float)] * n, [0 * np.array(x0, float)] * n
    models = []
    for count in k:
        for step in range(count):
            xh = [x[i] - gamma * (clients[i].gradient(x[i]) - h[i]) for i in range(n)]
            if step == count - 1:
                mean = sum(xh) / n
                h = [h[i] + p / gamma * (mean - xh[i]) for i in range(n)]
                x = [mean] * n
            else:
                x = xh
        models.append(x[0])
    return models, h


class Given(ProxSkip):
    """The numbers of local steps between communications as given."""

    def begin_round(self, server: Any, members: list[int]) -> None:
        super().begin_round(server, members)
        server.k = K[(server.contacts - 1) % 4]


K = [3, 1, 6, 4]


def test_SKIP_4_and_SKIP_5() -> None:
    """T1, gamma .1, p .25, k = 3, 1, 6, 4: after the first and the fourth communication, and coin by coin."""
    log = run(Given(step_size=0.1, probability=0.25), T1, [0, 1] * 4)
    close(log.models[0], [-0.3645], 1e-12)
    close(log.models[3], [-0.849313], 1e-6)
    close(log.models, by_coins(T1, 0.1, 0.25, K, [0.0])[0], 1e-12)
    assert [m.work for i, m in log.sent if i == 0][:4] == K  # sent beyond the last are those of the next round


def test_rule_by_coins() -> None:
    """In three dimensions, with the coins of the run's seed."""
    clients = random_quadratics(1, 4)
    log = run(ProxSkip(step_size=0.2, probability=0.3), clients, [0, 1, 2, 3] * 12, x0=1.0, seed=7)
    k = [row[4] for row in log.updates if row[1] == 0]
    close(log.models, by_coins(clients, 0.2, 0.3, k, np.ones(3))[0], 1e-10)
    assert len(set(k)) > 3
    for round in range(12):  # one coin for all clients
        assert len({row[4] for row in log.updates[4 * round : 4 * round + 4]}) == 1


def test_SKIP_0() -> None:
    """sum h_i = 0 after every communication."""
    here = World(ProxSkip(step_size=0.1, probability=0.4), random_quadratics(2, 5), np.ones(3))
    for _ in range(30):
        here.round(range(5))
        close(sum(s.delta for s in here.states.values()), 0 * here.server.x)
    assert max(np.abs(s.delta).max() for s in here.states.values()) > 0.1


def test_SKIP_1() -> None:
    """p = 1: gradient descent on the mean of the f_i."""
    clients = random_quadratics(3, 4)
    x, models = np.ones(3), []
    for _ in range(10):
        x = x - 0.1 * np.mean([c.gradient(x) for c in clients], axis=0)
        models.append(x)
    close(run(ProxSkip(step_size=0.1), clients, [0, 1, 2, 3] * 10, x0=1.0).models, models)


@pytest.mark.parametrize("other", [VrlSgd, Scaffold, FedGate])
def test_SKIP_2_and_SKIP_2b(other: type) -> None:
    """A communication every Q steps with p = 1/Q: VRL-SGD = SCAFFOLD(all, II) = FedGATE(1), iterate for iterate."""
    clients, order = random_quadratics(4, 4), [0, 1, 2, 3] * 20
    skip = run(ProxSkip(step_size=0.1, period=5), clients, order, x0=1.0)
    same = run(other(step_size=0.1, local_steps=5), clients, order, x0=1.0)
    close(skip.models, same.models, 1e-11)


def test_SKIP_3() -> None:
    """The limit is the optimum of all clients, and h_i tends to grad f_i(x*)."""
    here = World(ProxSkip(step_size=0.2, probability=0.3), random_quadratics(5, 4), np.ones(3))
    for _ in range(600):
        here.round(range(4))
    star = optimum(here.objectives)
    close(here.server.x, star, 1e-10)
    for i, state in here.states.items():
        close(state.delta, here.objectives[i].gradient(star), 1e-9)


def test_SKIP_6() -> None:
    """p = 1/sqrt(kappa): 0.316228 on T1."""
    a = np.array([c.a[0] for c in T1])
    close((a.min() / a.max()) ** 0.5, 0.316228, 1e-6)


def test_SKIP_7() -> None:
    """One step on T1, over both faces of the coin: E Psi <= max(1 - gamma mu, 1 - p^2) Psi,
    Psi = sum |x_i - x*|^2 + (gamma/p)^2 sum |h_i - grad f_i(x*)|^2, for x_i equal and sum h_i = 0."""
    gamma, mu, star = 0.1, 1.0, -9 / 11
    g = np.array([c.gradient(np.array([star]))[0] for c in T1])
    a, c = np.array([1.0, 10.0]), np.array([1.0, -1.0])
    rng = np.random.default_rng(0)
    for p in (0.1, 0.316228, 0.7):
        for _ in range(200):
            x, h = np.full(2, rng.normal()), rng.normal() * np.array([1.0, -1.0])

            def psi(x: np.ndarray, h: np.ndarray, p: float = p) -> float:
                return float(((x - star) ** 2).sum() + (gamma / p) ** 2 * ((h - g) ** 2).sum())

            xh = x - gamma * (a * (x - c) - h)
            mean = np.full(2, xh.mean())
            expected = p * psi(mean, h + p / gamma * (mean - xh)) + (1 - p) * psi(xh, h)
            assert expected <= max(1 - gamma * mu, 1 - p**2) * psi(x, h) * (1 + 1e-12)


def test_a_rollback_resets_the_corrections() -> None:
    """After a client was rolled back sum h_i is 0 again from the next round on, and the limit is the optimum."""
    here = World(ProxSkip(step_size=0.2, period=4), random_quadratics(6, 4), np.ones(3))
    for _ in range(5):
        here.round(range(4))
    here.states[1] = here.algorithm.init_client(np.ones(3), 1)
    here.algorithm.on_rollback(here.states[1])
    here.algorithm.on_client_rollback(here.server, 1)
    for _ in range(400):
        here.round(range(4))
        close(sum(s.delta for s in here.states.values()), 0 * here.server.x, 1e-11)
    close(here.server.x, optimum(here.objectives), 1e-10)


def test_refused() -> None:
    with pytest.raises(ConfigError, match="random or periodic"):
        ProxSkip(probability=0.5, period=3)
    with pytest.raises(ConfigError, match="plain steps"):
        ProxSkip(solver=Sgd(momentum=0.5))
