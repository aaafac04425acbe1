"""The best model of a run in its file, and the end of a run whose metric no longer gets better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import mpifl
from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.cli import main
from mpifl.objective import Objective
from mpifl.server.evaluator import Watch
from mpifl.tools.export.scalars import Scalars, points
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


def test_it_is_shown_and_exported(tmp_path: Path, printed: Callable[..., Any], refused: Callable[..., str]) -> None:
    from safetensors.numpy import load_file

    path = tmp_path / "a.h5"
    made = mpifl.run(job(path, keep={"best": "validation_loss"}))
    row = made.evaluations.iloc[made.best_evaluation]
    assert f"validation_loss {row.validation_loss:.5g}, after {int(row.updates)} updates" in printed("show", path).out
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


# -- numbers that a method logs: in the run file, its frames, reports and TensorBoard ----------------------------------
@dataclass(frozen=True)
class Logging(FedBuff):
    """Logs gamma = 1/(1 + staleness) of each update that has any staleness, and delta = ||x||^2 of each model."""

    wrong: str = ""
    """where it logs what it should not"""

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        super().receive(server, i, update, staleness)
        if staleness:
            server.log(gamma=1 / (1 + staleness))
        if self.wrong == "column":
            server.log(norm=1.0)
        if self.wrong == "array":
            server.log(gamma=np.ones(3))

    def aggregate(self, server: State) -> None:
        super().aggregate(server)
        server.log(delta=server.x @ server.x, beta=np.float32(2))

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        if self.wrong == "client":
            client.log(gamma=1.0)
        return super().train(client, message, objective)


def logging(path: Path, **more: Any) -> dict[str, Any]:
    algorithm = {"name": f"{__name__}:Logging", "step_size": 0.1, "trigger": {"every": 3}}
    algorithm |= more.pop("algorithm", {})
    return {
        **job(path), "seed": 4, "algorithm": algorithm, "stop": {"updates": 20},
        "problem": {"model": "quadratic", "clients": 5},
        "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10, "spread": 0.5}}, **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mpifl.run(logging(tmp_path_factory.mktemp("logged") / "a.h5")).path


def test_numbers_are_rows_and_columns(logged: Path) -> None:
    """gamma of each stale update is in its row; of an evaluation it is that of the last stale update before it."""
    with mpifl.open_run(logged) as run:
        updates, made, evaluations = run.updates, run.aggregations, run.evaluations
        gamma = np.where(updates.staleness > 0, 1 / (1 + updates.staleness), np.nan)
        assert np.array_equal(updates.gamma, gamma, equal_nan=True) and "delta" not in updates
        assert made.beta.tolist() == [2.0] * len(made) and list(made)[-2:] == ["delta", "beta"]
        assert run.logged.name.tolist().count("gamma") == np.isfinite(gamma).sum() > 3
        assert made.delta.iloc[-1] == run.model @ run.model
        for row in evaluations.itertuples():
            known = gamma[: row.updates][np.isfinite(gamma[: row.updates])]
            assert np.array_equal(row.gamma, known[-1] if len(known) else np.nan, equal_nan=True)
            last = made.delta.iloc[row.version - 1] if row.version else np.nan
            assert np.array_equal(row.delta, last, equal_nan=True)
    assert main(["verify", "--replay", "--trust", str(logged)]) == 0


def test_tensorboard_has_the_last_number_before_each_evaluation(logged: Path) -> None:
    with mpifl.open_run(logged) as run:
        found = [*points(run, Scalars())]
        rows = run.evaluations[run.evaluations.updates > 0].drop_duplicates("updates")
    assert [point.step for point in found] == [0, *rows.updates]
    for name in ("gamma", "delta"):
        values = [point.values.get(f"logged/{name}", np.nan) for point in found[1:]]
        assert np.array_equal(values, rows[name], equal_nan=True)


def test_a_report_shows_them(
    logged: Path, tmp_path: Path, printed: Callable[..., Any], refused: Callable[..., str]
) -> None:
    out = printed("report", logged, "--columns", "gamma,delta", "--figures", "delta", "--out", tmp_path).out
    with mpifl.open_run(logged) as run:
        assert f"{run.evaluations.delta.iloc[-1]:.3g}" in out
    assert (tmp_path / "delta.png").exists()
    assert "columns=gama: unknown; expected one of" in refused("report", logged, "--columns", "gama")


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ("column", ValueError, "norm is logged, the name of a column of the run file; choose another name"),
        ("array", TypeError, "gamma"),
        ("client", mpifl.RunFailed, "only the server's rules after init_server can log numbers"),
    ],
)
def test_what_cannot_be_logged_is_an_error(tmp_path: Path, wrong: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        mpifl.run(logging(tmp_path / "a.h5", algorithm={"wrong": wrong}))


def test_a_resumed_run_has_the_numbers_of_the_whole_run(logged: Path, kept: list[Path], tmp_path: Path) -> None:  # noqa: F811
    made = mpifl.run(logging(tmp_path / "a.h5", checkpoint={"updates": 7}))
    assert not differing(logged, made.path, but=("events",)) and len(kept) == 2
    mpifl.resume(kept[1], trust=True).close()
    assert not differing(logged, kept[1], but=("events",))
