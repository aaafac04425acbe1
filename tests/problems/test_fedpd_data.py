"""The labels of FedPD's released code, line by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from mpifl.problems.data.fedpd import FedPDSynthetic, released_labels
from mpifl.rng import stream


def matlab(scores: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """main.m, statement by statement: `labels` holds the scores at first and is overwritten as it goes."""
    labels, threshold = scores.copy(), noise * scores.max()
    labels[(labels > 0) & (labels > threshold)] = 1
    labels[(labels > 0) & (labels < threshold)] = 2
    labels[(labels < 0) & (-labels > threshold)] = 2
    labels[(labels < 0) & (-labels < threshold)] = 1
    labels[labels == 2] = -1
    return labels


@pytest.mark.parametrize("scale", [0.3, 3.0, 100.0])
def test_released_labels(scale: float) -> None:
    """The closed form equals the result of the five statements, for scores around 1 and for large ones."""
    scores, noise = np.random.default_rng(1).standard_normal((2, 20_000)) * [[scale], [1.0]]
    labels = matlab(scores, noise)
    assert set(labels) == {-1.0, 1.0}
    assert (released_labels(scores, noise) == (labels > 0)).all()


def test_strong_code() -> None:
    """x_i = 40 U(0,1)^d + integers of [-10, 10]; the threshold's scale is the largest score of all agents, so that
    positive scores get +1 with probability 1/2, and negative ones -1 with little more than that."""
    rows = FedPDSynthetic(kind="strong-code", seed=3).read(Path("nowhere"), False, None)
    x, y = rows.x.reshape(100, 400, 20), rows.y.reshape(100, 400)
    assert (x[..., -1] == 1).all() and x[..., :-1].std() == pytest.approx(1, rel=0.01)
    scores, noise = np.empty((100, 400)), np.empty((100, 400))
    for i in range(100):
        generator = stream(3, "data", i)
        assert (generator.standard_normal((400, 19)) == x[i, :, :-1]).all()
        own = 40 * generator.random(20) + generator.integers(-10, 11, 20)
        assert own.min() >= -10 and own.max() <= 50
        scores[i], noise[i] = x[i] @ own, generator.standard_normal(400)
    assert (y == (matlab(scores, noise) > 0)).all()
    positive = scores > 0
    assert y[positive].mean() == pytest.approx(0.5, abs=0.02)  # P(t < 1), t of a standard deviation of hundreds
    law = norm.sf(-scores[~positive] / scores.max()).mean()  # P(t > |score|)
    assert y[~positive].mean() == pytest.approx(law, abs=0.02)
    assert (y == positive).mean() < 0.55  # the agents' models hardly show in the labels
