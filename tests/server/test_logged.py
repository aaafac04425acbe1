"""Numbers that a method logs: in the run file, its frames, reports and TensorBoard; the same in a replay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.cli import main
from mpifl.objective import Objective
from mpifl.tools.export.scalars import Scalars, points
from tests.mpi.files import differing
from tests.server.test_resume import kept  # noqa: F401 - a fixture


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


def job(path: Path, **more: Any) -> dict[str, Any]:
    algorithm = {"name": f"{__name__}:Logging", "step_size": 0.1, "trigger": {"every": 3}}
    algorithm |= more.pop("algorithm", {})
    return {
        "name": path.stem, "seed": 4, "output": str(path), "algorithm": algorithm, "stop": {"updates": 20},
        "problem": {"model": "quadratic", "clients": 5}, "evaluate": {"updates": 4},
        "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10, "spread": 0.5}}, **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mpifl.run(job(tmp_path_factory.mktemp("logged") / "a.h5")).path


def test_numbers_are_rows_and_columns(path: Path) -> None:
    """gamma of each stale update is in its row; of an evaluation it is that of the last stale update before it."""
    with mpifl.open_run(path) as run:
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
    assert main(["verify", "--replay", "--trust", str(path)]) == 0


def test_tensorboard_has_the_last_number_before_each_evaluation(path: Path) -> None:
    with mpifl.open_run(path) as run:
        found = [*points(run, Scalars())]
        rows = run.evaluations[run.evaluations.updates > 0].drop_duplicates("updates")
    assert [point.step for point in found] == [0, *rows.updates]
    for name in ("gamma", "delta"):
        logged = [point.values.get(f"logged/{name}", np.nan) for point in found[1:]]
        assert np.array_equal(logged, rows[name], equal_nan=True)


def test_a_report_shows_them(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(path), "--columns", "gamma,delta", "--figures", "delta", "--out", str(tmp_path)]) == 0
    with mpifl.open_run(path) as run:
        assert f"{run.evaluations.delta.iloc[-1]:.3g}" in capsys.readouterr().out
    assert (tmp_path / "delta.png").exists()
    assert main(["report", str(path), "--columns", "gama"]) == 2
    assert "columns=gama: unknown; expected one of" in capsys.readouterr().err


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
        mpifl.run(job(tmp_path / "a.h5", algorithm={"wrong": wrong}))


def test_a_resumed_run_has_the_numbers_of_the_whole_run(path: Path, kept: list[Path], tmp_path: Path) -> None:  # noqa: F811
    made = mpifl.run(job(tmp_path / "a.h5", checkpoint={"updates": 7}))
    assert not differing(path, made.path, but=("events",)) and len(kept) == 2
    mpifl.resume(kept[1], trust=True).close()
    assert not differing(path, kept[1], but=("events",))
