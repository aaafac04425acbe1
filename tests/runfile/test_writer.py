"""What goes into a run file comes out; files that exist are safe; errors are told."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

from mpifl.checkpoint import part as part_module
from mpifl.checkpoint.snapshot import ClientSnapshot
from mpifl.errors import ConfigError, RunFailed
from mpifl.runfile import create as create_module
from mpifl.runfile import writer as writer_module
from mpifl.runfile.create import Start
from mpifl.runfile.reader import open_run
from mpifl.runfile.tables import TABLES, AggregationRow, EvaluationRow, EventRow, UpdateRow, append_rows, encode
from mpifl.runfile.writer import RunWriter, finalize_attributes
from tests.checkpoint.sets import save_part

ROOT = Path(__file__).parents[2]
ATTRS: dict[str, Any] = {
    "name": "ärea",
    "algorithm": "area",
    "config": "name: ärea\nproblem: {clients: 3}\n",
    "seed": 7,
    "clock": "virtual",
    "clients": 3,
    "ranks": 2,
    "hosts": ["a", "b"],
    "mpi": "none",
    "git_commit": None,
}


def writer(path: Path, **changes: Any) -> RunWriter:
    arguments: dict[str, Any] = {
        "attrs": ATTRS,
        "clients": {"samples": [5, 6, 7], "rank": [1, 1, 1], "rate": [10.0, 20.0, 30.0]},
        "x": np.array([1, 2, 3, 4], np.float32),
        "layout": [("w", (3, 1)), ("b", (1,))],
    }
    others = {name: changes.pop(name) for name in ("overwrite", "aside") if name in changes}
    return RunWriter(path, Start(**(arguments | changes)), **others)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "run.h5"
    w = writer(path)
    w.append(UpdateRow(0.5, 2, 0, 0, 1, 16, 2.5))
    w.append(UpdateRow(0.75, 1, 0, 1, 5, 16, 1.25))
    w.append(UpdateRow(1.0, 2, 1, 0, 1, 16, 0.5, 24, 0.25, 0.125))
    w.append(AggregationRow(0.75, 2))
    w.append(EvaluationRow(0.0, 0, 0, train_loss=2.25, test_accuracy=0.125))
    w.append(EventRow(0.75, "note"))
    w.append(EventRow(0.875, "lost", 1, "rank 1 left", 2, 1))
    w.set_client_state(1, "lost")
    w.set_attr("server_cpu_share", 0.5)
    w.close("completed", np.array([4, 3, 2, 1]))
    w.close("failed", np.zeros(4))  # a second call changes nothing
    with open_run(path) as run:
        assert run.status == "completed" and run.attrs["name"] == "ärea" and run.attrs["hosts"] == ["a", "b"]
        assert run.attrs["schema"] == 1 and run.attrs["seed"] == 7 and run.attrs["git_commit"] == ""
        assert run.attrs["server_cpu_share"] == 0.5 and np.isnan(run.attrs["peak_rss_mb"])
        assert run.attrs["started"] < run.attrs["finished"] and run.attrs["finished"][-6] in "+-"
        assert run.config == {"name": "ärea", "problem": {"clients": 3}}
        assert list(run.updates) == list(TABLES["updates"].columns)
        assert run.updates.fillna(-1).to_numpy().tolist() == [
            [0.5, 2, 0, 0, 1, 16, 2.5, 0, -1, -1, 0],
            [0.75, 1, 0, 1, 5, 16, 1.25, 0, -1, -1, 0],
            [1.0, 2, 1, 0, 1, 16, 0.5, 24, 0.25, 0.125, 0],
        ]
        assert run.aggregations.to_numpy().tolist() == [[0.75, 2]]
        assert run.evaluations.iloc[0, :4].tolist() == [0.0, 0, 0, 2.25]
        assert run.evaluations.test_accuracy.tolist() == [0.125]
        assert run.evaluations[["test_loss", "personal_accuracy_mean"]].isna().all(axis=None)
        assert run.events.to_numpy().tolist() == [
            [0.75, "note", -1, "", -1, -1],
            [0.875, "lost", 1, "rank 1 left", 2, 1],
        ]
        assert len(run.id) == 16 and int(run.id, 16) and run.id == w.id == run.attrs["id"]
        assert run.clients.updates.tolist() == [0, 1, 2] and run.clients.state.tolist() == ["live", "lost", "live"]
        assert run.clients.rate.tolist() == [10, 20, 30] and run.clients.samples.tolist() == [5, 6, 7]
        assert run.model.tolist() == [4, 3, 2, 1] and run.model.dtype == np.float32 and run.model_version == 1
        assert run.layout == [("w", (3, 1)), ("b", (1,))]
    assert os.listdir(path.parent) == ["run.h5"]


def test_long_text_is_cut_between_characters(tmp_path: Path) -> None:
    assert encode("aü", 2) == b"a" and encode("aü", 3) == "aü".encode()
    w = writer(tmp_path / "run.h5")
    w.append(EventRow(0, "k" * 40, -1, "x" + "ü" * 300))
    w.close("completed")
    with open_run(tmp_path / "run.h5") as run:
        assert run.events.kind[0] == "k" * 32 and run.events.text[0] == "x" + "ü" * 255


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "none"])
def test_existing_file_stays_unless_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    path = tmp_path / "run.h5"
    path.write_text("precious")
    with pytest.raises(ConfigError, match=r"output=.*overwrite=true"):
        writer(path)
    assert path.read_text() == "precious" and os.listdir(tmp_path) == ["run.h5"]
    for overwrite in (True, False):
        writer(path, overwrite=overwrite).close("completed")
        assert os.listdir(tmp_path) == ["run.h5"] and open_run(path).status == "completed"
        path.unlink()


def test_failed_start_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    path.write_text("precious")
    for attrs in ({"name": object()}, {"hosts": [object()]}):
        with pytest.raises(TypeError):
            writer(path, overwrite=True, attrs=ATTRS | attrs)
    assert path.read_text() == "precious" and os.listdir(tmp_path) == ["run.h5"]
    opened = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert not [name for name in opened if name.startswith(str(tmp_path))]


def test_a_file_that_appears_meanwhile_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.h5"
    create_datasets = create_module.create_datasets

    def slow(*arguments: Any, **keys: Any) -> None:
        create_datasets(*arguments, **keys)
        path.write_text("precious")

    monkeypatch.setattr("mpifl.runfile.writer.create_datasets", slow)
    with pytest.raises(ConfigError, match="overwrite=true"):
        writer(path)
    assert path.read_text() == "precious" and os.listdir(tmp_path) == ["run.h5"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "run.h5", Path("/proc/run.h5"), tmp_path / ("x" * 300)):
        with pytest.raises(ConfigError, match=r"^output="):
            writer(path)
    assert os.listdir(tmp_path) == ["file"]


def test_disk_error_in_the_thread_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w = writer(tmp_path / "run.h5")
    w.append(UpdateRow(0, 0, 0, 0, 1, 0, 0))
    w.flush()

    def full(table: h5py.Group, columns: dict[str, np.ndarray]) -> None:
        append_rows(table, {name: columns[name] for name in ("time", "client")})  # which no reader may see
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("mpifl.runfile.writer.append_rows", full)
        w.append(UpdateRow(0, 0, 0, 0, 1, 0, 0))
        with pytest.raises(RunFailed, match=r"run\.h5 failed: No space left on device"):
            w.flush()
    with pytest.raises(RunFailed):
        w.check()
    with pytest.raises(RunFailed):
        w.close("completed", np.zeros(4))
    with open_run(tmp_path / "run.h5") as run:
        assert len(run.updates) == 1 and run.status == "failed"


FULL = """
import sys, time, numpy as np
from mpifl.checkpoint.snapshot import ClientSnapshot
from mpifl.errors import RunFailed
from mpifl.runfile.tables import UpdateRow
from tests.checkpoint.sets import save_part
from tests.runfile.test_writer import writer
from pathlib import Path
w = writer(Path(sys.argv[1]))
for number, x in ((1, np.ones(1_000_000)), (2, np.ones(2_000_000)[::2]), (3, np.ones(100))):
    print(number, save_part(Path(sys.argv[2]), number, 0, {0: ClientSnapshot({"x": x})}).error)
end = time.monotonic() + 20
try:
    while time.monotonic() < end:
        for k in range(5000):
            w.append(UpdateRow(k, k % 3, 0, 0, 1, 0, 0))
        time.sleep(0.05)
        w.check()
except RunFailed as error:
    print(error)
    try:
        w.close("completed", np.zeros(4))
    except RunFailed:
        sys.exit(3)
"""


@pytest.mark.timeout(60)
def test_file_at_its_size_limit_is_told_and_stays_readable(tmp_path: Path) -> None:
    """A part of a checkpoint that grows beyond the limit leaves nothing."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000_000, 6_000_000))

    path, parts = tmp_path / "run.h5", tmp_path / "a.ckpt"
    command = [sys.executable, "-c", FULL, str(path), str(parts)]
    done = subprocess.run(command, cwd=ROOT, preexec_fn=limit, capture_output=True, text=True, timeout=50)
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == [
        "1 File too large", "2 File too large", "3 ", f"writing {path} failed: File too large"
    ]  # fmt: skip
    assert os.listdir(parts) == ["000003.rank0"]
    with open_run(path) as run:
        assert run.status == "failed" and run.open_ended
        assert (run.updates.time == np.arange(len(run.updates)) % 5000).all()
        assert len(run.updates) > 1000 and run.updates.client.isin([0, 1, 2]).all()


def test_files_that_are_no_run_files(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"

    def refused(match: str) -> None:
        with pytest.raises(ConfigError, match=f"^run file=.*{match}"):
            open_run(path)

    refused("No such file")
    path.write_text("name: not hdf5 at all")
    refused("HDF5")
    path.write_bytes(b"")
    refused("HDF5")
    with h5py.File(path, "w") as file:
        file["x"] = 1
    refused("another HDF5 file")
    path.unlink()
    writer(path).close("completed")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    refused("truncated")


def test_wrong_shape_and_unknown_names(tmp_path: Path) -> None:
    w = writer(tmp_path / "run.h5")
    with pytest.raises(KeyError):
        w.set_attr("status", 1.0)
    with pytest.raises(TypeError, match="accuracy"):
        w.append(EvaluationRow(0, 0, 0, accuracy=1.0))
    with pytest.raises(ValueError, match="status=done"):
        w.close("done")
    with pytest.raises(RunFailed, match="shape"):
        w.close("completed", np.zeros(5))


# -- the disk: full, gone, at its limit --------------------------------------------------------------------------------
def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    """It is not created again elsewhere: it may have been on another disk."""
    (tmp_path / "disk").mkdir()
    w = writer(tmp_path / "disk" / "run.h5")
    (tmp_path / "disk").rename(tmp_path / "gone")
    assert save_part(tmp_path / "disk" / "a.ckpt", 1, 0, {}) == (0, 1, 0, 0, "No such file or directory")
    w.append(UpdateRow(0, 0, 0, 0, 1, 0, 0))
    with pytest.raises(RunFailed, match=r"run\.h5 failed: No such file or directory"):
        w.check_not_replaced()
    with pytest.raises(RunFailed):
        w.close("completed")
    assert os.listdir(tmp_path) == ["gone"]


def test_a_run_file_that_another_took_the_place_of(tmp_path: Path) -> None:
    """The run that replaced the file is not disturbed; the run that lost it reports that."""
    first = writer(tmp_path / "run.h5")
    second = writer(tmp_path / "run.h5", overwrite=True)
    second.append(EventRow(1, "mine"))
    second.flush()
    with pytest.raises(RunFailed, match="the file was replaced"):
        first.close("completed", np.zeros(4))
    second.close("completed")
    with open_run(tmp_path / "run.h5") as run:
        assert run.status == "completed" and run.events.kind.tolist() == ["mine"] and run.id == second.id != first.id
    assert os.listdir(tmp_path) == ["run.h5"]


def test_a_folder_of_checkpoints_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.ckpt").write_text("precious")
    assert save_part(tmp_path / "run.ckpt", 1, 0, {}) == (0, 1, 0, 0, "File exists")
    says = r"output=.*: run.ckpt cannot be read: Not a directory; expected a readable folder"
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=says):
            writer(tmp_path / "run.h5", overwrite=overwrite)
    assert os.listdir(tmp_path) == ["run.ckpt"] and (tmp_path / "run.ckpt").read_text() == "precious"


def test_what_fails_when_it_is_made_durable_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Mock(side_effect=OSError(5, "Input/output error"))
    folder, w = tmp_path / "a.ckpt", writer(tmp_path / "run.h5")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(part_module.os, name, broken)
            found = save_part(folder, 1, 0, {0: ClientSnapshot({"x": np.ones(10)})})
            assert found == (0, 1, 0, 0, "Input/output error") and os.listdir(folder) == []
    assert not save_part(folder, 1, 0, {}).error
    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, "fsync", broken)
        with pytest.raises(RunFailed, match=r"run\.h5 failed: Input/output error"):
            w.close("completed")
    with pytest.raises(RunFailed, match="Input/output error"):
        w.check()


def test_no_room_for_plain_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed file stays as it is if its slightly larger copy cannot be written."""
    path = tmp_path / "run.h5"
    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "finalize_attributes", lambda path: None)
        writer(path).close("completed")
    whole, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole), hard))
    try:
        finalize_attributes(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["run.h5"] and path.read_bytes() == whole
    finalize_attributes(path)
    assert os.listdir(tmp_path) == ["run.h5"] and path.read_bytes() != whole
