"""Objectives of many clients, which are built when they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.problems import on_use
from mpifl.problems.base import ComputeResources
from mpifl.problems.models.quadratic import Quadratic, QuadraticObjective
from mpifl.problems.settings import ProblemSettings


@pytest.mark.parametrize("model", ["logistic", "mlp", "nonconvex-logistic", "quadratic"])
def test_a_copy_for_another_client_equals_its_objective_as_it_is_built(model: str) -> None:
    """All attributes, and draws, are those of an objective that is built."""
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
    assert type(job.problem.model).copied_objectives
    other = first.of_client(problem.shard(2), 2)
    assert vars(other).keys() == vars(built).keys() and first.i == 0
    for name, value in vars(built).items():
        np.testing.assert_equal(getattr(other, name), value)
    x = problem.initial(0)
    np.testing.assert_array_equal(
        other.gradient(x, other.batches(3, 1)[0]), built.gradient(x, built.batches(3, 1)[0]), strict=True
    )


class Flipped(Quadratic):
    """A user's own model: clients with odd numbers have the opposite optimum."""

    def objective(self, *args: Any) -> QuadraticObjective:
        built = super().objective(*args)
        built.c = -built.c if built.i % 2 else built.c
        return built


@pytest.mark.parametrize("model", [Quadratic(), Flipped()])
def test_a_model_that_builds_others_is_asked_for_each(model: Quadratic) -> None:
    shards = {i: [np.ones(1), np.full(1, float(i))] for i in range(on_use.FEW + 1)}
    settings = ProblemSettings(clients=len(shards))
    hosted = model.host(settings, {"clients": len(shards)}, shards, 0, ComputeResources())
    assert isinstance(hosted.objectives, on_use.ObjectivesOnUse)
    sign = -1 if isinstance(model, Flipped) else 1
    assert [hosted.objectives[i].c[0] for i in range(4)] == [0, sign, 2, 3 * sign]  # type: ignore[attr-defined]
