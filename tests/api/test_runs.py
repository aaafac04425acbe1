"""Several run files as one, and curves."""

from __future__ import annotations

import shutil
from pathlib import Path

import matplotlib
import pytest

import mpifl
from tests.api.jobs import JOB

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two step sizes with two seeds each."""
    folder = tmp_path_factory.mktemp("results")
    for step in (0.05, 0.1):
        for seed in (0, 1):
            name = f"s{step:g}-{seed}"
            mpifl.run(JOB, f"algorithm.step_size={step}", name=name, seed=seed, output=folder / f"{name}.h5").close()
    return folder


def test_tables_of_several_runs_have_a_column_for_each_label(results: Path) -> None:
    runs = mpifl.open_runs(str(results / "*.h5"))
    assert len(runs) == 4 and isinstance(runs, mpifl.Runs) and isinstance(runs[2], mpifl.Run)
    keys = ["run", "seed", "algorithm.step_size"]
    assert list(runs.updates)[:4] == [*keys, "time"] and len(runs.updates) == 4 * 60
    last = runs.evaluations.groupby(["algorithm.step_size", "seed"]).last()
    assert last.index.tolist() == [(0.05, 0), (0.05, 1), (0.1, 0), (0.1, 1)]
    assert last.updates.tolist() == [60] * 4 and last.run.tolist() == ["s0.05-0", "s0.05-1", "s0.1-0", "s0.1-1"]
    assert list(runs.clients)[:4] == [*keys, "client"] and len(runs.aggregations) == 80 and len(runs.events) == 4
    assert runs.status.status.tolist() == ["completed"] * 4 and [run.status for run in runs] == ["completed"] * 4
    assert [(len(group.trials), group.labels) for group in runs.groups] == [
        (2, {"step_size": 0.05}), (2, {"step_size": 0.1})
    ]  # fmt: skip


def test_ways_to_name_them_and_names_that_are_told_apart(results: Path, tmp_path: Path) -> None:
    one = results / "s0.1-0.h5"
    assert [*map(len, map(mpifl.open_runs, (one, str(one), results, [results, one], [one])))] == [1, 1, 4, 4, 1]
    assert list(mpifl.open_runs(one).evaluations)[:2] == ["run", "time"]
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shutil.copy(results / "s0.1-0.h5", tmp_path / folder / "x.h5")
    runs = mpifl.open_runs([tmp_path / "a" / "x.h5", tmp_path / "b"])
    assert runs.updates.run.unique().tolist() == [str(tmp_path / f / "x.h5") for f in ("a", "b")]


@pytest.mark.damaged
def test_missing_and_damaged_files_and_unknown_columns_are_refused(results: Path, tmp_path: Path) -> None:
    for nothing in (str(tmp_path / "*.h5"), tmp_path, tmp_path / "no.h5", []):
        with pytest.raises(mpifl.ConfigError, match="run files="):
            mpifl.open_runs(nothing)
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes((results / "s0.1-0.h5").read_bytes()[:3000])
    with pytest.raises(mpifl.ConfigError, match=f"run file={damaged}"):
        mpifl.open_runs([results, damaged])
    for shown, have in ((mpifl.open_run(results / "s0.1-0.h5"), "run has"), (mpifl.open_runs(results), "runs have")):
        with pytest.raises(mpifl.ConfigError, match=r"plot=accuracy: no such column"):
            shown.plot("accuracy")
        with pytest.raises(mpifl.ConfigError, match=f"plot=test_accuracy: the {have} no values in it"):
            shown.plot("test_accuracy")
    with pytest.raises(mpifl.ConfigError, match="figures=lines: unknown; expected one of accuracy, loss"):
        mpifl.open_runs(results).figure("lines")


def test_the_plot_of_one_run_and_of_several(results: Path) -> None:
    run = mpifl.open_run(results / "s0.1-0.h5")
    axes = run.plot("train_loss", color="black")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("virtual time (s)", "training loss")
    (line,) = axes.lines
    assert line.get_color() == "black" and line.get_ydata().tolist() == run.evaluations.train_loss.tolist()
    assert run.plot(["train_loss", "version"], x="updates", ax=axes) is axes and len(axes.lines) == 3
    assert axes.get_xlabel() == "updates consumed" and axes.get_legend()
    axes = mpifl.open_runs(results).plot("train_loss")
    assert {text.get_text() for text in axes.texts} == {"step size 0.05", "step size 0.1"}  # at the ends of the lines
    assert len(axes.lines) == len(axes.collections) == 2
