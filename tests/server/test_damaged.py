"""Damaged, missing and foreign checkpoints and run files: what `mpifl resume` uses, refuses and says; full disks."""
# ruff: noqa: F401, F811 - fixtures

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mpifl import open_run
from mpifl.checkpoint.sets import Checkpoint, newest
from mpifl.checkpoint.snapshot import FORMAT
from mpifl.runfile import run_lock
from mpifl.runfile.checkpoint_folder import folder_of
from mpifl.runfile.run_lock import Lock
from mpifl.runfile.writer import RunWriter
from mpifl.server.checkpointer import Checkpointer
from mpifl.server.session import Session
from tests.mpi.cases import AREA, CASES, job
from tests.mpi.conftest import mpifl, write
from tests.mpi.files import differing, folder_contents
from tests.server.test_resume import EVERY, changed, finish_at_once, keep, kept, moved, run
from tests.tiers import long, parameters

CASE = {**CASES["area-before"], "checkpoint": {"updates": EVERY}}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run, and what a kill after each of its checkpoints would leave."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        keep(folder, patch)
        run(folder, "whole", CASE)
    return folder


@dataclass
class Killed:
    """The file of a complete run, and that of the same run when it was killed with checkpoints 2 and 3."""

    whole: Path
    path: Path
    printed: Callable[..., Any]
    refused: Callable[..., str]

    def resume(self, path: Path | None = None) -> str:
        """Resumes the killed run: it comes to the rows and the model of the complete one. What stderr says."""
        err: str = self.printed("resume", path or self.path).err
        assert not differing(self.whole, path or self.path, but=("events",))
        return err

    def refuse(self, *says: str, path: Path | None = None) -> None:
        """A resume is refused, and nothing is changed."""
        file = path or self.path
        before, err = folder_contents(file.parent), self.refused("resume", file)
        assert all(text in err for text in says), err
        assert folder_contents(file.parent) == before

    def checkpoint(self, suffix: str, number: int = 3) -> Path:
        return folder_of(self.path) / f"{number:06d}.{suffix}"


@pytest.fixture
def killed(
    recorded: Path, tmp_path: Path, kept: list[Path], printed: Callable[..., Any], refused: Callable[..., str]
) -> Killed:
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    kept += [tmp_path / f"kept-{k}/whole.h5" for k in range(len(list(tmp_path.glob("kept-*"))))]
    return Killed(tmp_path / "whole.h5", kept[2], printed, refused)


# -- damaged checkpoints -----------------------------------------------------------------------------------------------
DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a part is gone": ("rank1", Path.unlink),
    "the server's part is cut off": ("rank0", lambda path: os.truncate(path, path.stat().st_size - 1)),
    "the manifest is changed": ("json", lambda path: path.write_text(path.read_text().replace("1", "2", 1))),
}


@pytest.mark.parametrize("how", parameters(DAMAGE, ["a part is gone", "the manifest is changed"]))
def test_a_damaged_checkpoint(killed: Killed, how: str) -> None:
    """Resume takes the checkpoint before and reports it. If that is damaged too, nothing is changed."""
    suffix, change = DAMAGE[how]
    change(killed.checkpoint(suffix))
    both = moved(killed.path, killed.path.parent / "both")
    err = killed.resume()
    assert err.count("\n") == 1 and "checkpoint 3 is damaged" in err and "resuming from checkpoint 2" in err, err
    with open_run(killed.path) as file:
        (text,) = file.events.text[file.events.kind == "resumed"]
        assert text.startswith("from checkpoint 2; checkpoint 3 is damaged")
    change(folder_of(both) / f"000002.{suffix}")
    killed.refuse("checkpoint 3 is damaged", "checkpoint 2 is damaged", path=both)


def test_a_missing_segment_is_written_again_from_the_run_file(killed: Killed) -> None:
    """Both checkpoints list it. Without the run file there is nothing to write it from."""
    first = min(folder_of(killed.path).glob("*.rows0"))
    both, written = moved(killed.path, killed.path.parent / "both"), first.read_bytes()
    first.unlink()
    killed.resume()
    (folder_of(both) / first.name).unlink()
    both.unlink()
    killed.refuse(f"{first.name} is missing", path=both)
    (folder_of(both) / first.name).write_bytes(written)
    killed.resume(both)


def test_a_resume_that_is_refused_writes_no_segment(killed: Killed) -> None:
    """Both checkpoints lack the first segment of rows, and have a damaged part of the server."""
    folder = folder_of(killed.path)
    first, *_ = sorted(folder.glob("*.rows0"))
    first.unlink()
    damaged = list(folder.glob("*.rank0"))
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    killed.refuse(*(f"{path.name} has other bytes than were written" for path in damaged))


def test_a_resume_that_cannot_read_its_part(killed: Killed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error's key is that of the checkpoint."""
    clients = Checkpoint.clients

    def gone(self: Checkpoint, rank: int, wanted: Any) -> Any:
        killed.checkpoint(f"rank{rank}").unlink()
        return clients(self, rank, wanted)

    monkeypatch.setattr(Checkpoint, "clients", gone)
    assert killed.refused("resume", killed.path).startswith(f"mpifl: checkpoint={killed.checkpoint('rank1')}: ")


# -- what is not resumed -----------------------------------------------------------------------------------------------
@pytest.mark.damaged
def test_what_is_no_unfinished_run_of_this_version(killed: Killed) -> None:
    """A completed run, a replay, a newer schema; a run without its checkpoints, or with those of the same job."""
    whole, path = killed.whole, killed.path
    killed.refuse("completed", path=whole)
    killed.refuse(
        "schema 2", "update mpifl", path=changed(whole, path.parent / "newer", status="interrupted", schema=2)
    )
    again = whole.with_name("again.h5")
    assert mpifl("replay", whole, f"output={again}") == 0
    folder_of(again).mkdir()
    killed.refuse("a replay", path=changed(again, path.parent / "replay", status="interrupted"))
    other = changed(whole, path.parent / "other", status="interrupted", id="0" * 32)
    killed.refuse("is of another run", path=other)
    shutil.rmtree(folder_of(path))
    killed.refuse("run the job again, which starts it anew")


def test_the_command_of_an_unfinished_run(killed: Killed) -> None:
    """The run goes on from its checkpoint; without one it starts anew, and its file is kept. Another job's is in the
    way."""
    file = killed.path.parents[1] / "whole.yaml"
    anew = moved(killed.path, killed.path.parent / "anew")
    shutil.rmtree(folder_of(anew))
    before = anew.read_bytes()
    for path in (killed.path, anew):
        assert f"output={path}: " in killed.refused("run", file, f"output={path}", "seed=1")
        assert mpifl("run", file, f"output={path}") == 0
        assert not differing(killed.whole, path, but=("events",))
        with open_run(path) as run_:
            assert run_.events.kind.tolist().count("resumed") == (path != anew)
    assert anew.with_name("whole.h5.unfinished").read_bytes() == before
    assert not killed.path.with_name("whole.h5.unfinished").exists()


@pytest.mark.damaged
def test_a_run_that_goes_on(killed: Killed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is locked; without locks it is written to all the time, also where nobody can read it."""
    lock, says = Lock(killed.path), "the run is still being written; expected one that has ended"
    killed.refuse(says)
    assert says in killed.refused("run", killed.path.parents[1] / "whole.yaml", f"output={killed.path}")
    lock.release()
    monkeypatch.setattr(run_lock, "is_locked", lambda path: None)
    with touched(killed.path):
        killed.refuse(says)
    monkeypatch.undo()
    os.truncate(killed.path, 5000)
    with touched(killed.path):
        killed.refuse(says)


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


def test_two_resumes_at_once(killed: Killed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one finds the file of the other, and leaves that file and its checkpoints alone."""
    late, folder = RunWriter.resumed, killed.path.parent

    def other(*args: Any, **more: Any) -> RunWriter:
        monkeypatch.setattr(RunWriter, "resumed", late)
        killed.resume()
        found.update(folder_contents(folder))
        return late(*args, **more)

    found: dict[Path, bytes] = {}
    monkeypatch.setattr(RunWriter, "resumed", other)
    says = "another process has resumed the run meanwhile; resume it again when that has ended\n"
    assert killed.refused("resume", killed.path).endswith(says)
    assert found == folder_contents(folder)


# -- which checkpoints belong to a run file ----------------------------------------------------------------------------
@pytest.mark.parametrize("removed", [True, long(False)], ids=["at once", "not at once"])
def test_a_checkpoint_that_comes_back(killed: Killed, monkeypatch: pytest.MonkeyPatch, removed: bool) -> None:
    """It could not be read, so the run resumed from the one before; it belongs to a part of the run that was undone."""
    folder = folder_of(killed.path)
    aside = shutil.copytree(folder, folder.with_name("aside"))
    killed.checkpoint("rank1").unlink()

    def end(session: Session) -> int:
        """A kill before the first update."""
        moved(killed.path, killed.path.parent / "killed")
        session.writer.close("failed")
        assert session.checkpointer
        session.checkpointer.close()
        return 3

    with monkeypatch.context() as patch:
        patch.setattr(Session, "run", end)
        assert "checkpoint 3 is damaged" in killed.printed("resume", killed.path, code=3).err
    killed.path = killed.path.parent / "killed" / killed.path.name
    assert not killed.checkpoint("json").exists(), "nobody can take it for one of this run"
    if not removed:  # a disk that was away, or another resume that wrote it meanwhile
        shutil.copytree(aside, folder_of(killed.path), dirs_exist_ok=True)
    undone = "checkpoint 3 is of a part of the run that was undone: resuming from checkpoint 2"
    assert (undone in killed.resume()) != removed


def test_a_set_that_a_later_session_undid_is_not_used(killed: Killed, kept: list[Path]) -> None:
    """A process resumed from checkpoint 2 and wrote 3; then the 4 of the process before it is there again."""
    later = moved(kept[3], killed.path.parent / "later")  # it has 3 and 4 of the first process
    killed.checkpoint("rank1").unlink()
    count = len(kept)
    killed.resume()
    killed.path = kept[count]
    assert not killed.checkpoint("json", 4).exists()
    ignore = shutil.ignore_patterns("000003.*")
    shutil.copytree(folder_of(later), folder_of(killed.path), dirs_exist_ok=True, ignore=ignore)
    killed.path.unlink()
    assert killed.resume().splitlines() == [
        "mpifl: whole.h5 is missing: resuming from checkpoint 3",
        "mpifl: checkpoint 4 is of a part of the run that was undone: resuming from checkpoint 3",
    ]


def test_a_file_of_a_version_without_sessions(killed: Killed) -> None:
    """Any checkpoint of the run is accepted."""
    path = changed(killed.whole, killed.whole.parent / "old", status="interrupted")
    with h5py.File(path, "r+") as file:
        del file.attrs["session"], file.attrs["resumed_from"], file["checksums"]
    os.utime(path, (1e9, 1e9))
    killed.resume(path)


# -- run files that are damaged, missing, old, or links ----------------------------------------------------------------
def scrambled(path: Path) -> None:
    """Keeps the superblock, so that HDF5 still recognises the file."""
    data = path.read_bytes()
    path.write_bytes(data[:48] + random.Random(1).randbytes(4096) + data[48 + 4096 :])


def heap(path: Path) -> None:
    """Overwrites the strings of its attributes with zeros, which HDF5 would read for ever."""
    data = path.read_bytes()
    place = data.index(b"GCOL") + 16
    path.write_bytes(data[:place] + bytes(1024) + data[place + 1024 :])


LOST: dict[str, Callable[[Path], None]] = {
    "it is gone": Path.unlink,
    "it is empty": lambda path: os.truncate(path, 0),
    "it is cut off": lambda path: os.truncate(path, 5000),
    "it is another HDF5 file": lambda path: h5py.File(path, "w").close(),
    "the texts of its attributes are lost": heap,
    "its object headers are lost": scrambled,
}


@pytest.mark.parametrize("how", parameters(LOST, ["it is cut off"]))
def test_a_run_resumes_from_its_checkpoints_alone(killed: Killed, how: str) -> None:
    """A line and an event say so; the unreadable file is kept; the run has the bits of an uninterrupted one."""
    path = killed.path
    with open_run(path) as file:
        facts = {name: file.attrs[name] for name in ("id", "started", "began")}
    LOST[how](path)
    rest = path.read_bytes() if path.exists() else None
    if rest is not None:
        os.utime(path, (1e9, 1e9))
    what = f"{path.name} is missing" if rest is None else f"{path.name} cannot be read and is kept as whole.h5.damaged"
    assert killed.resume() == f"mpifl: {what}: resuming from checkpoint 3\n"
    with open_run(path) as file:
        assert file.events.text[file.events.kind == "resumed"].tolist() == [f"from checkpoint 3; {what}"]
        assert {name: file.attrs[name] for name in facts} == facts and file.status == "completed"
    aside = path.with_name("whole.h5.damaged")
    assert (aside.read_bytes() if aside.exists() else None) == rest
    if rest is None:  # a replay repeats the whole run from the rows
        assert mpifl("replay", path, f"output={path.with_name('again.h5')}") == 0
        assert not differing(killed.whole, path.with_name("again.h5"), but=("events",))


def test_an_earlier_damaged_file_is_kept_too(killed: Killed) -> None:
    for name in ("whole.h5.damaged", "whole.h5"):
        killed.path.with_name(name).write_text(name)
    os.utime(killed.path, (1e9, 1e9))
    assert "is kept as whole.h5.damaged1: resuming" in killed.resume()
    for name, text in (("whole.h5.damaged", "whole.h5.damaged"), ("whole.h5.damaged1", "whole.h5")):
        assert killed.path.with_name(name).read_text() == text


def test_a_file_that_lacks_rows(killed: Killed) -> None:
    """An earlier copy of the run file, from before later checkpoints: these hold the rows that it lacks."""
    shutil.copy2(killed.path.parent.parent / "kept-0" / killed.path.name, killed.path)
    assert killed.resume() == ""


def test_a_run_is_resumed_through_a_link_unless_it_leads_nowhere(killed: Killed) -> None:
    """The file that a link leads to is resumed, beside its checkpoints; one that leads nowhere is refused."""
    link, circle = killed.path.parent / "link.h5", killed.path.parent / "circle.h5"
    circle.symlink_to(circle.name)
    killed.refuse("circle.h5", path=circle)
    link.symlink_to(killed.path.name)
    assert mpifl("resume", link) == 0
    assert link.is_symlink() and not differing(killed.whole, killed.path, but=("events",))


# -- disks and checkpoints of a run that goes on -----------------------------------------------------------------------
def test_checkpoints_go_on_when_their_folder_is_lost_in_mid_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has all rows, and the folder that was made again is locked."""
    locked = []

    def lose(checkpointer: Checkpointer) -> None:
        locked.append(run_lock.is_locked(checkpointer.folder))
        if checkpointer.complete == 2:
            shutil.rmtree(checkpointer.folder)

    finish_at_once(monkeypatch, lose)
    made = run(tmp_path, "made", CASE)
    assert locked == [True] * 4
    with open_run(made) as file:
        assert "checkpoint-failed" not in set(file.events.kind)
        checkpoint, passed = newest(folder_of(made), file.id)
        assert checkpoint is not None and checkpoint.number == 4 and not passed
        rows = [block["updates"]["client"] for block in checkpoint.rows()]
        assert np.concatenate(rows).tolist() == file.updates.client[: 4 * EVERY].tolist()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 5 MiB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", place]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system takes root, and the right to mount")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk(tmp_path: Path, disk: Path, printed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The run continues without the checkpoints that do not fit, and says so; none leaves its parts behind."""
    finish_at_once(monkeypatch)
    large = {"clients": 5, "model": {"name": "quadratic", "dim": 30000}, "dtype": "float64"}  # 240 kB a vector
    case = job({**AREA, "trigger": {"every": 2}}, large, checkpoint={"updates": 3})
    whole = run(tmp_path, "whole", {**case, "checkpoint": {}})
    made, why = disk / "made.h5", "No space left on device"
    out, err = printed("run", write(tmp_path, "made", case), f"output={made}")
    with open_run(made) as file:
        told = file.events[file.events.kind == "checkpoint-failed"]
        assert len(told) > 10 and told.text.str.contains(why).all(), file.events
        assert err.splitlines() == [f"mpifl: {text}" for text in told.text]
        assert file.status == "completed"
    assert f"; the last {len(told)} checkpoints failed: " in out.splitlines()[-1] and why in out.splitlines()[-1]
    assert not differing(whole, made, but=("events",))
    left = {p.name for p in folder_of(made).iterdir()}
    assert left == {"000001.json", "000001.rank0", "000001.rank1", "000001.rows0"}


def test_a_read_only_folder(killed: Killed) -> None:
    """One line and exit code 2; resume works once the folder can be written to."""
    folder = str(killed.path.parent)
    lock, unlock = ["chmod", "a-w", folder], ["chmod", "u+w", folder]
    if os.getuid() == 0:
        if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode:
            pytest.skip("a folder can only be mounted by root with the capability")
        lock, unlock = ["mount", "-o", "remount,ro,bind", folder], ["umount", "-l", folder]
    subprocess.run(lock, check=True)
    try:
        killed.refuse("output=")
    finally:
        subprocess.run(unlock, check=True)
    killed.resume()
