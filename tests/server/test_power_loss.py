"""Run files that are unreadable or missing after a power cut: the checkpoints have all that a resume needs."""
# ruff: noqa: F401, F811 - fixtures

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from mpifl import open_run
from mpifl.runfile.checkpoint_folder import folder_of
from tests.mpi.files import differing
from tests.server.test_damaged import damage, interrupted, recorded, refused, touched
from tests.server.test_resume import kept, moved, mpifl
from tests.tiers import parameters


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


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
    "it is all zeros": zeros,
    "it is another HDF5 file": lambda path: h5py.File(path, "w").close(),
    "the texts of its attributes are lost": heap,
    "its object headers are lost": scrambled,
}


@pytest.mark.parametrize("how", parameters(LOST, ["it is cut off", "its object headers are lost"]))
def test_a_run_resumes_from_its_checkpoints_alone(
    interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """A line and an event say so; the unreadable file is kept; the run has the bits of an uninterrupted one."""
    whole, path = interrupted
    with open_run(path) as file:
        facts = {name: file.attrs[name] for name in ("id", "started", "began")}
    LOST[how](path)
    rest = path.read_bytes() if path.exists() else None
    if rest is not None:
        os.utime(path, (1e9, 1e9))
    capsys.readouterr()
    assert mpifl("resume", path) == 0
    err = capsys.readouterr().err
    what = f"{path.name} is missing" if rest is None else f"{path.name} cannot be read and is kept as whole.h5.damaged"
    assert err == f"mpifl: {what}: resuming from checkpoint 3\n"
    assert not differing(whole, path, but=("events",))
    with open_run(path) as file:
        assert file.events.text[file.events.kind == "resumed"].tolist() == [f"from checkpoint 3; {what}"]
        assert {name: file.attrs[name] for name in facts} == facts and file.status == "completed"
    aside = path.with_name("whole.h5.damaged")
    assert (aside.read_bytes() if aside.exists() else None) == rest
    if rest is None:  # a replay repeats the whole run from the rows
        assert mpifl("replay", path, f"output={path.with_name('again.h5')}") == 0
        assert not differing(whole, path.with_name("again.h5"), but=("events",))


def test_an_earlier_damaged_file_is_kept_too(
    interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    whole, path = interrupted
    for name in ("whole.h5.damaged", "whole.h5"):
        path.with_name(name).write_text(name)
    os.utime(path, (1e9, 1e9))
    assert mpifl("resume", path) == 0
    assert "is kept as whole.h5.damaged1: resuming" in capsys.readouterr().err
    assert not differing(whole, path, but=("events",))
    for name, text in (("whole.h5.damaged", "whole.h5.damaged"), ("whole.h5.damaged1", "whole.h5")):
        assert path.with_name(name).read_text() == text


@pytest.mark.damaged
def test_a_file_that_someone_writes_to_is_not_taken_away(
    interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = interrupted
    os.truncate(path, 5000)
    with touched(path):
        refused(path, capsys, "the run is still being written; expected one that has ended")


def test_a_set_that_a_later_session_undid_is_not_used(
    interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str], kept: list[Path]
) -> None:
    """A process resumed from checkpoint 2 and wrote 3; then the 4 of the process before it is there again."""
    whole, path = interrupted
    later = moved(kept[3], path.parent / "later")  # it has 3 and 4 of the first process
    damage(path, 3, "a part is gone")
    count = len(kept)
    assert mpifl("resume", path) == 0
    path = kept[count]
    assert not (folder_of(path) / "000004.json").exists()
    shutil.copytree(folder_of(later), folder_of(path), dirs_exist_ok=True, ignore=shutil.ignore_patterns("000003.*"))
    path.unlink()
    capsys.readouterr()
    assert mpifl("resume", path) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first == "mpifl: whole.h5 is missing: resuming from checkpoint 3"
    assert second == "mpifl: checkpoint 4 is of a part of the run that was undone: resuming from checkpoint 3"
    assert not differing(whole, path, but=("events",))
