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
def test_objectives_built_on_use_equal_those_built_at_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws, gradients, losses and accuracies of each client, in any order, also of the first one again."""
    own = {"data": {"name": "fedpd-synthetic", "dim": 4, "samples": 8}, "test_split": 0.3, "batch_size": 2}
    job = mpifl.load_job(
        {
            "name": "x", "seed": 1, "algorithm": {"name": "fedavg"}, "stop": {"updates": 1}, "evaluate": {"updates": 1},
            "problem": {"model": {"name": model}, "clients": 4, **({} if model == "quadratic" else own)},
        }
    )  # fmt: skip
    problem, rules = mpifl.load_problem(job), job.problem.model
    shards = {i: problem.shard(i) for i in range(4)}
    settings, meta = job.problem.settings, problem.meta
    built = {i: rules.objective(settings, meta, shards[i], i, 7) for i in range(4)}
    monkeypatch.setattr(on_use, "MAX_CLIENTS_AS_OBJECTS", 0)
    hosted = rules.host(settings, meta, shards, 7, ComputeResources()).objectives
    x = problem.initial(0) + np.linspace(-1, 1, problem.d).astype(problem.dtype)
    for i in (2, 0, 3, 1, 0):
        other, expected = hosted[i], built[i]
        for name in ("i", "samples", "share", "clients"):
            assert getattr(other, name) == getattr(expected, name)
        for rows in (None, *expected.batches(3, 2)):
            np.testing.assert_array_equal(other.gradient(x, rows), expected.gradient(x, rows), strict=True)
            assert other.loss(x, rows) == expected.loss(x, rows)
        for found, each in zip(other.batches(3, 2), expected.batches(3, 2), strict=True):
            np.testing.assert_array_equal(found, each)
        np.testing.assert_equal(other.accuracy(x), expected.accuracy(x))
        np.testing.assert_array_equal(other.fisher(x), expected.fisher(x))


class Flipped(Quadratic):
    """A user's own model: clients with odd numbers have the opposite optimum."""

    def objective(self, *args: Any) -> QuadraticObjective:
        built = super().objective(*args)
        built.c = -built.c if built.i % 2 else built.c
        return built


@pytest.mark.parametrize("model", [Quadratic(), Flipped()])
def test_a_model_that_builds_others_is_asked_for_each(model: Quadratic) -> None:
    shards = {i: [np.ones(1), np.full(1, float(i))] for i in range(on_use.MAX_CLIENTS_AS_OBJECTS + 1)}
    settings = ProblemSettings(clients=len(shards))
    hosted = model.host(settings, {"clients": len(shards)}, shards, 0, ComputeResources())
    assert isinstance(hosted.objectives, on_use.ObjectivesOnUse)
    sign = -1 if isinstance(model, Flipped) else 1
    assert [hosted.objectives[i].c[0] for i in range(4)] == [0, sign, 2, 3 * sign]  # type: ignore[attr-defined]
