"""Run files that an older version wrote, without the columns and keys that came since: read, shown, and replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
from pandas import DataFrame

import mpifl
from mpifl import open_run
from mpifl.runfile.create import Start
from mpifl.runfile.tables import TABLES, EvaluationRow, UpdateRow
from mpifl.runfile.writer import RunWriter
from mpifl.tools.analysis.options import Options
from mpifl.tools.analysis.report import report
from mpifl.tools.analysis.show import show
from tests.mpi.files import differing

NEW = {
    "updates": ["bytes_down", "compute", "exchange", "waited"],
    "events": ["updates", "version"],
    "evaluations": [
        "client_accuracy_q25", "client_accuracy_median", "client_accuracy_q75", "client_accuracy_worst",
        "client_accuracy_variance",
        "personal_accuracy_q25", "personal_accuracy_median", "personal_accuracy_q75", "personal_accuracy_best",
        "client_accuracy_mean", "gradient_norm", "gradient_mapping", "age", "validation_loss", "validation_accuracy",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run file of the present version, and the same as an older version wrote it."""
    folder = tmp_path_factory.mktemp("old")
    job = mpifl.load_job(
        {
            "name": "new", "seed": 1, "output": str(folder / "new.h5"), "stop": {"updates": 40},
            "problem": {"clients": 4, "batch_size": 8}, "algorithm": {"name": "area", "trigger": {"every": 2}},
            "clock": {"mode": "virtual", "delay": "exponential"}, "evaluate": {"updates": 10},
        }
    )  # fmt: skip
    mpifl.run(job).close()
    old = folder / "old.h5"
    old.write_bytes((folder / "new.h5").read_bytes())
    with h5py.File(old, "r+", libver="latest") as file:
        for table, names in NEW.items():
            for name in names:
                del file[table][name]
        del file["clients/on"], file["model/constants"]
        made = yaml.safe_load(file.attrs["config"])
        del file["checksums"], file["client_evaluations"], file["metrics"], file["logged"], file.attrs["id"]
        del made["problem"]["test_split"]
        made["evaluate"] = {"updates": 10}
        file.attrs["config"] = yaml.safe_dump(made)
    return folder / "new.h5", old


def is_missing(frame: DataFrame, table: str, name: str) -> bool:
    """Whether every row of a column has the value of files that do not have it."""
    expected = np.full(len(frame), TABLES[table].columns[name].missing)
    return np.array_equal(frame[name], expected, equal_nan=True)


def test_an_old_file_is_read(files: tuple[Path, Path]) -> None:
    """Missing columns are NaN in every row, -1 in /events, or 0 s that messages waited; the rest is unchanged."""
    with open_run(files[0]) as new, open_run(files[1]) as old:
        for table, names in NEW.items():
            one, other = getattr(new, table), getattr(old, table)
            assert list(one) == list(other) == list(TABLES[table].columns) and len(one) == len(other) > 0
            assert all(is_missing(other, table, name) for name in names)
            assert one.drop(columns=names).equals(other.drop(columns=names))
        assert list(old.clients) == list(new.clients) and old.clients.on.isna().all() and (new.clients.on == 1).all()
        assert not old.module_state.entries
        assert list(old.client_evaluations) == list(new.client_evaluations) and len(old.client_evaluations) == 0
        assert np.array_equal(old.model, new.model) and old.status == "completed" and not old.id and new.id


def test_an_old_file_is_shown_and_reported(files: tuple[Path, Path], tmp_path: Path) -> None:
    pages: list[list[str]] = [[], []]
    for path, lines in zip(files, pages, strict=True):
        show(path, write=lines.append)
    one, other = ("\n".join(lines).replace("new.h5", "old.h5") for lines in pages)
    assert one == other and "train_loss" in one and "nan" not in one
    one, other = (report([path], tmp_path / path.stem, Options(formats=("csv",))) for path in files)
    assert one.partition("wrote")[0] == other.partition("wrote")[0] and "personal" not in one.lower()
    assert (tmp_path / "new/report.csv").read_text() == (tmp_path / "old/report.csv").read_text()


def test_an_old_file_is_replayed(files: tuple[Path, Path], tmp_path: Path) -> None:
    """The replay has the same rows and the same model."""
    mpifl.replay(files[1], output=tmp_path / "again.h5").close()
    assert not differing(files[0], tmp_path / "again.h5", but=("events", "evaluations/age"))
    with open_run(tmp_path / "again.h5") as run:
        assert run.evaluations.age.isna().all()  # not recorded


def test_an_old_run_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a file that was never closed are checked by the columns that it has."""
    with monkeypatch.context() as patch:
        for table, names in NEW.items():
            columns = {name: column for name, column in TABLES[table].columns.items() if name not in names}
            patch.setitem(TABLES, table, replace(TABLES[table], columns=columns))
        writer = RunWriter(tmp_path / "run.h5", Start({}, {"samples": [1, 2], "rank": [0, 0]}, np.zeros(2), []))
        writer.extend([UpdateRow(0.5 * k, 1, 0, 0, 1, 16, 2.5) for k in range(5)])
        writer.append(EvaluationRow(0.0, 0, 0, 2.0, 2.0, 0.5))
        writer.flush()
    with open_run(tmp_path / "run.h5") as run:
        assert run.open_ended and run.updates.time.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
        assert all(is_missing(run.updates, "updates", name) for name in NEW["updates"])
        assert run.evaluations.test_accuracy.tolist() == [0.5] and run.evaluations.gradient_norm.isna().all()
    writer.close("completed")
