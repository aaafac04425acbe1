"""Least squares on targets that are numbers: values by hand, files, and what has no meaning for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mpifl
from mpifl.cli import main
from tests.problems.conftest import refusal

STEP, NU, ROUNDS = 0.1, 0.2, 30
GENERATOR = np.random.default_rng(5)
X = [GENERATOR.normal(size=(rows, 3)) for rows in (4, 6)]
Y = [x @ [1.0, -2.0, 0.5] + 3.25 for x in X]
X_TEST, Y_TEST = GENERATOR.normal(size=(5, 3)), GENERATOR.normal(size=5)


@pytest.fixture
def job(tmp_path: Path) -> dict:
    folder = tmp_path / "sites"
    folder.mkdir()
    np.savez(folder / "a.npz", x=X[0], y=Y[0], x_test=X_TEST, y_test=Y_TEST)
    np.savez(folder / "b.npz", x=X[1], y=Y[1])
    return {
        "name": "linear", "seed": 1, "output": str(tmp_path / "run.h5"),
        "problem": {
            "data": {"name": "folder", "path": str(folder), "labels": "numbers"}, "l2": NU, "dtype": "float64",
            "model": {"name": "linear", "bias": True, "init": "zero"},
        },
        "algorithm": {"name": "fedavg", "step_size": STEP, "local_steps": 1},
        "clock": {"mode": "virtual", "delay": "exponential"}, "stop": {"updates": 2 * ROUNDS},
        "evaluate": {"updates": 2 * ROUNDS, "gradient": True},
    }  # fmt: skip


def by_hand(l2: float, rounds: int) -> np.ndarray:
    """(4,) w and b: the mean over the clients of a step on mean (x'w + b - y)^2 / 2 + l2 / 2 |w|^2, so many times."""
    z = np.zeros(4)
    for _ in range(rounds):
        errors = [x @ z[:3] + z[3] - y for x, y in zip(X, Y, strict=True)]
        slopes = [np.r_[e @ x, e.sum()] / len(e) for e, x in zip(errors, X, strict=True)]
        z = z - STEP * (np.mean(slopes, 0) + l2 * np.r_[z[:3], 0])
    return z


def test_a_run_is_gradient_descent_on_the_squares(job: dict) -> None:
    """Full batches, one local step, clients of equal weight; losses and gradient norm are over all rows."""
    run = mpifl.run(job)
    assert run.model == pytest.approx(by_hand(NU, ROUNDS), rel=1e-12)
    last = run.evaluations.iloc[-1]
    errors = np.concatenate(X) @ run.model[:3] + run.model[3] - np.concatenate(Y)
    regulariser = NU / 2 * float(run.model[:3] @ run.model[:3])
    assert last.train_loss == pytest.approx(float(np.mean(errors**2)) / 2 + regulariser, rel=1e-12)
    test = X_TEST @ run.model[:3] + run.model[3] - Y_TEST
    assert last.test_loss == pytest.approx(float(np.mean(test**2)) / 2, rel=1e-12)
    slope = np.r_[errors @ np.concatenate(X), errors.sum()] / 10 + NU * np.r_[run.model[:3], 0]
    assert last.gradient_norm == pytest.approx(np.linalg.norm(slope), rel=1e-9)
    assert np.isnan([last.test_accuracy, last.client_accuracy_mean]).all()
    assert main(["verify", str(run.path)]) == 0


def test_a_table_with_numbers_as_target(job: dict, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    for name, x, y in zip("ab", X, Y, strict=True):
        rows = [",".join(repr(float(v)) for v in (*row, target)) for row, target in zip(x, y, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["u,v,w,price", *rows]))
    job["problem"]["data"] |= {"path": str(folder), "target": "price"}
    assert mpifl.run(job).model == pytest.approx(by_hand(NU, ROUNDS), rel=1e-12)


def test_numbers_in_tables_may_begin_with_zeros(job: dict, tmp_path: Path) -> None:
    """As labels 01 and 02 are names."""
    (folder := tmp_path / "tables").mkdir()
    (folder / "a.csv").write_text("u,price\n1,01\n2,02\n")
    job["problem"]["data"] |= {"path": str(folder), "target": "price"}
    assert mpifl.load_problem(job).shard(0)[1].tolist() == [1.0, 2.0]


def test_a_partition_of_one_s_own(job: dict) -> None:
    """Equal parts of all rows, with batches of them."""
    job["problem"] |= {"partition": "iid", "clients": 5, "batch_size": 1}
    assert mpifl.run(job).status == "completed"


WRONG = {
    "a classifier": ({"model": "logistic"}, "problem.model=logistic: it is a classifier, and the targets are numbers"),
    "a network": ({"model": "mlp"}, "problem.model=mlp: it is a classifier"),
    "a partition by classes": ({"partition": "dirichlet", "clients": 2}, "problem.partition=dirichlet: it goes by"),
    "classes that are none": (
        {"data.labels": None},
        "which is not a class; expected whole numbers; for a regression set",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused(case: str, job: dict) -> None:
    changed, says = WRONG[case]
    job["problem"]["data"] |= {k.removeprefix("data."): v for k, v in changed.items() if k.startswith("data.")}
    job["problem"] |= {k: v for k, v in changed.items() if not k.startswith("data.")}
    with refusal(says):
        mpifl.run(job)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("stop", {"accuracy": 0.9, "updates": 9}, "stop.accuracy=0.9: this problem has no test accuracy"),
        ("evaluate", {"updates": 4, "metrics": ["macro_f1"]}, "evaluate.metrics"),
        ("evaluate", {"updates": 4, "clients": True}, "evaluate.clients=True: the targets are numbers, which have no"),
    ],
)
def test_what_needs_classes_is_refused(key: str, value: dict, says: str, job: dict) -> None:
    with refusal(says):
        mpifl.run(job | {key: value})


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (np.array([1.0, np.nan, 2.0, 3.0]), r"y\[1\] is nan; expected finite numbers; leave out such rows"),
        (
            np.array(["1", "2", "c", "d"]),
            r"y\[2\] is the text 'c'; expected numbers; leave out problem.data.labels=num",
        ),
        (np.array([1.0, 2.0, -1e300, 3.0]), r"a\.npz: y\[2\] is -1e\+300, beyond 3.4e\+38; .*problem.dtype=float64"),
    ],
)
def test_targets_that_are_no_numbers(y: np.ndarray, says: str, job: dict) -> None:
    job["problem"]["dtype"] = "float32"
    np.savez(Path(job["problem"]["data"]["path"]) / "a.npz", x=X[0], y=y)
    with refusal(says):
        mpifl.run(job)
