"""Synthetic data against the published recipes, and the labels of FedPD's released code, line by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from mpifl.problems.data import FedPDSynthetic, Synthetic, SyntheticIid
from mpifl.problems.data.fedpd_synthetic import released_labels
from mpifl.problems.data.synthetic import sizes
from mpifl.rng import stream

NOWHERE = Path("nowhere")


def test_sizes_of_devices() -> None:
    """DATA.3: floor(LogNormal(4, 2)) + 50 has median floor(e^4) + 50 = 104 and mean about e^6 - 1/2 + 50 = 453."""
    drawn = sizes(stream(0, "test"), 1_000_000)
    assert np.median(drawn) == 104 and drawn.min() == 50
    assert drawn.mean() == pytest.approx(np.exp(6) + 49.5, abs=10)  # its standard error is 3


@pytest.mark.parametrize("kind", [Synthetic(), Synthetic(alpha=1, beta=1), SyntheticIid()], ids=str)
def test_devices_and_halves(kind: Synthetic) -> None:
    rows = kind.read(NOWHERE, False, None)
    counts = sizes(stream(0, "data sizes"), 30)
    assert np.bincount(rows.owner).tolist() == [int(0.9 * n) for n in counts]
    assert len(rows.y_test) == sum(n - int(0.9 * n) for n in counts)
    assert rows.x.shape[1] == 60 and rows.classes == 10 and rows.y.max() <= 9


@pytest.mark.parametrize("kind", [Synthetic(beta=1), SyntheticIid()], ids=str)
def test_synthetic_features_have_the_published_variances_and_means(kind: Synthetic) -> None:
    """Within a device x_j has variance j^-1.2; the means are zero in the iid set only."""
    rows = kind.read(NOWHERE, False, None)
    largest = np.bincount(rows.owner).argmax()
    x = rows.x[rows.owner == largest]
    assert x.var(0) * np.arange(1, 61) ** 1.2 == pytest.approx(1, rel=6 * (2 / len(x)) ** 0.5)
    if isinstance(kind, SyntheticIid):
        assert abs(x.mean(0)).max() < 0.1
    else:
        assert x.mean(0).std() == pytest.approx(1, rel=0.4)


def test_alpha_and_beta_are_standard_deviations() -> None:
    """W_k and b_k share the mean u_k ~ N(0, alpha^2); the mean of v_k is B_k ~ N(0, beta^2)."""
    parts = [Synthetic(alpha=0.5, beta=2.0)._device(stream(0, "test", k)) for k in range(600)]
    weights, bias, means = (np.array([part[j] for part in parts]) for j in range(3))
    u = weights.mean((1, 2))  # its own noise has standard deviation 600^-1/2
    assert u.std() == pytest.approx((0.25 + 1 / 600) ** 0.5, rel=0.1)
    assert (weights - u[:, None, None]).std() == pytest.approx(1, rel=0.02)
    assert np.cov(u, bias.mean(1))[0, 1] == pytest.approx(0.25, rel=0.15)
    assert (bias.mean(1) - u).std() == pytest.approx(0.1**0.5, rel=0.1)
    assert means.mean(1).std() == pytest.approx((4 + 1 / 60) ** 0.5, rel=0.1)


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_fedpd_data_have_the_published_sizes_and_labels(kind: str) -> None:
    """100 agents, 400 samples, 20 features, the last one constant 1; only strong labels follow the features."""
    rows = FedPDSynthetic(kind=kind).read(NOWHERE, False, None)
    assert rows.x.shape == (40000, 20) and rows.owner is not None and len(rows.y_test) == 0
    assert np.bincount(rows.owner).tolist() == [400] * 100
    assert (rows.x[:, -1] == 1).all() and rows.x[:, :-1].std() == pytest.approx(1, rel=0.01)
    agreement = []
    for i in range(100):
        x, b = rows.x[rows.owner == i], 2 * rows.y[rows.owner == i] - 1
        solution = np.linalg.lstsq(x, b, rcond=None)[0]
        agreement.append(((x @ solution > 0) == (b > 0)).mean())
    if kind == "weak":
        assert rows.y.mean() == pytest.approx(0.5, abs=0.01) and np.mean(agreement) < 0.65
    else:  # |a'x_i| is about 26, its noise 1: one label in 80 is wrong
        assert np.mean(agreement) > 0.93


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
def test_the_closed_form_gives_the_labels_of_the_released_code(scale: float) -> None:
    scores, noise = np.random.default_rng(1).standard_normal((2, 20_000)) * [[scale], [1.0]]
    labels = matlab(scores, noise)
    assert set(labels) == {-1.0, 1.0}
    assert (released_labels(scores, noise) == (labels > 0)).all()


def test_strong_code_draws_features_and_labels_as_the_released_code() -> None:
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
