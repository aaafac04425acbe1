"""A run file goes on from a checkpoint: rows up to it stay, later ones go, and at no instant is there no whole file."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

from mpifl.errors import ConfigError
from mpifl.storage import RunWriter, open_run
from mpifl.storage import continuation as resume_module
from mpifl.storage import reader as reader_module
from mpifl.storage import writer as writer_module
from mpifl.storage.tables import TABLES, AggregationRow, EvaluationRow, EventRow, UpdateRow
from tests.storage.checksums import changing
from tests.storage.sets import save
from tests.storage.test_writer import ATTRS, writer
from tests.tiers import examples

COUNTS = {"updates": 23, "aggregations": 24, "evaluations": 2, "events": 3}


def fill(w: RunWriter, begin: int = 0, end: int = 50) -> None:
    for k in range(begin, end):
        w.append(UpdateRow(k / 10, k % 3, k, k % 2, 1, 16, k / 3, 24, k / 7, k / 9))
        w.append(AggregationRow(k / 10, k))
        w.append(EvaluationRow(k / 10, k, k // 2, train_loss=1 / (k + 1)))
        w.append(EventRow(k / 10, f"kind {k}", k % 3, f"tëxt {k}", k, k // 2))


def resumed(path: Path, **changes: Any) -> RunWriter:
    arguments: dict[str, Any] = {
        "attrs": {**ATTRS, "ranks": 5, "hosts": ["c"]},
        "clients": {"samples": [5, 6, 7], "rank": [1, 2, 3], "rate": [10.0, 20.0, 30.0]},
        "number": 2,
        "counts": COUNTS,
        "states": ["live", "aside", "lost"],
        "x": np.array([5, 6, 7, 8], np.float32),
        "version": 4,
        "layout": [("w", (3, 1)), ("b", (1,))],
    }
    return RunWriter.resumed(path, **(arguments | changes))


def tables(path: Path) -> dict[str, pd.DataFrame]:
    with open_run(path) as run:
        return {table: getattr(run, table) for table in TABLES}


def ended(path: Path, how: str) -> dict[str, pd.DataFrame]:
    """An old run file; returns its rows."""
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


def no_room(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("how", ["open", "failed", "interrupted", "text of fixed length"])
def test_rows_up_to_the_checkpoint_stay(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume_module, "ROWS_AT_ONCE", 7)  # rows: several blocks, the last one not full
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
    assert os.listdir(tmp_path) == ["run.h5"]


def test_resumed_again_and_from_the_beginning(tmp_path: Path) -> None:
    ended(tmp_path / "run.h5", "failed")
    first = resumed(tmp_path / "run.h5")
    fill(first, 23, 40)
    first.close("interrupted")
    again = resumed(tmp_path / "run.h5", counts=dict.fromkeys(TABLES, 4))
    again.close("interrupted")
    assert [len(frame) for frame in tables(tmp_path / "run.h5").values()] == [4, 4, 4, 4]
    none = resumed(tmp_path / "run.h5", counts=dict.fromkeys(TABLES, 0), states=["live"] * 3, version=0)
    assert none.id == first.id and not any(none.counts().values())
    fill(none)
    none.close("completed")
    with open_run(tmp_path / "run.h5") as run:
        assert len(run.updates) == 50 and run.clients.updates.tolist() == [17, 17, 16]


def test_files_that_are_too_short_or_of_another_run_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    ended(path, "failed")
    before = path.read_bytes()
    for changes, words in (
        ({"counts": COUNTS | {"evaluations": 51}}, "at least 51 evaluations, as at the checkpoint; this one has 50"),
        ({"states": ["live"] * 4}, "one of 4 clients; this one has 3"),
    ):
        with pytest.raises(ConfigError, match=f"^run file=.*{words}"):
            resumed(path, **changes)
    with changing(path) as file:
        file["updates/client"][5] = 3
    other = path.read_bytes()
    with pytest.raises(ConfigError, match=r"^run file=.*of clients 0 to 2"):
        resumed(path)
    assert path.read_bytes() == other and os.listdir(tmp_path) == ["run.h5"]
    path.write_bytes(before[:5000])
    with pytest.raises(ConfigError, match=r"^run file="):
        resumed(path)
    path.unlink()
    with pytest.raises(ConfigError, match=r"^run file=.*No such file"):
        resumed(path)
    assert os.listdir(tmp_path) == []


def test_the_old_file_stays_where_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.h5"
    ended(path, "failed")
    before = path.read_bytes()
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(resume_module.os, name, no_room)
            with pytest.raises(ConfigError, match=r"^output=.*No space left on device"):
                resumed(path)
        assert path.read_bytes() == before and os.listdir(tmp_path) == ["run.h5"]
    resumed(path).close("completed")


def test_damaged_files_are_refused_and_stay_or_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in them: an error of one line, or a run file."""
    monkeypatch.setattr(reader_module, "OPEN_ATTEMPTS", 1)
    ended(tmp_path / "whole.h5", "interrupted")
    whole, path, refused = (tmp_path / "whole.h5").read_bytes(), tmp_path / "run.h5", 0
    trials = examples(150)
    for trial in range(trials):
        random_bytes, content = random.Random(trial), bytearray(whole)
        for _ in range(random_bytes.randint(1, 4)):
            place = random_bytes.randrange(len(whole) if trial % 3 else 20_000)
            content[place] = random_bytes.randrange(256)
        path.write_bytes(content)
        try:
            resumed(path).close("completed")
        except ConfigError as error:
            refused += 1
            assert path.read_bytes() == content and error.key in ("run file", "output")
        else:
            with open_run(path) as run:
                assert len(run.updates) == COUNTS["updates"]
        assert sorted(os.listdir(tmp_path)) == ["run.h5", "whole.h5"]
    assert trials * 2 // 15 < refused < trials * 13 // 15


def test_a_file_of_an_older_version(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    before = ended(path, "interrupted")
    old = {"updates": ["bytes_down", "compute"], "events": ["updates", "version"], "evaluations": ["gradient_norm"]}
    with h5py.File(path, "r+", libver="latest") as file:
        del file.attrs["id"], file["checksums"]
        for table, names in old.items():
            for name in names:
                del file[table][name]
    w = resumed(path)
    w.close("interrupted")
    after = tables(path)
    assert (after["events"][["updates", "version"]] == -1).all(axis=None) and len(w.id) == 16
    assert (after["updates"].bytes_down == 0).all() and after["updates"]["compute"].isna().all()
    for table, names in old.items():
        assert after[table].drop(columns=names).equals(before[table].iloc[: COUNTS[table]].drop(columns=names))


# -- checkpoints beside the file ---------------------------------------------------------------------------------------
def test_checkpoints_of_another_run_stay_unless_overwritten(tmp_path: Path) -> None:
    path, folder = tmp_path / "run.h5", tmp_path / "run.ckpt"
    save(folder, 3, size=10)
    with pytest.raises(ConfigError, match=r"^output=.*run\.ckpt holds checkpoints of another run \(overwrite=true"):
        writer(path)
    with pytest.raises(TypeError):
        writer(path, overwrite=True, attrs={"name": object()})
    assert os.listdir(tmp_path) == ["run.ckpt"] and len(os.listdir(folder)) == 3, "a run that did not begin"
    w = writer(path, overwrite=True)
    assert os.listdir(tmp_path) == ["run.h5"]
    save(folder, 1, size=10)
    w.close("interrupted")
    resumed(path, counts=dict.fromkeys(TABLES, 0)).close("completed")
    assert len(os.listdir(folder)) == 3, "a run that resumes keeps its own"


def test_what_a_run_without_a_complete_checkpoint_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "run.ckpt").mkdir()
    (tmp_path / "run.ckpt" / "000001.rank0").write_text("")
    writer(tmp_path / "run.h5").close("completed")
    assert os.listdir(tmp_path) == ["run.h5"]


def test_only_what_the_dead_left_is_swept_away(tmp_path: Path) -> None:
    """A file that was written to just now may be that of another resume, which then ends with words of its own."""
    ended(tmp_path / "run.h5", "failed")
    for name in (".run.h5.0123abcd", ".run.h5.89abcdef"):
        (tmp_path / name).write_text("")
    os.utime(tmp_path / ".run.h5.0123abcd", (1e9, 1e9))
    resumed(tmp_path / "run.h5").close("completed")
    assert sorted(os.listdir(tmp_path)) == [".run.h5.89abcdef", "run.h5"]
