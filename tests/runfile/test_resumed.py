"""A run file is resumed from a checkpoint: rows up to it stay, later ones go, and a complete file exists at every
instant."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from mpifl.errors import ConfigError
from mpifl.runfile import create
from mpifl.runfile import tables as rows
from mpifl.runfile import writer as writer_module
from mpifl.runfile.create import Start
from mpifl.runfile.reader import open_run
from mpifl.runfile.run_lock import Lock
from mpifl.runfile.writer import RunWriter
from tests.checkpoint.sets import save
from tests.runfile.test_writer import ATTRS, writer

no_room = Mock(side_effect=OSError(28, "No space left on device"))
COUNTS = {"updates": 23, "aggregations": 24, "evaluations": 2, "logged": 23, "client_evaluations": 4,
          "metrics": 5, "events": 3}  # fmt: skip


def fill(w: RunWriter, begin: int = 0, end: int = 50) -> None:
    for k in range(begin, end):
        w.append(rows.UpdateRow(k / 10, k % 3, k, k % 2, 1, 16, k / 3, 24, k / 7, k / 9))
        w.append(rows.AggregationRow(k / 10, k))
        w.append(rows.LoggedRow(k, -1, "nümber", k / 3))
        w.append(rows.EvaluationRow(k / 10, k, k // 2, train_loss=1 / (k + 1)))
        w.extend([rows.ClientEvaluationRow(k, k % 3, k / 50, k / 70)])
        w.extend([rows.MetricRow(k, f"mëtric {k}", k / 9)])
        w.append(rows.EventRow(k / 10, f"kind {k}", k % 3, f"tëxt {k}", k, k // 2))


def resumed(path: Path, **changes: Any) -> RunWriter:
    arguments: dict[str, Any] = {
        "attrs": {**ATTRS, "ranks": 5, "hosts": ["c"]},
        "clients": {"samples": [5, 6, 7], "rank": [1, 2, 3], "rate": [10.0, 20.0, 30.0]},
        "states": ["live", "aside", "lost"],
        "x": np.array([5, 6, 7, 8], np.float32),
        "version": 4,
        "layout": [("w", (3, 1)), ("b", (1,))],
    }
    counts = changes.pop("counts", COUNTS)
    halves = {table: count // 2 for table, count in counts.items()}
    if "rows" not in changes:  # several blocks
        arguments["rows"] = [rows_of(path, halves), rows_of(path, counts, halves)]
    if "session" not in changes:
        kept, arguments["session"] = attributes(path, 2)
        arguments["attrs"] |= changes.pop("attrs", {}) | kept
    others = {name: (arguments | changes).get(name) for name in ("rows", "session", "aside")}
    start = {name: value for name, value in (arguments | changes).items() if name not in others}
    return RunWriter.resumed(path, Start(**start), **others)


def rows_of(path: Path, counts: Mapping[str, int], first: Mapping[str, int] | None = None) -> rows.RowBlock:
    """Rows of a run file, by table and column, as a checkpoint has them."""
    with open_run(path) as run:
        return {
            table: {
                name: run.rows(table, name, first[table] if first else 0, counts[table]) for name in columns.columns
            }
            for table, columns in rows.TABLES.items()
        }


def attributes(path: Path, number: int) -> tuple[dict[str, Any], str]:
    """Attributes of a run file that remain when it is resumed from checkpoint `number`; its session."""
    with open_run(path) as run:
        kept = {name: run.attrs.get(name, "") for name in ("id", "started", "began")}
        return {**kept, "resumed_from": number}, str(run.attrs.get("session", ""))


def tables(path: Path) -> dict[str, pd.DataFrame]:
    with open_run(path) as run:
        return {table: getattr(run, table) for table in rows.TABLES}


def ended(path: Path, how: str) -> dict[str, pd.DataFrame]:
    """Makes an old run file; returns its rows."""
    w = writer(path)
    fill(w)
    if how == "text of fixed length":  # closed, but there was no room for the copy with ordinary text
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer_module.shutil, "copyfile", no_room)
            w.close("interrupted", np.arange(4))
    elif how == "failed":
        w.close("failed")
    elif how == "interrupted":
        w.set_client_state(1, "lost")
        w.close("interrupted", np.arange(4))
    else:
        w.flush()  # and its thread goes on, as in a process that nobody has killed yet
    return tables(path)


@pytest.mark.parametrize("how", ["open", "failed", "interrupted", "text of fixed length"])
def test_rows_up_to_the_checkpoint_stay(tmp_path: Path, how: str) -> None:
    path = tmp_path / "run.h5"
    before = ended(path, how)
    with open_run(path) as run:
        first, started = run.id, run.attrs["started"]
    w = resumed(path)
    with open_run(path) as run:
        assert run.status == "running" and run.open_ended and run.attrs["finished"] == ""
        assert run.id == w.id == first and run.attrs["started"] == started
        assert run.attrs["ranks"] == 5 and run.attrs["hosts"] == ["c"] and np.isnan(run.attrs["wall_seconds"])
        assert run.model.tolist() == [5, 6, 7, 8] and run.model.dtype == np.float32 and run.model_version == 4
        assert run.clients.state.tolist() == ["live", "aside", "lost"] and run.clients["rank"].tolist() == [1, 2, 3]
        assert run.clients.updates.tolist() == [8, 8, 7]
        for table, count in COUNTS.items():
            assert getattr(run, table).equals(before[table].iloc[:count]) and run.count(table) == count
        assert run.checksums().rows == COUNTS and not run.checksums().wrong, "the blocks of the old file are cut"
    assert w.counts() == COUNTS
    fill(w, 23, 29)
    assert w.counts() == {table: count + 6 for table, count in COUNTS.items()}
    w.set_client_state(0, "lost")
    w.close("completed", np.array([1, 1, 1, 1]))
    after = tables(path)
    assert after["updates"].equals(before["updates"].iloc[:29])
    assert after["events"].kind.tolist() == [f"kind {k}" for k in (0, 1, 2, *range(23, 29))]
    with open_run(path) as run:
        assert run.clients.updates.tolist() == [10, 10, 9] and run.clients.state.tolist() == ["lost", "aside", "lost"]
        assert run.status == "completed" and run.model.tolist() == [1, 1, 1, 1] and run.model_version == 30
        assert not run.open_ended and run.id == first and run.attrs["started"] == started < run.attrs["finished"]
        assert run.checksums().rows == w.counts() and not run.checksums().wrong
    assert os.listdir(tmp_path) == ["run.h5"]


def test_what_is_refused_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the new one cannot be written; rows of other clients; a file that could not be read, and that another
    process has resumed meanwhile."""
    path = tmp_path / "run.h5"
    ended(path, "failed")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(writer_module.os, name, no_room)
            with pytest.raises(ConfigError, match=r"^output=.*No space left on device"):
                resumed(path)
    before, rows, says = path.read_bytes(), rows_of(path, COUNTS), "another process has resumed the run meanwhile"
    with pytest.raises(ConfigError, match=f"^run file=.*{says}"):
        resumed(path, rows=[rows], session=None, attrs=ATTRS, aside=tmp_path / "run.h5.damaged")
    rows["updates"]["client"][5], says = 3, "it has rows of other clients; expected rows of clients 0 to 2"
    with pytest.raises(ConfigError, match=f"^checkpoint=.*: {says}"):
        resumed(path, rows=[rows])
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["run.h5"]


# -- checkpoints beside the file ---------------------------------------------------------------------------------------
def test_checkpoints_of_another_run_stay_unless_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = tmp_path / "run.h5", tmp_path / "run.ckpt"
    folder.mkdir()
    (folder / "000001.rank0").write_text("")  # of a run without a complete checkpoint: it is in nobody's way
    writer(path).close("completed")
    assert os.listdir(tmp_path) == ["run.h5"]
    path.unlink()
    save(folder, 3, size=10)
    says = "run.ckpt holds checkpoints of a run whose file is missing; continue that run by mpifl resume .*/run.h5, "
    with pytest.raises(ConfigError, match=f"^output=.*: {says}"):
        writer(path)
    with pytest.raises(TypeError):
        writer(path, overwrite=True, attrs={"name": object()})
    assert os.listdir(tmp_path) == ["run.ckpt"] and len(os.listdir(folder)) == 3, "a run that did not begin"
    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "remove", no_room)
        with pytest.raises(ConfigError, match=r"^output=.*No space left"):
            writer(path, overwrite=True)
    assert os.listdir(tmp_path) == ["run.ckpt"]
    w = writer(path, overwrite=True)
    assert os.listdir(tmp_path) == ["run.h5"]
    save(folder, 1, size=10)
    w.close("interrupted")
    resumed(path, counts=dict.fromkeys(rows.TABLES, 0)).close("completed")
    assert len(os.listdir(folder)) == 3, "a run that resumes keeps its own"


@pytest.mark.parametrize("begin", ["anew", "resumed"])
def test_only_what_the_dead_left_is_swept_away(tmp_path: Path, begin: str) -> None:
    """What is just written (in the future here, as tests may wait) or locked may be that of a process that goes on."""
    if begin == "resumed":
        ended(tmp_path / "run.h5", "failed")
    ages = {".run.h5.0123abcd": 1e6, ".run.h5.4567abcd": 2, ".run.h5.89abcdef": -60, ".run.h5.cdef0123": 2}
    for name, age in ages.items():
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    lock = Lock(tmp_path / ".run.h5.cdef0123")
    (writer if begin == "anew" else resumed)(tmp_path / "run.h5").close("completed")
    lock.release()
    assert sorted(os.listdir(tmp_path)) == [".run.h5.89abcdef", ".run.h5.cdef0123", "run.h5"]


def test_a_file_that_is_kept_under_another_name_has_its_own_until_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each instant there is a complete file of the name, so that a kill leaves one."""
    path, aside = tmp_path / "run.h5", tmp_path / "run.h5.before"
    writer(path).close("completed")
    before = path.read_bytes()
    rename, seen = create.rename, []
    monkeypatch.setattr(create, "rename", lambda *given: (seen.append(path.read_bytes()), rename(*given)))
    writer(path, aside=aside).close("completed")
    assert seen == [before] and aside.read_bytes() == before != path.read_bytes()
