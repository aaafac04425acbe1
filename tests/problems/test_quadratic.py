"""Quadratics: given and drawn, their optima and their noise."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.problems import ProblemConfig, load, objective
from mpifl.problems.models import Quadratic
from mpifl.problems.models.quadratic import QuadraticProblem
from tests.problems.conftest import refusal


def built(model: Quadratic, clients: int | None = None) -> QuadraticProblem:
    problem = load(ProblemConfig(model=model, clients=clients, dtype="float64"))
    assert isinstance(problem, QuadraticProblem)
    return problem


def test_client_drift_problem() -> None:
    """T1: a = (1, 10), c = (1, -1): the optimum is -9/11, f is 1/2 mean(a (x - c)^2)."""
    problem = built(Quadratic(curvatures=[1, 10], optima=[1, -1]))
    assert problem.clients == 2 and problem.d == 1
    assert problem.optimum() == pytest.approx(-9 / 11, abs=1e-15)
    assert problem.evaluate(np.zeros(1))["train_loss"] == pytest.approx((1 + 10) / 4)
    assert np.isnan(problem.evaluate(np.zeros(1))["test_accuracy"])
    assert problem.samples.tolist() == [1, 1]


def test_diagonal_problem() -> None:
    """T5: without l1 the optimum is sum a c / sum a for each entry."""
    a, c = [[1, 2], [3, 0.5], [0.5, 4]], [[1, -1], [2, 0.3], [-1, 0.2]]
    problem = built(Quadratic(curvatures=a, optima=c))
    assert problem.optimum() == pytest.approx([6.5 / 4.5, -1.05 / 6.5])
    assert problem.optimum(np.array([1, 0, 0])) == pytest.approx([1, -1])


def test_drawn_problem() -> None:
    problem = built(Quadratic(dim=200, condition=100), 50)
    curvatures = np.concatenate([problem.shard(i)[0] for i in range(50)])
    assert curvatures.min() > 1 and curvatures.max() < 100
    assert np.log(curvatures).mean() == pytest.approx(np.log(100) / 2, rel=0.02)
    assert np.concatenate([problem.shard(i)[1] for i in range(50)]).std() == pytest.approx(1, rel=0.03)
    x = problem.optimum()
    gradients = [a * (x - c) for a, c in map(problem.shard, range(50))]
    assert np.sum(gradients, 0) == pytest.approx(0, abs=1e-10)


def test_noise_belongs_to_client_and_round() -> None:
    config = ProblemConfig(model=Quadratic(dim=400, sigma=0.5), clients=2, dtype="float64")
    problem = load(config)
    f, g = (objective(config, problem.meta, problem.shard(i), i, 3) for i in (0, 1))
    steps = f.batches(2, 50)
    noise = np.array([f.gradient(problem.shard(0)[1], rows) for rows in steps])  # at c_0 the rest is zero
    assert noise.std() == pytest.approx(0.5, rel=0.03) and abs(noise.mean()) < 0.02
    assert (np.array(f.batches(2, 50)) == noise).all()
    assert (np.array(f.batches(3, 50)) != noise).all() and (np.array(g.batches(2, 50)) != noise).all()
    assert f.gradient(problem.shard(0)[1]) == pytest.approx(0)
    assert f.share == 0.5 and f.clients == 2


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"curvatures": [1, 2], "optima": [1, 2, 3]}, "curvatures"),
        ({"curvatures": [[1, 2], [3]]}, "curvatures"),
        ({"optima": ["a"]}, "optima"),
        ({"optima": []}, "optima"),
    ],
)
def test_bad_quadratic(given: dict, key: str) -> None:
    with refusal(f"^{key}="):
        Quadratic(**given)
