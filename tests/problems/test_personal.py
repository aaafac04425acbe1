"""Clients' own test rows, held out of their training rows or brought by the data, and accuracies on them."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl.problems import Problem, ProblemConfig, load, objective
from mpifl.problems.data import FedPDSynthetic, Folder, Leaf, Synthetic, SyntheticIid
from mpifl.problems.dirichlet import Dirichlet
from mpifl.problems.inits import Constant
from mpifl.problems.models import Logistic, Mlp, NonconvexLogistic, Quadratic
from mpifl.problems.partitions import Iid
from tests.problems.conftest import write_leaf

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
    """Rows with their labels, sorted."""
    return sorted(map(tuple, np.column_stack(parts).tolist()))


def own(problem: Problem, i: int) -> list[np.ndarray]:
    """Client i's test rows and their targets."""
    return problem.shard(i)[2:]


# -- held out ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.99])
def test_so_many_are_held_out(fraction: float) -> None:
    """int(fraction * s_i) of each client's rows; from then on s_i counts what is left to train on."""
    whole = load(ProblemConfig(clients=8, partition=UNEVEN))
    split = load(ProblemConfig(clients=8, partition=UNEVEN, test_split=fraction))
    held = [int(fraction * s) for s in whole.samples.tolist()]
    assert split.samples.tolist() == [s - h for s, h in zip(whole.samples.tolist(), held, strict=True)]
    assert [len(own(split, i)[1]) if own(split, i) else 0 for i in range(8)] == held
    assert split.meta["samples"] == split.samples.tolist() == [len(split.shard(i)[1]) for i in range(8)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_training_and_own_test_rows_are_the_clients_rows(dtype: str) -> None:
    """Each row of a client is in exactly one of the two, with its label, and no other client's is."""
    config = {"clients": 5, "partition": UNEVEN, "dtype": dtype}
    whole, split = load(ProblemConfig(**config)), load(ProblemConfig(**config, test_split=0.3))
    for i in range(5):
        x, y, x_own, y_own = split.shard(i)
        assert x_own.dtype == x.dtype == np.dtype(dtype) and y_own.dtype == y.dtype
        assert numbered(np.vstack([x, x_own]), np.concatenate([y, y_own])) == numbered(*whole.shard(i))
        assert not set(numbered(x, y)) & set(numbered(x_own, y_own))


def test_the_runs_seed_does_not_change_the_split() -> None:
    config = ProblemConfig(clients=4, test_split=0.2)
    one, other = load(config), load(config)
    for i in range(4):
        assert all(np.array_equal(a, b) for a, b in zip(one.shard(i), other.shard(i), strict=True))
        here, there = (objective(config, one.meta, one.shard(i), i, seed) for seed in (1, 2))
        assert here.accuracy(one.initial(3)) == there.accuracy(one.initial(3))


def test_clients_with_too_few_rows_have_none(tmp_path: Path) -> None:
    """int(0.3 * 3) = 0 rows; the counts and accuracies of the others are unaffected."""
    path = folder(tmp_path / "data", [3, 10, 1, 7], [None] * 4)
    config = ProblemConfig(data=Folder(path=str(path)), test_split=0.3)
    problem = load(config)
    assert problem.samples.tolist() == [3, 7, 1, 5]
    assert [len(problem.shard(i)) for i in range(4)] == [2, 4, 2, 4]
    accuracies = problem.client_accuracies(problem.initial(0))
    assert np.isnan(accuracies).tolist() == [True, False, True, False]
    assert problem.evaluate(problem.initial(0))["client_accuracy_mean"] == np.nanmean(accuracies)
    for i in range(4):
        mine = objective(config, problem.meta, problem.shard(i), i, 0).accuracy(problem.initial(0))
        assert mine == accuracies[i] or (isnan(mine) and isnan(accuracies[i]))


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
def test_synthetic_devices_bring_a_tenth(data: Any) -> None:
    """n_k - floor(0.9 n_k) rows each, in the order of the devices."""
    problem = load(ProblemConfig(data=data, clients=6, dtype="float64"))
    rows = data.read(None, False, 6)
    counts = [len(own(problem, k)[1]) for k in range(6)]
    sizes = [count + s for count, s in zip(counts, problem.samples.tolist(), strict=True)]
    assert counts == [n - int(0.9 * n) for n in sizes] and sum(counts) == len(rows.y_test)
    ends = np.cumsum([0, *counts])
    for k in range(6):
        assert np.array_equal(own(problem, k)[0], rows.x_test[ends[k] : ends[k + 1]])
        assert np.array_equal(own(problem, k)[1], rows.y_test[ends[k] : ends[k + 1]])


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
    if isinstance(model, NonconvexLogistic):
        return np.sign(rows @ x)
    if isinstance(model, Mlp):
        w1, b1, w2, b2 = np.split(x, np.cumsum([60 * 5, 5, 50]))
        return (np.maximum(rows @ w1.reshape(60, 5) + b1, 0) @ w2.reshape(5, 10) + b2).argmax(1)
    return (rows @ x[:600].reshape(60, 10) + (x[600:] if model.bias else 0)).argmax(1)


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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30])
def test_a_model_that_diverged_has_accuracies(value: float) -> None:
    problem = load(ProblemConfig(clients=4, test_split=0.2))
    x = np.full(problem.d, value, np.float32)
    x[::2] *= -1
    assert ((problem.client_accuracies(x) >= 0) & (problem.client_accuracies(x) <= 1)).all()


def test_without_test_rows() -> None:
    config = ProblemConfig(clients=4)
    problem = load(config)
    assert isnan(objective(config, problem.meta, problem.shard(0), 0, 0).accuracy(problem.initial(0)))
    assert isnan(problem.evaluate(problem.initial(0))["client_accuracy_mean"])
    config = ProblemConfig(model=Quadratic(), clients=3)
    problem = load(config)
    assert isnan(objective(config, problem.meta, problem.shard(0), 0, 0).accuracy(problem.initial(0)))
    assert np.isnan(problem.client_accuracies(problem.initial(0))).tolist() == [True] * 3


# -- the first model ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [Logistic, NonconvexLogistic, Quadratic])
def test_constant_init(kind: Any, dtype: str) -> None:
    """Every entry is the value, whatever the seed."""
    data = FedPDSynthetic() if kind is NonconvexLogistic else None
    problem = load(ProblemConfig(data=data, model=kind(init=Constant(value=0.25)), dtype=dtype, clients=3))
    for seed in (0, 7):
        x = problem.initial(seed)
        assert x.dtype == np.dtype(dtype) and x.tolist() == [0.25] * problem.d
    assert Constant().value == 1.0
