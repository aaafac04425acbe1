"""The best model of a run in its file, and the end of a run whose metric no longer gets better."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import mpifl
from mpifl.cli import main
from mpifl.server.evaluator import Watch
from tests.mpi.files import differing
from tests.server.test_resume import kept  # noqa: F401 - a fixture

nan = float("nan")
# FedAvg with a large step: its validation loss goes up and down.
PROBLEM = {"clients": 6, "batch_size": 8, "validation_split": 0.2, "model": {"name": "mlp", "hidden": 8}}


def job(path: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": path.stem, "seed": 2, "output": str(path), "problem": PROBLEM,
        "algorithm": {"name": "fedavg", "step_size": 3.0, "cohort": 2}, "stop": {"updates": 36},
        "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}}, "evaluate": {"updates": 4}, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "values", "best", "row", "age"),
    [
        ("validation_loss", [3, 2, 2, 4], 2, 1, 2),
        ("validation_accuracy", [0.1, 0.5, 0.4, 0.5], 0.5, 1, 2),
        ("train_loss", [nan, 2, nan], 2, 1, 1),
        ("train_loss", [nan, nan], nan, -1, 2),
        ("train_loss", [], nan, -1, 0),
    ],
)
def test_the_first_of_equal_values_is_the_best(metric: str, values: Any, best: float, row: int, age: int) -> None:
    watch = Watch(metric, values)
    assert (watch.row, watch.age) == (row, age) and (watch.value == best or np.isnan(best))


@pytest.mark.damaged
@pytest.mark.parametrize("metric", ["validation_loss", "validation_accuracy", "train_loss"])
def test_the_file_keeps_the_model_of_the_best_evaluation(tmp_path: Path, metric: str) -> None:
    """Its metric, measured again, is the best of the column. `mpifl verify` finds a model that is damaged."""
    made = mpifl.run(job(tmp_path / "a.h5", keep={"best": metric}))
    column = made.evaluations[metric].to_numpy()
    best = column.argmax() if metric.endswith("accuracy") else column.argmin()
    assert made.best_evaluation == best and 0 < best < len(column) - 1
    assert mpifl.load_problem(made.config).evaluate(made.best_model)[metric] == column[best]
    assert not np.array_equal(made.best_model, made.model)
    assert main(["verify", str(made.path)]) == 0
    assert not differing(mpifl.run(job(tmp_path / "b.h5")).path, made.path)
    made.close()
    with h5py.File(made.path, "r+", libver="latest") as file:
        file["model/best"][0] += 1
    assert main(["verify", str(made.path)]) == 3


def test_it_is_shown_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    from safetensors.numpy import load_file

    path = tmp_path / "a.h5"
    made = mpifl.run(job(path, keep={"best": "validation_loss"}))
    row = made.evaluations.iloc[made.best_evaluation]
    assert main(["show", str(path)]) == 0
    assert f"validation_loss {row.validation_loss:.5g}, after {int(row.updates)} updates" in capsys.readouterr().out
    (file,) = mpifl.export_run(path, "safetensors", best=True)
    assert load_file(file)["x"].tobytes() == made.best_model.tobytes()
    other = mpifl.run(job(tmp_path / "b.h5"))
    assert "no best model" in refused("export", other.path, "--to", "safetensors", "--best")


def test_a_resumed_run_keeps_the_same_model(kept: list[Path], tmp_path: Path) -> None:  # noqa: F811
    more: dict[str, Any] = {"keep": {"best": "validation_loss"}}
    whole = mpifl.run(job(tmp_path / "a.h5", **more))
    assert 0 < whole.best_evaluation * 4 < 21
    mpifl.run(job(tmp_path / "b.h5", checkpoint={"updates": 21}, **more)).close()
    again = mpifl.resume(kept[0])
    assert again.best_evaluation == whole.best_evaluation
    assert again.best_model.tobytes() == whole.best_model.tobytes()


@pytest.mark.parametrize("evaluations", [2, 3])
def test_a_run_ends_when_its_metric_no_longer_gets_better(tmp_path: Path, evaluations: int) -> None:
    """At the first evaluation that is so many after the best; the rows until then are those of the longer run."""
    whole = mpifl.run(job(tmp_path / "a.h5")).evaluations.validation_loss.tolist()
    plateau = {"metric": "validation_loss", "evaluations": evaluations}
    made = mpifl.run(job(tmp_path / "b.h5", stop={"updates": 36, "plateau": plateau}))
    ends = next(k for k in range(len(whole)) if k - int(np.argmin(whole[: k + 1])) >= evaluations)
    assert made.status == "completed" and made.evaluations.validation_loss.tolist() == whole[: ends + 1]
    assert ends < len(whole) - 1
    assert main(["verify", str(made.path)]) == 0
    assert not differing(made.path, mpifl.replay(made.path).path)


def test_a_plateau_counts_the_evaluations_that_measure_its_metric(tmp_path: Path) -> None:
    """The training loss at every second evaluation: the run ends at the second measured one after the best."""
    every = {"updates": 4, "train_every": 2}
    whole = mpifl.run(job(tmp_path / "a.h5", evaluate=every, stop={"updates": 72})).evaluations.train_loss.tolist()
    assert np.isnan(whole[1::2]).all()
    measured = whole[::2]
    ends = 2 * next(k for k in range(len(measured)) if k - int(np.argmin(measured[: k + 1])) >= 2)
    plateau = {"metric": "train_loss", "evaluations": 2}
    made = mpifl.run(job(tmp_path / "b.h5", evaluate=every, stop={"updates": 72, "plateau": plateau}))
    assert 4 < len(made.evaluations) == ends + 1 < len(whole)
    assert main(["verify", str(made.path)]) == 0


def test_a_run_in_real_time_ends_too(tmp_path: Path) -> None:
    clock = {"mode": "real", "delay": {"name": "exponential", "rate": 500}}
    stop = {"time": 30, "plateau": {"metric": "validation_loss", "evaluations": 2}}
    made = mpifl.run(job(tmp_path / "b.h5", stop=stop, clock=clock))
    assert made.status == "completed" and made.attrs["wall_seconds"] < 25
    assert main(["verify", str(made.path)]) == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("keep.best=validation_loss", "keep.best=validation_loss: there are no validation rows; expected train_loss"),
        ("stop.plateau={}", "stop.plateau.metric=validation_loss: there are no validation rows; expected train_loss"),
        ("keep.best=test_loss", "keep.best=test_loss: "),
        ("stop.plateau={evaluations: 0}", "stop.plateau.evaluations=0: "),
    ],
)
def test_what_cannot_choose_a_model_is_refused(tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(mpifl.ConfigError) as refused:
        mpifl.load_job(job(tmp_path / "a.h5", problem={**PROBLEM, "validation_split": None}), change)
    assert str(refused.value).startswith(says)
