"""Proximal maps and values of the regularisers, against the definition of a subgradient."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

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
each = pytest.mark.parametrize(("g", "value"), ALL, ids=[g.name for g, _ in ALL])


@each
@pytest.mark.parametrize("eta", [0.2, 1.0, 3.0])
def test_prox_is_the_minimiser(g: Any, value: Any, eta: float) -> None:
    """p = prox(v) minimises g(x) + ||x - v||^2/(2 eta) if and only if s = (v - p)/eta is a subgradient of g at p:
    g(x) >= g(p) + <s, x - p> for all x. Of some entries or all, from 1e-5 away, where an error of s by 1e-5 shows."""
    rng = np.random.default_rng(0)
    moves = np.logspace(-5, 1, 400)[:, None] * rng.standard_normal((400, 5)) * rng.choice([0, 1], (400, 5))
    for scale in (0.1, 0.3, 0.5, 1.0, 4.0):
        v = scale * rng.standard_normal(5)
        p = g.prox(v, eta)
        for move in [*moves, -p]:
            assert value(p + move) >= value(p) + (v - p) / eta @ move - 1e-13
        for x in (p, 10 * v):
            assert g.value(x) == pytest.approx(value(x), rel=1e-14)


def test_zeros_are_exact() -> None:
    """l1 and l2 set to 0 what they shrink away, and not to something small."""
    v = np.array([0.3, -0.2999, 1.0])
    assert (L1(tau=0.3).prox(v, 1.0) == 0).tolist() == [True, True, False]
    assert not L2(tau=1.2).prox(v, 1.0).any()
    assert not L2(tau=1.2).prox(np.zeros(3), 1.0).any() and L2(tau=1.0).prox(v, 1.0).any()


@each
def test_float32_and_new_arrays(g: Any, value: Any) -> None:
    v = np.array([0.1, -2.0, 0.6], np.float32)
    found = g.prox(v, 0.5)
    assert found.dtype == np.float32 and not np.shares_memory(found, v)
    assert v.tolist() == np.array([0.1, -2.0, 0.6], np.float32).tolist()
    close(found, g.prox(v.astype(float), 0.5), 1e-6)
    assert isinstance(g.value(found), float) and np.isfinite(g.value(found))
