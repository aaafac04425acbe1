"""The arithmetic that models on rows share: the cross-entropy."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.problems.rows import cross_entropy


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
