"""output_tensorboard: scalars while a run goes on, the same as those of an export of its file."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import mpifl
from mpifl import cli
from mpifl.tools.export import live_tensorboard as live
from mpifl.tools.export.live_tensorboard import LiveScalars
from mpifl.tools.studies.study import identify
from tests.api.jobs import JOB, REAL
from tests.api.test_run import interrupt_when
from tests.export.test_files import scalars
from tests.mpi.conftest import write
from tests.mpi.files import differing


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_complete(path: Path) -> dict[str, list[tuple[int, float, float]]]:
    """What was written live is what an export of the run file writes: one event file, each step once."""
    folder, out = live.folder_of(path), path.with_name("exported")
    assert len(os.listdir(folder)) == 1
    mpifl.export_run(path, "tensorboard", out, overwrite=True)
    found = scalars(folder)
    assert found == scalars(out)
    steps = [step for step, *_ in found["evaluations/train_loss"]]
    assert steps == sorted(set(steps)) == sorted(set(mpifl.open_run(path).evaluations.updates))
    return found


def test_the_scalars_of_a_run_and_its_bits(folder: Path) -> None:
    """In virtual time the run file has the same bits as without the key; to a study it is the same run. A replay writes
    none."""
    plain = mpifl.run(JOB, output="plain.h5")
    run = mpifl.run(JOB, output="with.h5", output_tensorboard=True)
    assert not differing(plain.path, run.path)
    found = assert_complete(run.path)
    assert [step for step, *_ in found["updates/staleness_mean"]] == [20, 40, 60]
    assert sorted(os.listdir()) == ["exported", "plain.h5", "with-tensorboard", "with.h5"]
    assert not live.folder_of(mpifl.replay(run.path).path).exists()
    assert identify(mpifl.load_job(JOB)) == identify(mpifl.load_job(JOB, output_tensorboard=True))
    assert len(mpifl.open_runs([run.path, plain.path]).groups) == 1


def test_while_the_run_goes_on_and_after_a_resume() -> None:
    """In real time: points are there before the end; the resumed run replaces the event file, in which no step is
    twice."""
    job = {**JOB, "output_tensorboard": True, "clock": REAL, "evaluate": {"every": 0.05}, "stop": {"time": 1000}}
    timer = interrupt_when(Path("results/small.h5"), 30)
    with pytest.raises(KeyboardInterrupt):
        mpifl.run(job)
    timer.join()
    before = assert_complete(Path("results/small.h5"))["evaluations/train_loss"]
    assert len(before) > 1
    timer = interrupt_when(Path("results/small.h5"), before[-1][0] + 30)
    with pytest.raises(KeyboardInterrupt):
        mpifl.resume("results/small.h5")
    timer.join()
    after = assert_complete(Path("results/small.h5"))["evaluations/train_loss"]
    before.pop()  # of the evaluation at the signal, after the checkpoint
    assert after[: len(before)] == before and after[-1][0] > before[-1][0] + 30


# -- what goes wrong ---------------------------------------------------------------------------------------------------
def test_a_full_disk_is_a_warning_and_a_clause_of_the_last_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    mpifl.run(JOB, output="plain.h5")
    write(folder, "full", JOB)
    opened = Path.open

    def full(path: Path, *args: Any, **options: Any) -> Any:
        return opened(Path("/dev/full"), "wb") if "tfevents" in path.name else opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", full)
    assert cli.main(["run", "full.yaml", "output_tensorboard=true", "output=full.h5"]) == 0
    out, err = capfd.readouterr()
    assert err == (
        "mpifl: output_tensorboard: no more scalars in full-tensorboard: No space left on device; the run goes on\n"
    )
    assert out.startswith("full.h5: completed, 60 updates") and out.count("\n") == 1
    assert out.endswith("; TensorBoard has no points after update 0 (No space left on device)\n")
    assert not differing(Path("plain.h5"), Path("full.h5"))


def test_an_unexpected_error_ends_the_scalars_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live.EventWriter, "add", lambda *_: 1 / 0)
    assert mpifl.run(JOB, output="a.h5", output_tensorboard=True).status == "completed"
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.endswith("no more scalars in a-tensorboard: ZeroDivisionError: division by zero; the run goes on")


def test_a_file_system_that_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "CLOSE_TIMEOUT", 0.2)
    monkeypatch.setattr(live, "QUEUE_LIMIT", 3)
    hang = live.threading.Event()
    monkeypatch.setattr(LiveScalars, "_write", lambda self: hang.wait(60))
    blocked = LiveScalars("a.h5")
    blocked.begin(time.time)
    for _ in range(5):
        blocked.put({})
    assert [r.getMessage() for r in caplog.records] == [
        "output_tensorboard: no more scalars in a-tensorboard: the file system does not answer: 3 blocks of rows are "
        "waiting; the run goes on"
    ]
    caplog.clear()
    slow = LiveScalars("b.h5")
    slow.begin(time.time)
    begin = time.monotonic()
    text = slow.close()
    assert time.monotonic() - begin < 10 and len(caplog.records) == 1
    assert text == "TensorBoard has no points after update 0 (the last points were not written within 0.2 s)"
    hang.set()


def test_a_missing_package_is_reported_before_any_work(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    job = write(folder, "job", {**JOB, "output_tensorboard": True})
    assert cli.main(["run", str(job)]) == 2
    line = "mpifl: output_tensorboard=true: the package tensorboard is not installed; pip install tensorboard\n"
    assert capfd.readouterr() == ("", line)
    assert os.listdir() == ["job.yaml"]
    assert cli.main(["check", str(job)]) == 0, "a job may be checked where it does not run"


def test_event_files_of_another_run_are_not_mixed_with_new_ones(folder: Path) -> None:
    there = folder / "a-tensorboard"
    mpifl.run(JOB, output="a.h5", output_tensorboard=True)
    (old,) = there.iterdir()
    (there / "mine.txt").touch()
    Path("a.h5").unlink()
    with pytest.raises(
        mpifl.ConfigError, match=r"it has event files of another run; choose another name, or overwrite=true"
    ):
        mpifl.run(JOB, output="a.h5", output_tensorboard=True)
    assert old.exists() and not Path("a.h5").exists()
    mpifl.run(JOB, output="a.h5", output_tensorboard=True, overwrite=True)
    assert not old.exists() and (there / "mine.txt").exists() and len(list(there.iterdir())) == 2
    Path("b-tensorboard").touch()
    with pytest.raises(mpifl.ConfigError, match=r"output_tensorboard=b-tensorboard: this is a file; expected a folder"):
        mpifl.run(JOB, output="b.h5", output_tensorboard=True)
