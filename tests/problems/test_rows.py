"""The arithmetic that models on rows share: products with narrow weights, and the cross-entropy."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.problems.rows import MULTIPLICATIONS_AT_ONCE, cross_entropy, multiply


@pytest.mark.parametrize("rows", [0, 1, 123, 124, 125, 248, 1000])
@pytest.mark.parametrize("step", [1, 3])
def test_many_rows_are_multiplied_a_few_at_once(rows: int, step: int) -> None:
    """784 x 10 weights allow 124 rows at once; the products of integers are exact, whatever rows are together."""
    assert MULTIPLICATIONS_AT_ONCE // 7840 // 4 * 4 == 124
    rng = np.random.default_rng(rows)
    a = rng.integers(-9, 10, (rows * step, 784)).astype(np.float32)[::step]
    w = rng.integers(-9, 10, (784, 10)).astype(np.float32)
    found = multiply(a, w)
    assert found.dtype == np.float32 and found.shape == (rows, 10)
    assert (found == a.astype(np.int64) @ w.astype(np.int64)).all()


@pytest.mark.parametrize(("features", "classes"), [(784, 200), (2000, 2), (3, 2)])
def test_wide_and_narrow_weights(features: int, classes: int) -> None:
    """At most 4 rows at once, 248, and more than there are."""
    rng = np.random.default_rng(1)
    a, w = rng.integers(-9, 10, (1001, features)), rng.integers(-9, 10, (features, classes))
    assert (multiply(a.astype(np.float64), w.astype(np.float64)) == a @ w).all()


def test_cross_entropy() -> None:
    """log sum_j exp(s_j) - s_y; of equal scores the first class is the highest."""
    scores = np.log(np.array([[1.0, 2.0, 5.0], [1.0, 1.0, 2.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]))
    before = scores.copy()
    losses, right = cross_entropy(scores, np.array([2, 0, 0, 2]))
    assert losses == pytest.approx(np.log([8 / 5, 4, 3, 3])) and right == 2
    assert (scores == before).all()
    alone = scores[:1].copy()
    assert cross_entropy(alone, np.array([2]))[0] == pytest.approx(np.log([8 / 5])) and (alone == scores[:1]).all()


def test_cross_entropy_of_a_model_that_diverged() -> None:
    """Scores that have no exponential have a loss; those that are infinite have none."""
    with np.errstate(over="ignore", invalid="ignore"):
        scores = np.array([[1e4, 0.0], [0.0, 1e4], [np.inf, 0.0]], np.float32)
        losses, right = cross_entropy(scores, np.array([0, 0, 1]))
    assert losses[:2].tolist() == [0, 1e4] and np.isnan(losses[2]) and right == 1
    assert cross_entropy(np.empty((0, 3)), np.empty(0, np.int64))[0].shape == (0,)
