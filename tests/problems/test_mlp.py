"""The network with one hidden layer: its loss against SciPy, its gradient against differences, its first weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from mpifl.problems import ProblemConfig, load, objective
from mpifl.problems.data import Synthetic
from mpifl.problems.inits import Normal, Zero
from mpifl.problems.models import MODELS, Mlp


def built(model: Mlp, dtype: str = "float64", l2: float = 0.01, i: int = 1) -> tuple[Any, Any]:
    config = ProblemConfig(data=Synthetic(), clients=3, model=model, l2=l2, batch_size=7, dtype=dtype)
    problem = load(config)
    return problem, objective(config, problem.meta, problem.shard(i), i, seed=0)


def point(d: int, seed: int = 0) -> np.ndarray:
    return 0.3 * np.random.default_rng(seed).standard_normal(d)


def by_formula(x: np.ndarray, rows: np.ndarray, m: int) -> np.ndarray:
    """Log-probabilities, written down from the formula: W1 (60, m), b1, W2 (m, 10), b2."""
    w1, b1, w2, b2 = np.split(x, np.cumsum([60 * m, m, 10 * m]))
    hidden = rows @ w1.reshape(60, m) + b1
    return log_softmax(np.where(hidden > 0, hidden, 0) @ w2.reshape(m, 10) + b2, 1)


def test_shapes() -> None:
    """60-32-10: 60 x 32 + 32 + 32 x 10 + 10 numbers."""
    problem, _ = built(MODELS["mlp"]())  # type: ignore[arg-type]
    assert problem.d == 60 * 32 + 32 + 32 * 10 + 10 == 2282
    assert problem.layout == [("W1", (60, 32)), ("b1", (32,)), ("W2", (32, 10)), ("b2", (10,))]


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_loss_formula(l2: float) -> None:
    problem, f = built(Mlp(hidden=5), l2=l2)
    x, (a, y) = point(problem.d), problem.shard(1)[:2]
    weights = (x[:300] ** 2).sum() + (x[305:355] ** 2).sum()
    expected = -by_formula(x, a, 5)[np.arange(len(y)), y]
    assert f.loss(x) == pytest.approx(expected.mean() + l2 / 2 * weights, rel=1e-12)
    rows = np.array([4, 0, 9])
    assert f.loss(x, rows) == pytest.approx(expected[rows].mean() + l2 / 2 * weights, rel=1e-12)
    assert f.loss(x, slice(2, 6)) == pytest.approx(expected[2:6].mean() + l2 / 2 * weights, rel=1e-12)


def test_mean_of_the_rows_gradients_and_of_their_squares() -> None:
    problem, f = built(Mlp(hidden=4), l2=0.0)
    x = point(problem.d, 1)
    each = np.array([f.gradient(x, np.array([k])) for k in range(len(f.y))])
    assert f.gradient(x) == pytest.approx(each.mean(0), rel=1e-12, abs=1e-15)
    assert f.fisher(x) == pytest.approx((each**2).mean(0), rel=1e-12, abs=1e-15)


def test_evaluate_against_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpifl.problems.rows.CHUNK", 13)
    problem, _ = built(Mlp(hidden=6), l2=0.0)
    x, rows = point(problem.d, 5), Synthetic().read(None, False, 3)  # type: ignore[arg-type]
    found = problem.evaluate(x)
    for kind, a, y in (("train", rows.x, rows.y), ("test", rows.x_test, rows.y_test)):
        expected = -by_formula(x, a, 6)[np.arange(len(y)), y].mean()
        assert found[f"{kind}_loss"] == pytest.approx(expected, rel=1e-12)
    assert found["test_accuracy"] == (by_formula(x, rows.x_test, 6).argmax(1) == rows.y_test).mean()


def test_initial_model_is_scaled_by_layer() -> None:
    """U(-1/sqrt(m), 1/sqrt(m)), m the inputs of the layer: 60 for W1 and b1, the hidden units for W2 and b2."""
    problem, _ = built(Mlp(hidden=400))
    x = problem.initial(3)
    for part, m in zip(np.split(x, np.cumsum([24000, 400, 4000])), (60, 60, 400, 400), strict=True):
        assert np.abs(part).max() < m**-0.5
        assert part.std() == pytest.approx((3 * m) ** -0.5, rel=0.5 if len(part) < 100 else 0.1)
    assert np.abs(x[:24000]).max() > 0.99 * 60**-0.5
    assert (x == problem.initial(3)).all() and (x != problem.initial(4)).all()


def test_initial_model_by_another_law() -> None:
    """Normal entries of standard deviation sqrt(2) over the root of the inputs: He's; zeros stay zeros."""
    x = built(Mlp(init=Normal(std=2**0.5), hidden=400))[0].initial(0)
    assert x[:24000].std() == pytest.approx((2 / 60) ** 0.5, rel=0.02)
    assert x[24400:28400].std() == pytest.approx((2 / 400) ** 0.5, rel=0.05)
    assert not built(Mlp(init=Zero()))[0].initial(0).any()
