"""Damaged checkpoints, what `mpifl resume` refuses, and runs whose disk fails."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mpifl import open_run
from mpifl.checkpoint.sets import newest
from mpifl.checkpoint.snapshot import FORMAT
from mpifl.runfile import run_lock
from mpifl.runfile.checkpoint_folder import folder_of
from mpifl.runfile.run_lock import Lock
from mpifl.server.checkpointer import Checkpointer
from tests.mpi.cases import AREA, CASES, job
from tests.mpi.conftest import write
from tests.mpi.files import differing
from tests.server.test_resume import EVERY, changed, keep, kept, moved, mpifl, run  # noqa: F401 - a fixture
from tests.tiers import parameters

CASE = {**CASES["area-before"], "checkpoint": {"updates": EVERY}}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run, and what a kill after each of its checkpoints would leave."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        keep(folder, patch)
        run(folder, "whole", CASE)
    return folder


@pytest.fixture
def interrupted(recorded: Path, tmp_path: Path, kept: list[Path]) -> tuple[Path, Path]:  # noqa: F811
    """The file of a complete run, and that of a run that was killed with two checkpoints."""
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    kept += [tmp_path / f"kept-{k}/whole.h5" for k in range(len(list(tmp_path.glob("kept-*"))))]
    return tmp_path / "whole.h5", kept[2]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 4
    path.write_bytes(data)


def finish_at_once(
    monkeypatch: pytest.MonkeyPatch, then: Callable[[Checkpointer], None] = lambda checkpointer: None
) -> None:
    """Runs wait for each of their checkpoints, and call `then` after it."""
    cut = Checkpointer.begin

    def finished(self: Checkpointer, time: float) -> None:
        cut(self, time)
        self.finish(time)
        then(self)

    monkeypatch.setattr(Checkpointer, "begin", finished)


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a part is gone": ("rank1", Path.unlink),
    "the server's part is cut off": ("rank0", truncate),
    "a bit has changed": ("rank1", flip),
    "the manifest is cut off": ("json", truncate),
    "the manifest is changed": ("json", flip),
    "an empty part": ("rank0", lambda path: os.truncate(path, 0)),
}


def damage(path: Path, number: int, how: str) -> None:
    suffix, change = DAMAGE[how]
    change(folder_of(path) / f"{number:06d}.{suffix}")


@pytest.mark.parametrize("how", parameters(DAMAGE, ["a part is gone", "the manifest is changed"]))
def test_a_damaged_checkpoint(interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str], how: str) -> None:
    """Resume takes the checkpoint before and reports it. If that is damaged too, nothing is changed."""
    whole, path = interrupted
    both = moved(path, path.parent / "both")
    damage(path, 3, how)
    capsys.readouterr()
    assert mpifl("resume", path) == 0
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "checkpoint 3 is damaged" in err and "resuming from checkpoint 2" in err, err
    assert not differing(whole, path, but=("events",))
    with open_run(path) as file:
        (text,) = file.events.text[file.events.kind == "resumed"]
        assert text.startswith("from checkpoint 2; checkpoint 3 is damaged")
    for number in (2, 3):
        damage(both, number, how)
    refused(both, capsys, "checkpoint 3 is damaged", "checkpoint 2 is damaged")


def refused(path: Path, capsys: pytest.CaptureFixture[str], *says: str) -> None:
    """One line, exit code 2, and nothing is changed."""

    def there() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in path.parent.rglob("*") if p.is_file()}

    before = there()
    capsys.readouterr()
    assert mpifl("resume", path) == 2
    out, err = capsys.readouterr()
    assert err.startswith("mpifl: ") and err.count("\n") == 1 and not out, err
    assert all(text in err for text in says), err
    assert there() == before


def test_a_missing_segment_is_written_again_from_the_run_file(
    interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both checkpoints list it. Without the run file there is nothing to write it from."""
    whole, path = interrupted
    first = min(folder_of(path).glob("*.rows0"))
    both, written = moved(path, path.parent / "both"), first.read_bytes()
    first.unlink()
    assert mpifl("resume", path) == 0
    assert not differing(whole, path, but=("events",))
    (folder_of(both) / first.name).unlink()
    both.unlink()
    capsys.readouterr()
    assert mpifl("resume", both) == 2
    assert f"{first.name} is missing" in capsys.readouterr().err
    (folder_of(both) / first.name).write_bytes(written)
    assert mpifl("resume", both) == 0
    assert not differing(whole, both, but=("events",))


@pytest.mark.parametrize("lost", ["a segment", "the folder"])
def test_checkpoints_go_on_when_files_are_lost_in_mid_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The next one has all rows, and the folder that was made again is locked."""
    locked = []

    def lose(checkpointer: Checkpointer) -> None:
        locked.append(run_lock.is_locked(checkpointer.folder))
        if checkpointer.complete == 2:
            if lost == "the folder":
                shutil.rmtree(checkpointer.folder)
            else:
                min(checkpointer.folder.glob("*.rows0")).unlink()

    finish_at_once(monkeypatch, lose)
    made = run(tmp_path, "made", CASE)
    assert locked == [True] * 4
    with open_run(made) as file:
        assert "checkpoint-failed" not in set(file.events.kind)
        checkpoint, passed = newest(folder_of(made), file.id)
        assert checkpoint is not None and checkpoint.number == 4 and not passed
        rows = [block["updates"]["client"] for block in checkpoint.rows()]
        assert np.concatenate(rows).tolist() == file.updates.client[: 4 * EVERY].tolist()


def test_checkpoints_that_fail_in_succession_are_in_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mpifl.server.checkpointer.commit", full)
    finish_at_once(monkeypatch)
    run(tmp_path, "made", CASE)
    out, err = capsys.readouterr()
    why = "[Errno 28] No space left on device"
    assert err.splitlines()[:2] == [f"mpifl: checkpoint {k} could not be completed: {why}" for k in (1, 2)]
    assert f"; the last 4 checkpoints failed: {why}" in out.splitlines()[-1]


def test_a_completed_run(interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    whole, path = interrupted
    refused(whole, capsys, "completed")
    assert mpifl("resume", path) == 0
    refused(path, capsys, "completed")


@pytest.mark.damaged
def test_checkpoints_of_another_run(interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Checkpoints of the same job, in place of the run's own."""
    whole, path = interrupted
    shutil.rmtree(folder_of(path))
    refused(path, capsys, "run the job again, which starts it anew")
    shutil.copytree(folder_of(whole), folder_of(path))
    other = changed(whole, path.parent / "other", status="interrupted", id="0" * 32)
    refused(other, capsys, "is of another run")


def test_a_newer_schema(interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(interrupted[0], interrupted[1].parent / "newer", status="interrupted", schema=2)
    refused(path, capsys, "schema 2", "update mpifl")


def test_a_newer_checkpoint(interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The message names its format; the checkpoint before, which can be read, is used."""
    whole, path = interrupted
    manifest = folder_of(path) / "000003.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": FORMAT + 1}))
    assert mpifl("resume", path) == 0
    assert "checkpoint 3 is of a newer format" in capsys.readouterr().err
    assert not differing(whole, path, but=("events",))


def test_a_run_that_goes_on(
    interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is locked; without locks it is written to all the time."""
    _, path = interrupted
    lock = Lock(path)
    refused(path, capsys, "the run is still being written; expected one that has ended")
    lock.release()
    monkeypatch.setattr(run_lock, "is_locked", lambda path: None)
    with touched(path):
        refused(path, capsys, "the run is still being written; expected one that has ended")


@contextlib.contextmanager
def touched(path: Path) -> Iterator[None]:
    """A thread keeps changing the file's time, as the process of a live run does."""
    over = threading.Event()

    def touch() -> None:
        while not over.wait(0.2):
            os.utime(path)

    os.utime(path)
    alive = threading.Thread(target=touch)
    alive.start()
    try:
        yield
    finally:
        over.set()
        alive.join()


def test_a_file_that_lacks_rows(interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier copy of the run file, from before later checkpoints: these hold the rows that it lacks."""
    whole, path = interrupted
    shutil.copy2(path.parent.parent / "kept-0" / path.name, path)
    assert mpifl("resume", path) == 0
    assert capsys.readouterr().err == ""
    assert not differing(whole, path, but=("events",))


@pytest.mark.damaged
def test_a_replay_is_not_resumed(interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    whole, _ = interrupted
    again = whole.with_name("again.h5")
    assert mpifl("replay", whole, f"output={again}") == 0
    folder_of(again).mkdir()
    refused(changed(again, interrupted[1].parent / "replay", status="interrupted"), capsys, "a replay")


# -- disks -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 5 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(place)]
    if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk can only be mounted by root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk(
    tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run continues without the checkpoints that do not fit, and says so; none leaves its parts behind."""
    finish_at_once(monkeypatch)
    large = {"clients": 5, "model": {"name": "quadratic", "dim": 30000}, "dtype": "float64"}  # 240 kB a vector
    case = job({**AREA, "trigger": {"every": 2}}, large, checkpoint={"updates": 3})
    whole = run(tmp_path, "whole", {**case, "checkpoint": {}})
    capsys.readouterr()
    made = small_disk / "made.h5"
    assert mpifl("run", write(tmp_path, "made", case), f"output={made}") == 0
    err = capsys.readouterr().err
    with open_run(made) as file:
        told = file.events[file.events.kind == "checkpoint-failed"]
        assert len(told) > 10 and told.text.str.contains("No space left on device").all(), file.events
        assert err.splitlines() == [f"mpifl: {text}" for text in told.text]
        assert file.status == "completed"
    assert not differing(whole, made, but=("events",))
    left = {p.name for p in folder_of(made).iterdir()}
    assert left == {"000001.json", "000001.rank0", "000001.rank1", "000001.rows0"}


def test_a_read_only_folder(interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """One line and exit code 2; resume works once the folder can be written to."""
    whole, path = interrupted
    folder = path.parent
    if os.getuid() == 0:
        bind = ["mount", "--bind", str(folder), str(folder)]
        if subprocess.run(bind, capture_output=True).returncode:
            pytest.skip("a folder can only be mounted by root with the capability")
        lock = ["mount", "-o", "remount,ro,bind", str(folder)]
        unlock = ["umount", "-l", str(folder)]
    else:
        lock, unlock = ["chmod", "a-w", str(folder)], ["chmod", "u+w", str(folder)]
    subprocess.run(lock, check=True)
    try:
        refused(path, capsys, "output=")
    finally:
        subprocess.run(unlock, check=True)
    assert mpifl("resume", path) == 0
    assert not differing(whole, path, but=("events",))
