"""Proximal maps and values of the regularisers against numerical minimisation by SciPy."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from mpifl.algorithms.common.proximal import L1, L2, Box, ElasticNet, L2Squared, NoRegulariser
from tests.quadratic_runs import close

# Each regulariser, and g written down from its definition.
ALL = [
    (NoRegulariser(), lambda x: 0.0),
    (L1(tau=0.7), lambda x: 0.7 * np.abs(x).sum()),
    (L2(tau=0.9), lambda x: 0.9 * np.sqrt((x**2).sum())),
    (L2Squared(tau=0.4), lambda x: 0.4 * (x**2).sum()),
    (Box(low=-0.5, high=0.8), lambda x: 0.0 if x.min() >= -0.5 and x.max() <= 0.8 else inf),
    (Box(low=0.0, high=None), lambda x: 0.0 if x.min() >= 0 else inf),
    (Box(low=None, high=0.3), lambda x: 0.0 if x.max() <= 0.3 else inf),
    (ElasticNet(tau_1=0.3, tau_2=0.6), lambda x: 0.3 * np.abs(x).sum() + 0.6 * (x**2).sum()),
]
NAMES = [g.name for g, _ in ALL]


def minimised(g: Any, smooth: Any, slope: Any, d: int) -> np.ndarray:
    """argmin smooth(x) + g(x) by L-BFGS-B.

    x = u - v with u, v >= 0 makes ||x||_1 the sum of u + v; ||x|| is smooth where it is not 0.
    """
    low, high = getattr(g, "bounds", (-inf, inf))
    split = isinstance(g, (L1, ElasticNet))
    tau_1 = getattr(g, "tau_1", g.tau if isinstance(g, L1) else 0.0)
    tau_2 = getattr(g, "tau_2", g.tau if isinstance(g, L2Squared) else 0.0)
    tau = g.tau if isinstance(g, L2) else 0.0

    def both(z: np.ndarray) -> tuple[float, np.ndarray]:
        x = z[:d] - z[d:] if split else z
        length = max(float(np.linalg.norm(x)), 1e-300)
        value = smooth(x) + tau_2 * x @ x + tau * length + tau_1 * z.sum() * split
        down = slope(x) + 2 * tau_2 * x + tau / length * x
        return value, np.concatenate([down + tau_1, -down + tau_1]) if split else down

    start = np.full(2 * d if split else d, 0.1)
    ends = [(0, None)] * (2 * d) if split else [(low, high)] * d
    options = {"ftol": 1e-18, "gtol": 1e-11, "maxiter": 10_000, "maxfun": 100_000}
    z = minimize(both, start, jac=True, bounds=ends, method="L-BFGS-B", options=options).x
    return z[:d] - z[d:] if split else z


@pytest.mark.parametrize(("g", "value"), ALL, ids=NAMES)
@pytest.mark.parametrize("eta", [0.2, 1.0, 3.0])
def test_prox_is_the_minimiser(g: Any, value: Any, eta: float) -> None:
    """prox(v) = argmin g(x) + ||x - v||^2/(2 eta); 1e-6 is what the minimiser of a function can be known to."""
    rng = np.random.default_rng(0)
    for scale in (0.1, 1.0, 4.0):
        v = scale * rng.standard_normal(5)
        found = g.prox(v, eta)
        if not (isinstance(g, L2) and not found.any()):  # no minimiser for SciPy: the kink
            expected = minimised(g, lambda x, v=v: (x - v) @ (x - v) / (2 * eta), lambda x, v=v: (x - v) / eta, 5)
            close(found, expected, 1e-6)
        best = value(found) + (found - v) @ (found - v) / (2 * eta)
        for _ in range(200):  # and nothing near or far is better
            x = found + rng.choice([1e-3, 0.1, 1]) * rng.standard_normal(5)
            assert value(x) + (x - v) @ (x - v) / (2 * eta) >= best - 1e-12


@pytest.mark.parametrize(("g", "value"), ALL, ids=NAMES)
def test_value(g: Any, value: Any) -> None:
    rng = np.random.default_rng(1)
    for scale in (0.0, 0.1, 2.0):
        x = scale * rng.standard_normal(6)
        assert g.value(x) == pytest.approx(value(x), rel=1e-14)


def test_zeros_are_exact() -> None:
    """l1 and l2 set to 0 what they shrink away, and not to something small."""
    v = np.array([0.3, -0.2999, 1.0])
    assert (L1(tau=0.3).prox(v, 1.0) == 0).tolist() == [True, True, False]
    assert not L2(tau=1.2).prox(v, 1.0).any()
    assert not L2(tau=1.2).prox(np.zeros(3), 1.0).any()


@pytest.mark.parametrize(("g", "value"), ALL, ids=NAMES)
def test_float32_and_new_arrays(g: Any, value: Any) -> None:
    v = np.array([0.1, -2.0, 0.6], np.float32)
    found = g.prox(v, 0.5)
    assert found.dtype == np.float32 and found is not v and not np.shares_memory(found, v)
    assert v.tolist() == np.array([0.1, -2.0, 0.6], np.float32).tolist()
    close(found, g.prox(v.astype(float), 0.5), 1e-6)
    assert isinstance(g.value(found), float) and np.isfinite(g.value(found))
