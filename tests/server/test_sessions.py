"""Which checkpoints belong to a run file: several resumes, files that reappear, links to them."""
# ruff: noqa: F401, F811 - fixtures

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest

from mpifl.checkpoint.sets import Checkpoint
from mpifl.runfile import RunWriter
from mpifl.runfile.checkpoint_folder import folder_of
from mpifl.server.session import Session
from tests.mpi.files import differing
from tests.server.test_damaged import interrupted, recorded, refused
from tests.server.test_resume import changed, kept, moved, mpifl
from tests.tiers import long


def killed(path: Path, to: Path, patch: pytest.MonkeyPatch) -> Path:
    """A copy of the run file and its checkpoints as a resume leaves them that is killed before its first update."""

    def end(session: Session) -> int:
        moved(path, to)
        session.writer.close("failed")
        assert session.checkpointer
        session.checkpointer.close()
        return 3

    with patch.context() as patched:
        patched.setattr(Session, "run", end)
        assert mpifl("resume", path) == 3
    return to / path.name


@pytest.mark.parametrize("removed", [True, long(False)], ids=["at once", "not at once"])
def test_a_checkpoint_that_comes_back(
    interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """It could not be read, so the run resumed from the one before; it belongs to a part of the run that was undone."""
    whole, path = interrupted
    folder = folder_of(path)
    aside = shutil.copytree(folder, folder.with_name("aside"))
    (folder / "000003.rank1").unlink()
    path = killed(path, path.parent / "killed", monkeypatch)
    assert "checkpoint 3 is damaged" in capsys.readouterr().err
    assert not (folder_of(path) / "000003.json").exists(), "nobody can take it for one of this run"
    if not removed:  # a disk that was away, or another resume that wrote it meanwhile
        shutil.copytree(aside, folder_of(path), dirs_exist_ok=True)
    assert mpifl("resume", path) == 0
    err = capsys.readouterr().err
    undone = "checkpoint 3 is of a part of the run that was undone: resuming from checkpoint 2"
    assert (undone in err) != removed, err
    assert not differing(whole, path, but=("events",))


def test_a_resume_that_cannot_read_its_part(
    interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error's key is that of the checkpoint."""
    _, path = interrupted
    clients = Checkpoint.clients

    def gone(self: Checkpoint, rank: int, wanted: Any) -> Any:
        folder_of(path).joinpath(f"{self.number:06d}.rank{rank}").unlink()
        return clients(self, rank, wanted)

    monkeypatch.setattr(Checkpoint, "clients", gone)
    assert mpifl("resume", path) == 2
    assert capsys.readouterr().err.startswith(f"mpifl: checkpoint={folder_of(path)}/000003.rank1: ")


def test_two_resumes_at_once(
    interrupted: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one finds the file of the other, and leaves that file and its checkpoints alone."""
    whole, path = interrupted
    late = RunWriter.resumed

    def other(*args: Any, **more: Any) -> RunWriter:
        monkeypatch.setattr(RunWriter, "resumed", late)
        assert mpifl("resume", path) == 0
        found.update({p: p.read_bytes() for p in path.parent.rglob("*") if p.is_file()})
        return late(*args, **more)

    found: dict[Path, bytes] = {}
    monkeypatch.setattr(RunWriter, "resumed", other)
    assert mpifl("resume", path) == 2
    assert capsys.readouterr().err.endswith(
        "another process has resumed the run meanwhile; resume it again when that has ended\n"
    )
    assert found == {p: p.read_bytes() for p in path.parent.rglob("*") if p.is_file()}
    assert not differing(whole, path, but=("events",))


def test_a_file_of_a_version_without_sessions(interrupted: tuple[Path, Path]) -> None:
    """Any checkpoint of the run is accepted."""
    whole, _ = interrupted
    path = changed(whole, whole.parent / "old", status="interrupted")
    with h5py.File(path, "r+") as file:
        del file.attrs["session"], file.attrs["resumed_from"], file["checksums"]
    os.utime(path, (1e9, 1e9))
    assert mpifl("resume", path) == 0
    assert not differing(whole, path, but=("events",))


def test_a_link_that_leads_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.h5").symlink_to("run.h5")
    assert mpifl("resume", tmp_path / "run.h5") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_link_to_a_run_file(interrupted: tuple[Path, Path]) -> None:
    """The file that the link leads to is resumed, beside its checkpoints."""
    whole, path = interrupted
    link = path.parent / "link.h5"
    link.symlink_to(path.name)
    assert mpifl("resume", link) == 0
    assert link.is_symlink() and not differing(whole, path, but=("events",))
