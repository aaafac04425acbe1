"""How the methods that remember every client are related: AREA, server memory, MIFA, ACE, CA2FL; and their steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.ace import Ace
from mpifl.algorithms.area import Area
from mpifl.algorithms.async_sgd import AsyncSgd
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from tests.quadratic_runs import close, optimum, quadratics, run

T1 = quadratics([1, 10], [1, -1])


def test_area_converges_for_any_order_of_arrivals() -> None:
    """MEM.3: M = 1: AREA converges for every order of arrivals if mean |1 - eta a_i| < 1; on T1 that is eta < 2/9."""
    a = np.array([1, 10])
    assert np.abs(1 - 0.999 * 2 / 9 * a).mean() < 1 < np.abs(1 - 1.001 * 2 / 9 * a).mean()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        order = [0, 1, *rng.choice(2, 1500, p=rng.dirichlet([1, 1]) * 0.8 + 0.1).tolist()]
        for reply in ("before", "after"):
            log = run(Area(step_size=0.2, step_weights="one", reply=reply), T1, order)  # type: ignore[arg-type]
            close(log.x, optimum(T1), 1e-6)


@pytest.mark.parametrize(
    ("name", "slow", "figure"),
    [
        ("area", 3, 0.40726), ("ace", 3, 0.06991), ("ca2fl", 3, 0.12544), ("asgd", 3, 0.17696),
        ("area", 9, 0.43165), ("ace", 9, 0.02350), ("ca2fl", 9, 0.02734), ("asgd", 9, 0.13326),
    ],
)  # fmt: skip
def test_largest_stable_step(name: str, slow: int, figure: float) -> None:
    """CRIT: T1, client 0 `slow` times and client 1 once, reply after: runs shrink five percent below the step that the
    spectral radius of a cycle gives, and grow five percent above."""
    order = [0] * slow + [1]
    for factor, grows in ((0.95, False), (1.05, True)):
        step = factor * figure
        algorithm: Any = {
            "area": Area(step_size=step, step_weights="one", reply="after"),
            "ace": Ace(step_size=step),
            "ca2fl": FedBuff(step_size=step, trigger=Trigger(every=1), calibrate=True),
            "asgd": AsyncSgd(step_size=step),
        }[name]
        log = run(algorithm, T1, [0, 1, *(order * 400)])
        x, cycle = np.ravel(log.trail), 2 * len(order)  # after each receipt and each aggregation
        moved = np.abs(x[cycle:] - x[:-cycle])  # over a cycle: asynchronous SGD never rests within one
        early, late = moved[: 4 * cycle].max(), moved[-4 * cycle :].max()
        assert late > 2 * early if grows else late < early / 2, (factor, early, late)
