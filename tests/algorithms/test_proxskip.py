"""ProxSkip (Scaffnew): its invariant, its limit, and gradient descent and VRL-SGD as special cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpifl.algorithms.proxskip import ProxSkip
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


def test_four_communications_in_numbers() -> None:
    """SKIP.4, SKIP.5: T1, gamma .1, p .25, k = 3, 1, 6, 4: after the first and the fourth communication, and coin by
    coin."""
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
