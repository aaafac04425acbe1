"""Rows held out of each client's training rows, for validation or as its test rows, and what is measured on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.config.read import job_from_dict, job_to_dict
from mpifl.problems import Data, Model, Partition, Problem, ProblemConfig, ProblemSettings, load, objective
from mpifl.problems.data import FedPDSynthetic, Folder, Leaf, Synthetic, SyntheticIid
from mpifl.problems.dirichlet import Dirichlet
from mpifl.problems.models import Logistic, Mlp, NonconvexLogistic, Quadratic
from mpifl.problems.models.quadratic import QuadraticProblem
from mpifl.problems.partitions import Iid
from mpifl.rng import stream
from tests.mpi import cases
from tests.mpi.files import differing
from tests.problems.conftest import refusal, write_leaf
from tests.problems.test_gradients import log_probabilities

UNEVEN = Dirichlet(alpha=0.3, min_samples=3)


def folder(path: Path, train: list[int], test: list[int | None]) -> Path:
    """One file for each client with these numbers of training and test rows; None: no test arrays.

    Every row is different.
    """
    rng = np.random.default_rng(0)
    path.mkdir()
    for i, (s, t) in enumerate(zip(train, test, strict=True)):
        own = {} if t is None else {"x_test": rng.random((t, 3)), "y_test": rng.integers(0, 2, t)}
        np.savez(path / f"{i}.npz", x=rng.random((s, 3)), y=rng.integers(0, 2, s), **own)
    return path


def numbered(*parts: np.ndarray) -> list[tuple[float, ...]]:
    return sorted(map(tuple, np.column_stack(parts).tolist()))


def own(problem: Problem, i: int) -> list[np.ndarray]:
    """Client i's test rows and their targets."""
    return problem.shard(i)[2:]


@pytest.mark.parametrize("test_split", [None, 0.25])
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.99])
def test_so_many_are_held_out(fraction: float, test_split: float | None) -> None:
    """int(fraction * rows) of each client's rows for its tests, and then of those that are left for validation."""
    config = ProblemConfig(clients=8, partition=UNEVEN)
    whole, before = load(config), load(replace(config, test_split=test_split))
    split = load(replace(config, test_split=test_split, validation_split=fraction))
    tests = [int((test_split or 0) * s) for s in whole.samples.tolist()]
    assert before.samples.tolist() == [s - t for s, t in zip(whole.samples.tolist(), tests, strict=True)]
    held = [int(fraction * s) for s in before.samples.tolist()]
    assert split.samples.tolist() == [s - h for s, h in zip(before.samples.tolist(), held, strict=True)]
    assert split.validation_rows == sum(held) > 0
    assert split.meta["samples"] == split.samples.tolist() == [len(split.shard(i)[1]) for i in range(8)]
    for i in range(8):
        x, y, *mine = before.shard(i)
        assert [len(part) for part in mine] == [tests[i]] * len(mine) and bool(mine) == bool(tests[i])
        assert all(rows.dtype == np.float32 for rows in (x, *mine[:1]))
        both = (np.concatenate(parts) for parts in zip((x, y), mine, strict=True)) if mine else (x, y)
        assert numbered(*both) == numbered(*whole.shard(i))
        kept = split.shard(i)
        assert set(numbered(*kept[:2])) <= set(numbered(x, y))
        assert all(np.array_equal(a, b) for a, b in zip(kept[2:], mine, strict=True)), "the client's test rows"


def test_clients_with_too_few_rows_have_none(tmp_path: Path) -> None:
    """int(0.3 * 3) = 0 rows; the counts and accuracies of the others are unaffected."""
    data = Folder(path=str(folder(tmp_path / "data", [3, 10, 1, 7], [None] * 4)))
    config = ProblemConfig(data=data, test_split=0.3)
    problem = load(config)
    assert problem.samples.tolist() == [3, 7, 1, 5]
    assert [len(problem.shard(i)) for i in range(4)] == [2, 4, 2, 4]
    accuracies = problem.client_accuracies(problem.initial(0))
    assert np.isnan(accuracies).tolist() == [True, False, True, False]
    assert problem.evaluate(problem.initial(0))["client_accuracy_mean"] == np.nanmean(accuracies)
    mine = [objective(config, problem.meta, problem.shard(i), i, 0).accuracy(problem.initial(0)) for i in range(4)]
    assert np.array_equal(mine, accuracies, equal_nan=True)
    problem = load(ProblemConfig(data=data, validation_split=0.3))
    assert problem.samples.tolist() == [3, 7, 1, 5] and problem.validation_rows == 5
    with refusal(r"no client has a row to hold out: the largest has 10 rows; expected null, or a larger fraction"):
        load(ProblemConfig(data=data, validation_split=0.05))


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
    config = ProblemConfig(clients=5, validation_split=0.3)
    every, few = load(config), load(replace(config, evaluation_rows=7))
    x = every.initial(1)
    hits = 7 * few.evaluate(x)["validation_accuracy"]
    assert hits == pytest.approx(round(hits)) and few.validation_rows == every.validation_rows > 7


@dataclass(frozen=True)
class NoSplit(Model):
    """A user's model whose problem knows nothing of a validation split."""

    def problem(self, data: Data, partition: Partition, settings: ProblemSettings) -> Problem:
        problem = QuadraticProblem(settings, Quadratic())
        problem.samples = np.full(problem.clients, 50)
        return problem

    def objective(self, *arguments: Any) -> Any:
        raise NotImplementedError


def test_a_problem_that_holds_nothing_out_is_refused() -> None:
    with refusal(r"a QuadraticProblem holds no rows out; expected null"):
        load(ProblemConfig(data=Synthetic(), clients=30, model=NoSplit(), validation_split=0.2))


def test_which_rows_the_global_model_is_tested_on() -> None:
    """The data's own test rows if there are any, as without a split; else all held-out rows together."""
    plain, split = load(ProblemConfig(clients=4)), load(ProblemConfig(clients=4, test_split=0.2))
    x = plain.initial(1)
    for name in ("test_loss", "test_accuracy"):
        assert split.evaluate(x)[name] == plain.evaluate(x)[name]
    data = FedPDSynthetic(kind="strong", dim=4, samples=30)
    problem = load(ProblemConfig(data=data, clients=3, model=NonconvexLogistic(), test_split=0.2))
    x = np.array([1, -2, 0.5, 0.1], np.float32)
    assert problem.evaluate(x)["test_accuracy"] == pytest.approx(problem.client_accuracies(x).mean())  # six rows each


# -- brought by the data -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("data", [Synthetic(alpha=1, beta=1), SyntheticIid()])
def test_synthetic_devices_bring_test_rows(data: Any) -> None:
    """In the order of the devices."""
    problem = load(ProblemConfig(data=data, clients=6, dtype="float64"))
    rows = data.read(None, False, 6)
    for j, every in enumerate((rows.x_test, rows.y_test)):
        assert np.array_equal(np.concatenate([own(problem, k)[j] for k in range(6)]), every)
    assert [len(own(problem, k)[1]) for k in range(6)] == np.bincount(rows.owner_test).tolist()


def test_leaf_users_by_name(tmp_path: Path) -> None:
    """Whatever the order in the files; only the global model is tested on a user without training rows."""
    write_leaf(tmp_path / "train", {u: {"x": [[k, 1]], "y": [0]} for k, u in enumerate("abc")})
    test = {"s": ([7], [0]), "c": ([20, 21], [1, 0]), "t": ([8], [1]), "a": ([10], [1])}
    write_leaf(tmp_path / "test", {u: {"x": [[k, 1] for k in x], "y": y} for u, (x, y) in test.items()})
    problem = load(ProblemConfig(data=Leaf(path=str(tmp_path)), dtype="float64"))
    assert problem.clients == 3 and [len(problem.shard(i)) for i in range(3)] == [4, 2, 4]
    assert own(problem, 0)[0][:, 0].tolist() == [10] and own(problem, 0)[1].tolist() == [1]
    assert own(problem, 2)[0][:, 0].tolist() == [20, 21] and own(problem, 2)[1].tolist() == [1, 0]
    second = np.array([0.0, 0.0, -1.0, 1.0])  # W row by row: everything is of class 1
    assert problem.evaluate(second)["test_accuracy"] == 3 / 5
    assert problem.client_accuracies(second).tolist() == pytest.approx([1, np.nan, 0.5], nan_ok=True)
    assert problem.evaluate(second)["client_accuracy_mean"] == 0.75


def test_rows_dealt_anew_leave_no_test_rows_to_a_client(tmp_path: Path) -> None:
    """With another partition than the data's own, the clients are not the data's either."""
    path = folder(tmp_path / "data", [4, 5, 6, 7], [2, 2, 2, 2])
    data = Folder(path=str(path))
    for clients in (2, 4, 9):
        problem = load(ProblemConfig(data=data, clients=clients, partition=Iid()))
        assert all(len(problem.shard(i)) == 2 for i in range(clients))
        assert np.isnan(problem.client_accuracies(problem.initial(0))).all()
        assert not isnan(problem.evaluate(problem.initial(0))["test_accuracy"])
    problem = load(ProblemConfig(data=data, clients=2, partition=Iid(), test_split=0.5))
    assert [len(own(problem, i)[1]) for i in range(2)] == [5, 5]


def test_a_split_comes_before_what_the_data_bring(tmp_path: Path) -> None:
    path = folder(tmp_path / "data", [4, 9], [3, 0])
    plain = load(ProblemConfig(data=Folder(path=str(path)), dtype="float64"))
    problem = load(ProblemConfig(data=Folder(path=str(path)), dtype="float64", test_split=0.5))
    assert [len(own(problem, i)[1]) for i in range(2)] == [2, 4]
    for i in range(2):
        both = np.vstack([problem.shard(i)[0], own(problem, i)[0]])
        assert numbered(both) == numbered(plain.shard(i)[0])
    assert problem.evaluate(plain.initial(0))["test_loss"] == plain.evaluate(plain.initial(0))["test_loss"]


# -- accuracies --------------------------------------------------------------------------------------------------------
def predicted(model: Any, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Targets by the models' formulas."""
    return np.sign(rows @ x) if isinstance(model, NonconvexLogistic) else log_probabilities(model, x, rows).argmax(1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", [Logistic(), Logistic(bias=True), NonconvexLogistic(), Mlp(hidden=5)], ids=str)
def test_accuracies_by_formula(model: Any, dtype: str) -> None:
    """A client's objective and the server agree, on rows brought and on rows held out."""
    data = FedPDSynthetic(kind="strong", samples=40) if isinstance(model, NonconvexLogistic) else Synthetic()
    for split in (0.25,) if isinstance(model, NonconvexLogistic) else (0.25, None):
        config = ProblemConfig(data=data, clients=4, model=model, dtype=dtype, test_split=split, l2=0.1)
        problem = load(config)
        x = np.random.default_rng(2).standard_normal(problem.d).astype(dtype)
        expected = [(predicted(model, x, own(problem, i)[0]) == own(problem, i)[1]).mean() for i in range(4)]
        clients = [objective(config, problem.meta, problem.shard(i), i, 0) for i in range(4)]
        assert [f.accuracy(x) for f in clients] == problem.client_accuracies(x).tolist() == expected
        assert problem.evaluate(x)["client_accuracy_mean"] == pytest.approx(np.mean(expected), rel=1e-15)
        assert len(set(expected)) > 1, "clients that are all alike would not tell"


@pytest.mark.parametrize("model", [Logistic(), Quadratic()], ids=str)
def test_without_test_rows(model: Any) -> None:
    config = ProblemConfig(model=model, clients=3)
    problem = load(config)
    x = problem.initial(0)
    assert isnan(objective(config, problem.meta, problem.shard(0), 0, 0).accuracy(x))
    assert np.isnan(problem.client_accuracies(x)).tolist() == [True] * 3
    assert isnan(problem.evaluate(x).get("client_accuracy_mean", np.nan))


# -- torch -------------------------------------------------------------------------------------------------------------
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
    problem = {"clients": 5, "batch_size": 8, "validation_split": 0.2, "test_split": 0.2}
    area = {"name": "area", "step_size": 10, "trigger": {"every": 2}}
    return mpifl.load_job({"name": "validation", "output": str(path), **cases.job(area, problem), **more})


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
    with mpifl.run(job(tmp_path / "without.h5", problem={"clients": 5})) as run:
        assert run.evaluations[["validation_loss", "validation_accuracy"]].isna().all(axis=None)
