"""Objectives of many clients, which are built when they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.problems import on_use
from mpifl.problems.models.quadratic import QuadraticObjective


@pytest.mark.parametrize("model", ["logistic", "mlp", "nonconvex-logistic", "quadratic"])
def test_an_objective_taken_over_for_another_client_is_that_clients(model: str) -> None:
    """All attributes, and draws, are those of an objective that is built; a subclass does not inherit the method."""
    data = {} if model == "quadratic" else {"data": {"name": "fedpd-synthetic", "dim": 4, "samples": 5}}
    job = mpifl.load_job(
        {
            "name": "x", "seed": 1, "problem": {"model": {"name": model}, "clients": 4, **data},
            "algorithm": {"name": "fedavg"}, "stop": {"updates": 1}, "evaluate": {"updates": 1},
        }
    )  # fmt: skip
    problem = mpifl.load_problem(job)

    def build(i: int) -> Any:
        return job.problem.model.objective(job.problem.settings, problem.meta, problem.shard(i), i, 7)

    first, built = build(0), build(2)
    assert "of_client" in vars(type(first))
    other = first.of_client(problem.shard(2), 2)
    assert vars(other).keys() == vars(built).keys() and first.i == 0
    for name, value in vars(built).items():
        np.testing.assert_equal(getattr(other, name), value)
    x = problem.initial(0)
    np.testing.assert_array_equal(
        other.gradient(x, other.batches(3, 1)[0]), built.gradient(x, built.batches(3, 1)[0]), strict=True
    )


def test_a_subclass_is_built() -> None:
    shard = [np.ones(2), np.zeros(2)]
    objectives = on_use.objectives(lambda shard, i: Mine(i), dict.fromkeys(range(on_use.FEW + 1), shard))
    assert isinstance(objectives, on_use.ObjectivesOnUse)
    assert isinstance(objectives[2], Mine) and objectives[2].twice == 4


class Mine(QuadraticObjective):
    """A user's own objective, with an attribute that depends on the client."""

    def __init__(self, i: int) -> None:
        super().__init__(0.0, 4, [np.ones(2), np.full(2, float(i))], i, 0)
        self.twice = 2 * i
