"""Ringleader ASGD: its rounds, its delay, and the optimum in spite of unequal rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.ringleader import Ringleader
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Fixed
from tests.algorithms.world import World
from tests.quadratic_runs import Log, close, optimum, quadratics, random_quadratics, run

T4 = quadratics([1, 4], [0, 1])


def timed(clients: list, seconds: list[float], step: float, updates: int, x0: float = 0.0) -> Log:
    clock = VirtualClock(Fixed(seconds=seconds).contact_times(len(clients), 0))
    return run(Ringleader(step_size=step), clients, clock=clock, stop_updates=updates, x0=x0)


def by_hand(clients: list, order: list[int], step: float, x0: np.ndarray) -> tuple[list, list[int]]:
    """The models, and the delay of each gradient that entered a step's table, in steps since its model."""
    n, x, k = len(clients), x0, 0
    bases, G = [(x0, 0)] * n, [[] for _ in range(n)]
    later: list[list] = [[] for _ in range(n)]
    served: set[int] = set()
    models, delays = [], []
    for i in order:
        g = (clients[i].gradient(bases[i][0]), bases[i][1])
        if i in served:
            later[i].append(g)
            continue
        G[i].append(g)
        if not all(G):
            continue
        x = x - step / n * sum(np.mean([v for v, _ in own], axis=0) for own in G)
        delays += [k - then for own in G for _, then in own]
        k += 1
        models.append(x)
        bases[i] = (x, k)
        served.add(i)
        if len(served) == n:
            G, later, served = later, [[] for _ in range(n)], set()
    return models, delays


@pytest.mark.parametrize("seed", range(4))
def test_rule_by_hand(seed: int) -> None:
    """RL.1: random arrivals of four clients, some much faster than others; the delay is at most 2 n - 2."""
    clients = random_quadratics(seed, 4)
    order = np.random.default_rng(seed).choice(4, 120, p=[0.5, 0.3, 0.15, 0.05]).tolist()
    log = run(Ringleader(step_size=0.1), clients, order, x0=1.0)
    models, delays = by_hand(clients, order, 0.1, np.ones(3))
    close(log.models, models, 1e-10)
    assert len(models) >= 8 and max(delays) <= 2 * 4 - 2


def test_two_clients_in_numbers() -> None:
    """RL.4, RL.5, RL.6: T4, seconds (1, 3), gamma .05: x_2 = .2, x_4 = .37, delay 2."""
    log = timed(T4, [1.0, 3.0], 0.05, 40)
    close(log.models[1], [0.2])
    close(log.models[3], [0.37])
    assert max(by_hand(T4, log.order, 0.05, np.zeros(1))[1]) == 2


def contact(here: World, i: int) -> bool:
    here.contact(i)
    here.receive(i)
    steps = here.algorithm.ready(here.server)
    if steps:
        here.aggregate()
    return bool(steps)


def test_lost_clients() -> None:
    """A lost client is left out of n: a round that waited for it alone goes on, and the limit is that of the others."""
    clients = random_quadratics(10, 4)
    for lost_after in (0, 1, 2, 3):  # in phase 1, and after some steps of phase 2
        here = World(Ringleader(step_size=0.15), clients, np.ones(3))
        for i in [0, 1, 2, 3][: 3 if not lost_after else 4]:
            contact(here, i)
        for i in [0, 1, 2][: max(0, lost_after - 1)]:
            contact(here, i)
        here.algorithm.on_client_lost(here.server, 3)
        rng = np.random.default_rng(lost_after)
        steps = sum(contact(here, i) for i in rng.choice(3, 3000, p=[0.5, 0.3, 0.2]).tolist())
        assert steps > 500
        close(here.server.x, optimum(clients[:3]), 1e-9)


def test_a_client_that_was_rolled_back_is_sent_the_model() -> None:
    here: Any = World(Ringleader(step_size=0.1), random_quadratics(11, 3), np.ones(3))
    contact(here, 0)
    assert here.message(0).vectors == ()
    here.states[0] = here.algorithm.init_client(np.zeros(3), 0)
    here.algorithm.on_client_rollback(here.server, 0)
    (x,) = here.message(0).vectors
    assert np.array_equal(x, here.server.x)
