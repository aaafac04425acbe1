"""FedExP: its server step, and where it settles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.fedexp import FedExP
from tests.algorithms.world import World
from tests.quadratic_runs import Log, close, quadratics, random_quadratics, run

T1 = quadratics([1, 10], [1, -1])
STEP, Q = 0.05, 10


def rounds(count: int, epsilon: float, **more: Any) -> Log:
    return run(FedExP(step_size=STEP, local_steps=Q, epsilon=epsilon, **more), T1, [0, 1] * count)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_rule_by_hand(weights: str) -> None:
    """eta_g from the members' updates, two of four clients a round; the output is the mean of the last two x."""
    clients = random_quadratics(1, 4)
    sets = [[0, 1], [1, 3], [2, 3], [0, 2], [1, 2]]
    log = run(FedExP(step_size=0.2, local_steps=3, epsilon=1e-4, weights=weights), clients, rounds=sets, x0=1.0)
    x, models, etas = np.ones(3), [np.ones(3)], []
    for members in sets:
        w = np.array([clients[i].samples if weights == "samples" else 1 for i in members])
        D = np.array([x - clients[i].steps(x, 0.2, 3) for i in members])
        mean = w @ D / w.sum()
        etas.append(max(1.0, float(w @ (D * D).sum(1)) / w.sum() / (2 * (mean @ mean + 1e-4))))
        x = x - etas[-1] * mean
        models.append(x)
    close(log.models, models[1:], 1e-10)
    assert max(etas) > 1.05
    algorithm = FedExP()
    close(algorithm.model(log.server), (models[-1] + models[-2]) / 2, 1e-10)
    close(FedExP(output="last").model(log.server), models[-1], 1e-10)


def test_rounds_1_and_3_in_numbers() -> None:
    """EXP.3, EXP.4, EXP.5, EXP.6: T1, epsilon 1e-3, x_0 = 0: eta_g and x of rounds 1 and 3."""
    for count, eta, x in ((1, 3.207871, -0.958769), (3, 18.592218, 1.003139)):
        log = rounds(count, 1e-3)
        close(log.server.eta_g, eta, 1e-6)
        close(log.x, [x], 1e-6)


def test_no_update_at_all() -> None:
    """Clients at their common optimum, epsilon 0: eta_g = 1, nothing moves."""
    here = World(FedExP(step_size=0.1, epsilon=0.0), quadratics([1, 2], [1, 1]), np.ones(1))
    here.round([0, 1])
    assert here.server.x == 1 and here.server.eta_g == 1
