"""Least squares on targets that are numbers: values by hand, files, and what has no meaning for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    """They may begin with zeros, as labels 01 and 02 are names."""
    folder = tmp_path / "tables"
    folder.mkdir()
    for name, x, y in zip("ab", X, Y, strict=True):
        rows = [
            ",".join(repr(float(v)) for v in row) + f",0{float(target)!r}" for row, target in zip(x, y + 9, strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["u,v,w,price", *rows]))
    job["problem"]["data"] |= {"path": str(folder), "target": "price"}
    problem = mpifl.load_problem(job)
    for i in range(2):
        assert np.array_equal(problem.shard(i)[0], X[i]) and np.array_equal(problem.shard(i)[1], Y[i] + 9)


FLAT = [1.0, 2.0, 3.0, 4.0]  # targets of four rows
WRONG: dict[str, tuple[dict[str, Any], str]] = {  # what is changed in the job, and what the line says
    "a classifier": ({"problem.model": "logistic"}, "problem.model=logistic: it is a classifier, and the targets are"),
    "a network": ({"problem.model": "mlp"}, "problem.model=mlp: it is a classifier"),
    "a partition by classes": ({"problem.partition": "dirichlet"}, "problem.partition=dirichlet: it goes by"),
    "classes that are none": (
        {"problem.data.labels": None},
        "not a class; expected whole numbers; for a regression set",
    ),
    "accuracy": ({"stop.accuracy": 0.9}, "stop.accuracy=0.9: this problem has no test accuracy"),
    "metrics": ({"evaluate.metrics": ["macro_f1"]}, "evaluate.metrics"),
    "clients": ({"evaluate.clients": True}, "evaluate.clients=True: the targets are numbers, which have no"),
    "nan": ({"y": [1.0, np.nan, 2.0, 3.0]}, r"y\[1\] is nan; expected finite numbers; leave out such rows"),
    "text": (
        {"y": ["1", "2", "c", "d"]},
        r"y\[2\] is the text 'c'; expected numbers; leave out problem.data.labels=num",
    ),
    "beyond": ({"y": [1.0, 2.0, -1e300, 3.0]}, r"a\.npz: y\[2\] is -1e\+300, beyond 3.4e\+38; .*problem.dtype=float64"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused(case: str, job: dict) -> None:
    changed, says = WRONG[case]
    np.savez(Path(job["problem"]["data"]["path"]) / "a.npz", x=X[0], y=changed.get("y", FLAT))
    overrides = [f"{key}={json.dumps(value)}" for key, value in changed.items() if key != "y"]
    with refusal(says):
        mpifl.run(job, "problem.clients=2", "problem.dtype=float32", *overrides)
