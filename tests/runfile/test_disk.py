"""The disk: full, read-only, gone, at its limit. What was valid stays valid, and what failed is reported."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mpifl.checkpoint import part as part_module
from mpifl.checkpoint.snapshot import ClientSnapshot
from mpifl.errors import ConfigError, RunFailed
from mpifl.runfile import open_run
from mpifl.runfile import writer as writer_module
from mpifl.runfile.tables import EventRow, UpdateRow
from mpifl.runfile.writer import finalize_attributes
from tests.checkpoint.sets import save_part
from tests.runfile.test_writer import writer

ROOT = Path(__file__).parents[2]
Mount = Callable[..., Path]


def mount(*arguments: str | Path) -> bool:
    try:
        return subprocess.run([*arguments], capture_output=True, timeout=20).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mount]:
    """A file system of a given size in KiB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()

    def make(size: int) -> Path:
        if os.geteuid() != 0 or not mount("mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", place):
            pytest.skip("mounting a small file system takes root, and the right to mount")
        return place

    yield make
    if place.is_mount():
        mount("umount", "-l", place)


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    """It is not created again elsewhere: it may have been on another disk."""
    (tmp_path / "disk").mkdir()
    w = writer(tmp_path / "disk" / "run.h5")
    (tmp_path / "disk").rename(tmp_path / "gone")
    assert save_part(tmp_path / "disk" / "a.ckpt", 1, 0, {}) == (1, 0, 0, "No such file or directory")
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
    assert save_part(tmp_path / "run.ckpt", 1, 0, {}) == (1, 0, 0, "File exists")
    for overwrite in (False, True):
        with pytest.raises(
            ConfigError, match=r"output=.*: run.ckpt cannot be read: Not a directory; expected a readable folder"
        ):
            writer(tmp_path / "run.h5", overwrite=overwrite)
    assert os.listdir(tmp_path) == ["run.ckpt"] and (tmp_path / "run.ckpt").read_text() == "precious"


LIMITED = """
import sys, numpy as np
from pathlib import Path
from mpifl.checkpoint.snapshot import ClientSnapshot
from tests.checkpoint.sets import save_part
for number, x in ((1, np.ones(100_000)), (2, np.ones(100_000)[::2]), (3, np.ones(100))):
    print(number, save_part(Path(sys.argv[1]), number, 0, {0: ClientSnapshot({"x": x})}).error)
"""


def test_a_part_beyond_the_size_limit_of_files(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    command = [sys.executable, "-c", LIMITED, str(tmp_path / "a.ckpt")]
    done = subprocess.run(command, cwd=ROOT, preexec_fn=limit, capture_output=True, text=True, timeout=50)
    assert done.stdout.splitlines() == ["1 File too large", "2 File too large", "3 "], done.stderr
    assert os.listdir(tmp_path / "a.ckpt") == ["000003.rank0"]


def test_what_fails_when_it_is_made_durable_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    folder, w = tmp_path / "a.ckpt", writer(tmp_path / "run.h5")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(part_module.os, name, broken)
            found = save_part(folder, 1, 0, {0: ClientSnapshot({"x": np.ones(10)})})
            assert found == (1, 0, 0, "Input/output error") and os.listdir(folder) == []
    assert not save_part(folder, 1, 0, {}).error
    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, "fsync", broken)
        with pytest.raises(RunFailed, match=r"run\.h5 failed: Input/output error"):
            w.close("completed")
    with pytest.raises(RunFailed, match="Input/output error"):
        w.check()


def test_no_room_for_plain_attributes(tmp_path: Path, disk: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed file stays as it is if there is no room for its slightly larger copy."""
    monkeypatch.setattr(writer_module, "finalize_attributes", lambda path: None)
    writer(tmp_path / "run.h5").close("completed")
    whole, place = (tmp_path / "run.h5").read_bytes(), disk(1024)
    path, pages = place / "run.h5", -(-len(whole) // 4096)  # of the size in which such a file system has room
    path.write_bytes(whole)
    (place / "filler").write_bytes(bytes(4096 * (os.statvfs(place).f_bavail - pages)))
    finalize_attributes(path)
    assert sorted(os.listdir(place)) == ["filler", "run.h5"] and path.read_bytes() == whole
    (place / "filler").unlink()
    finalize_attributes(path)
    assert os.listdir(place) == ["run.h5"] and path.read_bytes() != whole
