"""Gradients against central differences of the losses, and the losses against their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from mpifl.problems import ProblemConfig, load, objective
from mpifl.problems.data import FedPDSynthetic, Synthetic
from mpifl.problems.inits import Constant, Normal, Uniform, Zero
from mpifl.problems.models import Linear, Logistic, Mlp, NonconvexLogistic, Quadratic
from mpifl.problems.rows import cross_entropy, rows_at_once

LOGISTIC = [Logistic(bias=bias) for bias in (False, True)]
CLASSIFIERS = [*LOGISTIC, Mlp(hidden=5)]
MODELS = [
    *LOGISTIC,
    Linear(),
    Linear(bias=True),
    NonconvexLogistic(),
    NonconvexLogistic(lam=0.7, al=3.0),
    Mlp(hidden=3),
]


def data_of(model: Any) -> Any:
    return FedPDSynthetic(dim=6, samples=30) if isinstance(model, NonconvexLogistic) else Synthetic()


def built(model: Any, dtype: str = "float64", l2: float = 0.01, i: int = 1, **more: Any) -> tuple[Any, Any]:
    if not isinstance(model, Quadratic):
        more |= {"data": data_of(model), "l2": l2, "batch_size": 7}
    config = ProblemConfig(clients=3, model=model, dtype=dtype, **more)
    problem = load(config)
    return problem, objective(config, problem.meta, problem.shard(i), i, seed=0)


def differences(f: Any, x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    eye = np.eye(len(x)) * step
    return np.array([(f(x + e) - f(x - e)) / (2 * step) for e in eye])


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_gradient_is_the_derivative_of_the_loss(model: Any, l2: float) -> None:
    problem, f = built(model, l2=l2)
    x = 0.3 * np.random.default_rng(0).standard_normal(problem.d)
    for rows in (None, slice(None), f.batches(4, 1)[0]):
        expected = differences(lambda z, rows=rows: f.loss(z, rows), x)
        assert f.gradient(x, rows) == pytest.approx(expected, rel=1e-6, abs=1e-8)


def log_probabilities(model: Any, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Written down from the formulas, matrices row by row: log softmax(a W + b), or log softmax(relu(a W1 + b1) W2 +
    b2) with m hidden units."""
    if isinstance(model, Mlp):
        m = model.hidden
        w1, b1, w2, b2 = np.split(x, np.cumsum([60 * m, m, 10 * m]))
        hidden = rows @ w1.reshape(60, m) + b1
        return log_softmax(np.where(hidden > 0, hidden, 0) @ w2.reshape(m, 10) + b2, 1)
    return log_softmax(rows @ x[:600].reshape(60, 10) + (x[600:] if model.bias else 0), 1)


def squares(model: Any, x: np.ndarray) -> float:
    """The sum of the squares of the weights, without biases."""
    m = getattr(model, "hidden", 0)
    return float((x[: 60 * m] ** 2).sum() + (x[61 * m : 71 * m] ** 2).sum()) if m else float((x[:600] ** 2).sum())


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("model", CLASSIFIERS, ids=str)
def test_the_loss_is_the_mean_cross_entropy_plus_the_l2_penalty(model: Any, l2: float) -> None:
    problem, f = built(model, l2=l2)
    x, (a, y) = 0.3 * np.random.default_rng(1).standard_normal(problem.d), problem.shard(1)[:2]
    expected = -log_probabilities(model, x, a)[np.arange(len(y)), y]
    for rows in (None, np.array([4, 0, 9]), slice(2, 6)):
        mean = expected[slice(None) if rows is None else rows].mean()
        assert f.loss(x, rows) == pytest.approx(mean + l2 / 2 * squares(model, x), rel=1e-12)


def test_nonconvex_loss_formula() -> None:
    """FedPD's data have no test rows."""
    problem, f = built(NonconvexLogistic(lam=0.1, al=2.0), l2=0.0)
    a, b = problem.shard(1)
    x = np.random.default_rng(2).standard_normal(problem.d)
    expected = np.log(1 + np.exp(-b * (a @ x))).mean() + (0.1 * 2 * x**2 / (1 + 2 * x**2)).sum()
    assert set(b.tolist()) == {-1, 1}
    assert f.loss(x) == pytest.approx(expected, rel=1e-12)
    found = problem.evaluate(0 * x)
    assert found["train_loss"] == pytest.approx(np.log(2))
    assert np.isnan(found["test_loss"]) and np.isnan(found["test_accuracy"])


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_nonconvex_fisher_row_by_row(l2: float) -> None:
    """mean over the rows of (b a / (1 + exp(b a'w)))^2, without the penalty."""
    problem, f = built(NonconvexLogistic(lam=0.7, al=3.0), l2=l2)
    x = np.random.default_rng(8).standard_normal(problem.d)
    a, b = problem.shard(1)
    expected = [(sign * row / (1 + np.exp(sign * row @ x))) ** 2 for row, sign in zip(a, b, strict=True)]
    assert f.fisher(x) == pytest.approx(np.mean(expected, 0), rel=1e-12, abs=1e-15)


def test_quadratic_fisher_is_the_curvature() -> None:
    """One observation c of N(x, A^-1): the expected square of d log p / dx is the diagonal of A."""
    model = Quadratic(curvatures=[[1, 2], [3, 0.5]], optima=[[0, 0], [1, 1]])
    config = ProblemConfig(model=model, dtype="float64")
    problem = load(config)
    f = objective(config, problem.meta, problem.shard(1), 1, 0)
    fisher = f.fisher(np.zeros(2))
    assert fisher.tolist() == [3, 0.5]
    fisher += 1
    assert f.gradient(np.zeros(2)).tolist() == [-3, -0.5], "what a rule does to it changes nothing"


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_float32_agrees_with_float64(model: Any) -> None:
    """Results stay float32, are new arrays each time, and are finite where scores are large."""
    (problem, f), (_, g) = built(model, "float32"), built(model, "float64")
    x = np.random.default_rng(3).standard_normal(problem.d).astype(np.float32)
    before, huge = x.copy(), np.float32(3e4) * np.sign(x)
    assert problem.initial(0).dtype == np.float32
    for narrow, wide in ((f.gradient, g.gradient), (f.fisher, g.fisher)):
        assert narrow(x).dtype == np.float32 and narrow(x) is not narrow(x) and (x == before).all()
        assert narrow(x) == pytest.approx(wide(x.astype(float)), rel=1e-4, abs=1e-5)
        assert np.isfinite(narrow(huge)).all()
    assert f.loss(x) == pytest.approx(g.loss(x.astype(float)), rel=1e-5)
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite([f.loss(huge), problem.evaluate(huge)["train_loss"], *f.gradient(huge)]).all()


@pytest.mark.parametrize("model", CLASSIFIERS, ids=str)
def test_measures_of_test_rows_against_formula(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpifl.problems.rows.CHUNK", 13)
    problem, _ = built(model, l2=0.3)
    x = np.random.default_rng(5).standard_normal(problem.d)
    rows, found = Synthetic().read(None, False, 3), problem.evaluate(x)  # type: ignore[arg-type]
    scores = log_probabilities(model, x, rows.x_test)
    expected = -scores[np.arange(len(rows.y_test)), rows.y_test].mean()
    assert found["test_loss"] == pytest.approx(expected, rel=1e-12)
    assert found["test_accuracy"] == (scores.argmax(1) == rows.y_test).mean()


def test_cross_entropy_is_that_of_the_formula_for_large_scores_too() -> None:
    """log sum_j exp(s_j) - s_y; of equal scores the first class is the highest. Scores that have no exponential have a
    loss; those that are infinite have none."""
    scores = np.log(np.array([[1.0, 2.0, 5.0], [1.0, 1.0, 2.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]))
    before = scores.copy()
    losses, right = cross_entropy(scores, np.array([2, 0, 0, 2]))
    assert losses == pytest.approx(np.log([8 / 5, 4, 3, 3])) and right == 2
    assert cross_entropy(scores[:1], np.array([2]))[0] == pytest.approx(np.log([8 / 5])) and (scores == before).all()
    with np.errstate(over="ignore", invalid="ignore"):
        diverged = np.array([[1e4, 0.0], [0.0, 1e4], [np.inf, 0.0]], np.float32)
        losses, right = cross_entropy(diverged, np.array([0, 0, 1]))
    assert losses[:2].tolist() == [0, 1e4] and np.isnan(losses[2]) and right == 1
    assert cross_entropy(np.empty((0, 3)), np.empty(0, np.int64))[0].shape == (0,)


def test_rows_evaluated_at_once() -> None:
    """16,384, or as many as make 655,360 numbers in the widest part; a multiple of 1,024."""
    widths = {(784, 10): 65_536, (60, 3): 213 * 1024, (784, 200): 16_384, (): 655_360, (0,): 655_360}
    assert {shape: rows_at_once([("W", shape), ("t", ())]) for shape in widths} == widths
    assert rows_at_once([]) == 655_360


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", [*MODELS, Quadratic(dim=6)], ids=str)
def test_training_loss_and_its_gradient_are_the_weighted_sums_of_the_clients(model: Any, dtype: str) -> None:
    """Whatever the batches, and without the rows that are held out."""
    more = {} if isinstance(model, Quadratic) else {"test_split": 0.3}
    problem, *clients = built(model, dtype, **more)[0], *(built(model, dtype, i=i, **more)[1] for i in range(3))
    x = (0.3 * np.random.default_rng(6).standard_normal(problem.d)).astype(dtype)
    tolerance = {"rel": 1e-4, "abs": 1e-5} if dtype == "float32" else {"rel": 1e-9, "abs": 1e-12}
    assert sum(f.share for f in clients) == pytest.approx(1)
    assert problem.evaluate(x)["train_loss"] == pytest.approx(sum(f.share * f.loss(x) for f in clients), **tolerance)
    assert problem.gradient(x) == pytest.approx(sum(f.share * f.gradient(x) for f in clients), **tolerance)
    assert problem.gradient(x).tobytes() == problem.gradient(x).tobytes()


@pytest.mark.parametrize(("law", "std"), [(Uniform(half_width=0.5), 12**-0.5), (Normal(std=0.2), 0.2)])
def test_an_initial_model_follows_its_law_and_the_seed(law: Any, std: float) -> None:
    problem = load(ProblemConfig(model=Logistic(init=law)))
    x = problem.initial(3)
    assert len(x) == 640 and x.std() == pytest.approx(std, rel=0.1) and abs(x.mean()) < 5 * std / 640**0.5
    assert (x == problem.initial(3)).all() and (x != problem.initial(4)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [Logistic, NonconvexLogistic, Quadratic])
def test_a_constant_initial_model_has_one_value_whatever_the_seed(kind: Any, dtype: str) -> None:
    problem = load(ProblemConfig(model=kind(init=Constant(value=0.25)), dtype=dtype, clients=3))
    for seed in (0, 7):
        x = problem.initial(seed)
        assert x.dtype == np.dtype(dtype) and x.tolist() == [0.25] * problem.d
    assert Constant().value == 1.0


@pytest.mark.parametrize("model", [*CLASSIFIERS, Linear(bias=True)], ids=str)
def test_mean_of_the_rows_gradients_and_of_their_squares(model: Any) -> None:
    """The Fisher information leaves the regulariser out."""
    (problem, f), (_, regularised) = built(model, l2=0.0), built(model, l2=0.3)
    x = 0.3 * np.random.default_rng(1).standard_normal(problem.d)
    each = np.array([f.gradient(x, np.array([k])) for k in range(len(f.y))])
    assert f.gradient(x) == pytest.approx(each.mean(0), rel=1e-12, abs=1e-15)
    for g in (f, regularised):
        assert g.fisher(x) == pytest.approx((each**2).mean(0), rel=1e-12, abs=1e-15)


def test_initial_model_is_scaled_by_layer() -> None:
    """U(-1/sqrt(m), 1/sqrt(m)), m the inputs of the layer: 60 for W1 and b1, the hidden units for W2 and b2."""
    problem, _ = built(Mlp(hidden=400))
    assert problem.layout == [("W1", (60, 400)), ("b1", (400,)), ("W2", (400, 10)), ("b2", (10,))]
    x = problem.initial(3)
    for part, m in zip(np.split(x, np.cumsum([24000, 400, 4000])), (60, 60, 400, 400), strict=True):
        assert np.abs(part).max() < m**-0.5
        assert part.std() == pytest.approx((3 * m) ** -0.5, rel=0.5 if len(part) < 100 else 0.1)
    assert np.abs(x[:24000]).max() > 0.99 * 60**-0.5
    assert (x == problem.initial(3)).all() and (x != problem.initial(4)).all()
    x = built(Mlp(init=Normal(std=2**0.5), hidden=400))[0].initial(0)
    assert x[:24000].std() == pytest.approx((2 / 60) ** 0.5, rel=0.02)
    assert x[24400:28400].std() == pytest.approx((2 / 400) ** 0.5, rel=0.05)
    assert not built(Mlp(init=Zero()))[0].initial(0).any()
