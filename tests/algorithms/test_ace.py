"""ACE and ACED: exact in spite of unequal rates, and what a threshold on the age of updates changes."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.ace import Ace
from tests.algorithms.world import World
from tests.quadratic_runs import Log, close, quadratics, random_quadratics, run

CYCLE = [0, 0, 0, 1]
FILL = [0, 1]  # one arrival of each client at x_0
T3, T4 = quadratics([1, 1], [0, 1]), quadratics([1, 4], [0, 1])


def cycle_mean(log: Log) -> float:
    """The mean of x over the last cycle of arrivals."""
    return float(np.mean([x[0] for x in log.models[-4:]]))


@pytest.mark.parametrize("threshold", [None, 0, 2, 5])
@pytest.mark.parametrize("reply", ["before", "after"])
def test_rule_by_hand(threshold: int | None, reply: str) -> None:
    """Stale arrivals in three dimensions, two local steps; A = {i} and those of age k - v_j <= tau_algo."""
    clients = random_quadratics(1, 4)
    order = [0, 1, 0, 2, 0, 3, *np.random.default_rng(2).integers(0, 4, 30).tolist()]
    log = run(Ace(step_size=0.1, local_steps=2, delay_threshold=threshold, reply=reply), clients, order, x0=1.0)
    x, k, bases, table, computed, models = np.ones(3), 0, [(np.ones(3), 0)] * 4, {}, {}, []
    for i in order:
        base, v = bases[i]
        full = len(table) == 4
        table[i], computed[i] = base - clients[i].steps(base, 0.1, 2), v
        if reply == "before":
            bases[i] = x, k
        if full:
            near = [j for j in table if threshold is None or j == i or k - computed[j] <= threshold]
            x, k = x - np.mean([table[j] for j in near], axis=0), k + 1
            models.append(x)
        if reply == "after":
            bases[i] = x, k
    close(log.models, models, 1e-10)
    assert [row[2] for row in log.updates[:6]] == [0] * 6  # versions: no step before all were heard


def test_models_after_4_and_12_arrivals() -> None:
    """ACE.2, ACE.3: T4, eta .1, x_0 = 0: after 4 and 12 arrivals."""
    log = run(Ace(step_size=0.1), T4, FILL + CYCLE * 3)
    close(log.models[3], [0.751])
    close(log.models[11], [1.083064], 1e-6)


@pytest.mark.parametrize(
    ("threshold", "mean"), [(0, 0.25), (2, 0.126544), (6, 0.5)], ids=["ACED.0T3", "ACED.2T3", "ACED.3T3"]
)
def test_the_bias_depends_on_the_threshold(threshold: int, mean: float) -> None:
    """ACED.0, ACED.2, ACED.3: T3, eta .05, mean of x over a cycle: the threshold must exceed the slowest client's age,
    else the bias is back; with 2 it is worse than without memory, since the slow client then counts in company only."""
    close(cycle_mean(run(Ace(step_size=0.05, delay_threshold=threshold), T3, FILL + CYCLE * 150)), mean, 1e-6)


def test_fill_zero() -> None:
    """D_j = 0 of clients not heard: the first step is D_i/n."""
    clients = random_quadratics(6, 4)
    log = run(Ace(step_size=0.1, fill="zero"), clients, [2], x0=1.0)
    close(log.models, [1 - 0.1 * clients[2].gradient(np.ones(3)) / 4])


def test_a_client_lost_before_it_was_heard() -> None:
    """The others do not wait for it, and the mean is over them."""
    clients = random_quadratics(7, 3)
    here = World(Ace(step_size=0.1), clients, np.ones(3))
    for i in (0, 2):
        here.contact(i)
        here.receive(i)
    here.algorithm.on_client_lost(here.server, 1)
    here.contact(0)
    here.receive(0)
    assert here.algorithm.ready(here.server)
    here.aggregate()
    close(here.server.x, 1 - 0.1 * (clients[0].gradient(np.ones(3)) + clients[2].gradient(np.ones(3))) / 2)


def test_one_client_is_gradient_descent() -> None:
    """ACE.4: n = 1; the first arrival fills the table."""
    (client,) = random_quadratics(2, 1)
    log = run(Ace(step_size=0.1), [client], [0] * 11, x0=1.0)
    close(log.models, [client.steps(np.ones(3), 0.1, k) for k in range(1, 11)])
