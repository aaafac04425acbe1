"""Validation rows: held out of each client's training rows, and measured at every evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.config.read import job_from_dict, job_to_dict
from mpifl.problems import Data, Model, Partition, Problem, ProblemConfig, ProblemSettings, load
from mpifl.problems.data import Folder, Synthetic
from mpifl.problems.dirichlet import Dirichlet
from mpifl.problems.models import Mlp
from mpifl.problems.models.quadratic import QuadraticProblem
from mpifl.rng import stream
from tests.mpi.files import differing
from tests.problems.conftest import refusal
from tests.problems.test_personal import folder, numbered

UNEVEN = Dirichlet(alpha=0.3, min_samples=3)


@pytest.mark.parametrize("test_split", [None, 0.25])
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.99])
def test_so_many_are_held_out(fraction: float, test_split: float | None) -> None:
    """int(fraction * rows) of each client's rows that the test split has left; the test rows stay the same."""
    before = load(ProblemConfig(clients=8, partition=UNEVEN, test_split=test_split))
    split = load(ProblemConfig(clients=8, partition=UNEVEN, test_split=test_split, validation_split=fraction))
    held = [int(fraction * s) for s in before.samples.tolist()]
    assert split.samples.tolist() == [s - h for s, h in zip(before.samples.tolist(), held, strict=True)]
    assert split.validation_rows == sum(held) > 0
    assert split.meta["samples"] == split.samples.tolist() == [len(split.shard(i)[1]) for i in range(8)]
    for i in range(8):
        whole, kept = before.shard(i), split.shard(i)
        assert set(numbered(*kept[:2])) <= set(numbered(*whole[:2]))
        assert all(np.array_equal(a, b) for a, b in zip(kept[2:], whole[2:], strict=True)), "the client's test rows"


def test_they_are_drawn_from_a_stream_of_their_own() -> None:
    """Client i's are the first of a permutation of its rows by the stream (0, "validation split", i)."""
    whole, split = (load(ProblemConfig(data=Synthetic(), validation_split=f)) for f in (None, 0.3))
    for i in range(30):
        x, y = whole.shard(i)[:2]
        order = stream(0, "validation split", i).permutation(len(y))
        kept = np.sort(order[int(0.3 * len(y)) :])
        assert np.array_equal(split.shard(i)[0], x[kept]) and np.array_equal(split.shard(i)[1], y[kept])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loss_and_accuracy_by_formula(dtype: str) -> None:
    """-log softmax of the label, without the regulariser, and how often it is the largest, over the rows held out."""
    config = ProblemConfig(clients=5, partition=UNEVEN, dtype=dtype, l2=0.5)  # type: ignore[arg-type]
    whole, split = load(config), load(replace(config, validation_split=0.3))
    x = np.random.default_rng(0).standard_normal(split.d).astype(dtype)
    left = []
    for i in range(5):
        kept = numbered(*split.shard(i))
        for row in numbered(*whole.shard(i)):
            kept.remove(row) if row in kept else left.append(row)
    rows = np.array(left)
    scores = rows[:, :-1] @ x.astype(float).reshape(64, 10)
    labels = rows[:, -1].astype(int)
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(rows)), labels]
    found = split.evaluate(x)
    assert found["validation_loss"] == pytest.approx(losses.mean(), rel=1e-5 if dtype == "float32" else 1e-12)
    assert found["validation_accuracy"] == (scores.argmax(1) == labels).mean()
    assert found["test_loss"] == whole.evaluate(x)["test_loss"]
    assert "validation_loss" not in whole.evaluate(x)


def test_evaluation_rows_bound_them_as_well() -> None:
    config = ProblemConfig(clients=5, validation_split=0.3)
    every, few = load(config), load(replace(config, evaluation_rows=7))
    x = every.initial(1)
    hits = 7 * few.evaluate(x)["validation_accuracy"]
    assert hits == pytest.approx(round(hits)) and few.validation_rows == every.validation_rows > 7


def test_clients_with_too_few_rows_have_none(tmp_path: Path) -> None:
    data = Folder(path=str(folder(tmp_path / "data", [3, 10, 1, 7], [None] * 4)))
    problem = load(ProblemConfig(data=data, validation_split=0.3))
    assert problem.samples.tolist() == [3, 7, 1, 5] and problem.validation_rows == 5
    with refusal(r"no client has a row to hold out: the largest has 10 rows; expected null, or a larger fraction"):
        load(ProblemConfig(data=data, validation_split=0.05))


@dataclass(frozen=True)
class NoSplit(Model):
    """A user's model whose problem knows nothing of a validation split."""

    def problem(self, data: Data, partition: Partition, settings: ProblemSettings) -> Problem:
        from mpifl.problems.models import Quadratic

        problem = QuadraticProblem(settings, Quadratic())
        problem.samples = np.full(problem.clients, 50)
        return problem

    def objective(self, *arguments: Any) -> Any:
        raise NotImplementedError


def test_a_problem_that_holds_nothing_out_is_refused() -> None:
    with refusal(r"a QuadraticProblem holds no rows out; expected null"):
        load(ProblemConfig(data=Synthetic(), clients=30, model=NoSplit(), validation_split=0.2))


# -- torch -------------------------------------------------------------------------------------------------------------
def test_a_torch_model_has_the_same_rows() -> None:
    """The same clients' rows, and the loss and accuracy of a torch module with the same parameters."""
    pytest.importorskip("torch")
    from mpifl.problems.models.networks import TorchMlp

    one, other = (
        load(ProblemConfig(clients=4, model=model, dtype="float64", validation_split=0.2, test_split=0.1))
        for model in (Mlp(hidden=5), TorchMlp(hidden=[5]))
    )
    w1, b1, w2, b2 = np.split(np.random.default_rng(0).standard_normal(one.d), np.cumsum([64 * 5, 5, 50]))
    x = np.concatenate([w1, b1, w2, b2])
    same = np.concatenate([w1.reshape(64, 5).T.ravel(), b1, w2.reshape(5, 10).T.ravel(), b2])
    for i in range(4):
        assert all(np.array_equal(a, b) for a, b in zip(one.shard(i), other.shard(i), strict=True))
    found, expected = other.evaluate(same), one.evaluate(x)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-9), key


def test_a_problem_of_ones_own_is_split_the_same_way_on_every_rank() -> None:
    pytest.importorskip("torch")
    from mpifl.problems import host
    from mpifl.problems.problem import ComputeResources

    config = ProblemConfig(entry="tests.problems.test_validation:entry", validation_split=0.25)
    problem = load(config)
    assert problem.samples.tolist() == [15, 3] and problem.validation_rows == 5 + 1
    found = problem.evaluate(problem.initial(0))
    # the module is 0 at every row: the loss is the mean of y^2 over the rows held out
    rows = [np.arange(s, dtype=float) for s in (20, 4)]
    held = [y[stream(0, "validation split", i).permutation(len(y))[: len(y) // 4]] for i, y in enumerate(rows)]
    assert found["validation_loss"] == pytest.approx((np.concatenate(held) ** 2).mean())
    assert np.isnan(found["validation_accuracy"])
    again = dict(problem.meta)  # as another rank has it
    hosted = host(config.model, config.settings, again, {0: [], 1: []}, 0, ComputeResources())
    for i, y in enumerate(rows):
        client = hosted.objectives[i]
        assert client.rows.y.ravel().tolist() == np.setdiff1d(y, held[i]).tolist()  # type: ignore[attr-defined]


def entry() -> Any:
    """Two clients with 20 and 4 rows, targets 0, 1, 2, ..., and a module that begins at 0."""
    import torch
    from torch.utils.data import TensorDataset

    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    rows = [torch.arange(s, dtype=torch.float32)[:, None] for s in (20, 4)]
    return module, torch.nn.functional.mse_loss, [TensorDataset(1 + y, y) for y in rows]


# -- in a run ----------------------------------------------------------------------------------------------------------
def job(path: Path, **more: Any) -> mpifl.Job:
    base = {
        "name": "validation", "seed": 2, "output": str(path), "stop": {"updates": 40},
        "problem": {"clients": 5, "batch_size": 8, "validation_split": 0.2, "test_split": 0.2},
        "algorithm": {"name": "area", "step_size": 10, "trigger": {"every": 2}},
        "clock": {"mode": "virtual", "delay": "exponential"}, "evaluate": {"updates": 10},
    }  # fmt: skip
    return mpifl.load_job({**base, **more})


def test_the_columns_of_a_run_and_its_replay(tmp_path: Path) -> None:
    made = job(tmp_path / "run.h5")
    assert job_from_dict(job_to_dict(made)) == made
    with mpifl.run(made) as run:
        rows = run.evaluations
        assert rows[["validation_loss", "validation_accuracy"]].notna().all(axis=None)
        expected = load(made.problem).evaluate(run.model)
        assert {name: rows[name].iloc[-1] for name in expected} == expected
    mpifl.replay(tmp_path / "run.h5", output=tmp_path / "again.h5").close()
    assert not differing(tmp_path / "run.h5", tmp_path / "again.h5", but=("events",))


def test_without_a_split_the_columns_are_nan(tmp_path: Path) -> None:
    with mpifl.run(job(tmp_path / "run.h5", problem={"clients": 5})) as run:
        assert run.evaluations[["validation_loss", "validation_accuracy"]].isna().all(axis=None)
