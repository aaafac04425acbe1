"""How the methods that remember every client are related: AREA, server memory, MIFA, ACE, CA2FL; and their steps."""

from __future__ import annotations

from collections.abc import Callable
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


# -- the largest stable step on a periodic schedule --------------------------------------------------------------------
def area(z: np.ndarray, i: int, step: float) -> None:
    """An arrival at AREA, in place: z is x, b_0, b_1, y_0, y_1, for optima 0."""
    y = (1 - step * (1, 10)[i]) * z[1 + i]
    z[0] += (y - z[3 + i]) / 2
    z[3 + i], z[1 + i] = y, z[0]


def ace(z: np.ndarray, i: int, step: float) -> None:
    """z is x, b_0, b_1, D_0, D_1."""
    z[3 + i] = step * (1, 10)[i] * z[1 + i]
    z[0] -= (z[3] + z[4]) / 2
    z[1 + i] = z[0]


def ca2fl(z: np.ndarray, i: int, step: float) -> None:
    """z is x, b_0, b_1, h_0, h_1; K = 1."""
    D = step * (1, 10)[i] * z[1 + i]
    z[0] -= (z[3] + z[4]) / 2 + D - z[3 + i]
    z[3 + i], z[1 + i] = D, z[0]


def asgd(z: np.ndarray, i: int, step: float) -> None:
    """z is x, b_0, b_1."""
    z[0] -= step * (1, 10)[i] * z[1 + i]
    z[1 + i] = z[0]


METHODS: dict[str, tuple[Callable, Callable[[float], Any], int]] = {
    "area": (area, lambda step: Area(step_size=step, step_weights="one", reply="after"), 5),
    "ace": (ace, lambda step: Ace(step_size=step), 5),
    "ca2fl": (ca2fl, lambda step: FedBuff(step_size=step, trigger=Trigger(every=1), calibrate=True), 5),
    "asgd": (asgd, lambda step: AsyncSgd(step_size=step), 3),
}


def growth(rule: Callable, size: int, order: list[int], step: float) -> float:
    """The spectral radius of a cycle of arrivals, without AREA's invariant x = mean y_i, which has no part in it."""
    columns = []
    for k in range(size):
        z = np.zeros(size)
        z[k] = 1
        if rule is area:  # only states that the method can have
            z[0] = z[3:].mean()
        for i in order:
            rule(z, i, step)
        columns.append(z)
    return float(np.abs(np.linalg.eigvals(np.array(columns).T)).max())


@pytest.mark.parametrize(
    ("name", "slow", "figure"),
    [
        ("area", 3, 0.40726), ("ace", 3, 0.06991), ("ca2fl", 3, 0.12544), ("asgd", 3, 0.17696),
        ("area", 9, 0.43165), ("ace", 9, 0.02350), ("ca2fl", 9, 0.02734), ("asgd", 9, 0.13326),
    ],
    ids=[
        "CRIT.area4", "CRIT.ace4", "CRIT.ca2fl4", "CRIT.asgd4",
        "CRIT.area10", "CRIT.ace10", "CRIT.ca2fl10", "CRIT.asgd10",
    ],
)  # fmt: skip
def test_largest_stable_step(name: str, slow: int, figure: float) -> None:
    """CRIT: T1, client 0 `slow` times and client 1 once, reply after: the largest stable step. The methods' own runs
    shrink five percent below it, and grow five percent above."""
    rule, method, size = METHODS[name]
    order = [0] * slow + [1]
    low, high = 1e-3, 1.0
    steps = np.linspace(low, high, 2000)
    unstable = next(step for step in steps if growth(rule, size, order, step) > 1 + 1e-9)
    low, high = unstable - (steps[1] - steps[0]), unstable
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if growth(rule, size, order, middle) <= 1 + 1e-9 else (low, middle)
    close(low, figure, 2e-5)
    for factor, grows in ((0.95, False), (1.05, True)):
        rate = growth(rule, size, order, factor * figure)
        cycles = min(400, int(9 / abs(np.log(rate))) + 10)
        log = run(method(factor * figure), T1, [0, 1, *(order * cycles)])
        x, cycle = np.ravel(log.trail), 2 * len(order)  # after each receipt and each aggregation
        moved = np.abs(x[cycle:] - x[:-cycle])  # over a cycle: asynchronous SGD never rests within one
        early, late = moved[: 4 * cycle].max(), moved[-4 * cycle :].max()
        assert late > 2 * early if grows else late < early / 2, (factor, rate, early, late)
