"""A sweep runs the missing runs, whatever interrupted it before; show and report list those that are there."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import mpifl
from mpifl.cli import main
from mpifl.config.read import to_yaml
from mpifl.errors import ConfigError, RunFailed
from mpifl.runfile.run_lock import is_locked
from mpifl.tools.analysis.trials import Group, Trial, load_trial
from mpifl.tools.studies.index import INDEX, Index
from mpifl.tools.studies.processes import processes
from mpifl.tools.studies.select import describe_selection, reported_trials, select_groups
from mpifl.tools.studies.study import Select, Study, load_study
from mpifl.tools.studies.study_slices import Part
from mpifl.tools.studies.sweep import dry_run, sweep, sweep_selected
from mpifl.transport.handshake import RANKS_BEFORE
from tests.runfile.checksums import changing
from tests.studies.conftest import written
from tests.tiers import long

Write = Callable[..., Path]
TWO = (
    "    FedAvg: {algorithm: {name: fedavg, cohort: 3}, algorithm.step_size: [0.1, 1]}\n  clock.delay.spread: [0, 5]\n",
    "",
)
SINGLE = ("[0, 5]", "[0]"), ("trials: 2", "trials: 1")  # one spread, one trial


def contents(folder: Path) -> dict[str, bytes]:
    """The model and the rows of every run file, by its name."""
    found = {}
    for path in sorted(folder.glob("*.h5")):
        with mpifl.open_run(path) as run:
            rows = run.updates.to_numpy(), run.evaluations.drop(columns="age").to_numpy(), run.aggregations.to_numpy()
            found[path.name] = b"".join(np.ascontiguousarray(each).tobytes() for each in (run.model, *rows))
    return found


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of four completed runs: its file, beside the folder `out`."""
    select = "set: {problem.validation_split: 0.2}\nselect: {over: algorithm.step_size, by: validation_accuracy}\n"
    smaller = ("  clock.delay.spread: [0, 5]\n", ""), ("trials: 2", "trials: 1"), ("/${name}", "")
    study = written(tmp_path_factory.mktemp("swept"), select, *smaller)
    assert sweep(load_study(study), 2).counts() == {"completed": 4}
    return study


@pytest.fixture
def copied(swept: Path, tmp_path: Path) -> Study:
    """The same in a folder of its own."""
    shutil.copytree(swept.parent / "out", tmp_path / "copy")
    return load_study(swept, [f"output={tmp_path}/copy"])


def test_a_study_runs_and_grows(write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The numbers are those of single runs; completed runs are not repeated; files of no run of the study are named."""
    study = load_study(write("", TWO))
    assert "4 of 4 runs to do, on 2 processes, time unknown" in dry_run(study, 2)
    on_ranks = dry_run(load_study(write("ranks: 7\n", TWO)))
    assert "4 of 4 runs to do, 1 at a time on 7 ranks each, time unknown" in on_ranks
    assert not study.folder.exists()
    lines: list[str] = []
    assert sweep(study, 2, lines.append).counts() == {"completed": 4}
    lines = [line for line in lines if line]
    assert lines[0] == "small: 0 of 4 runs completed, 2 running"
    assert lines[-1] == "small: 4 of 4 runs completed"
    assert "2 of 4 runs completed, 2 running, about" in "".join(lines)
    alone = mpifl.run(study.runs[0].job, output=str(tmp_path / "alone.h5"))
    with alone, mpifl.open_run(study.runs[0].path) as run:
        np.testing.assert_array_equal(alone.model, run.model)
        assert alone.updates.equals(run.updates)
    before = {path: path.stat().st_mtime_ns for path in study.folder.glob("*.h5")}
    larger = load_study(write("", TWO, ("trials: 2", "trials: [1, 2]")))
    assert "2 of 4 runs to do, on 1 process, about " in dry_run(larger, 1)
    sweep(larger, 1)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list(study.folder.glob("*.h5"))) == 6
    assert "2 run files do not belong to the study as it is now: small-AREA-10-0" in caplog.text


def test_progress_of_a_selection_counts_the_runs_that_it_needs(write: Write) -> None:
    """Of two methods of two step sizes, four runs at the seed that decides, then two at the other seed."""
    select = "select: {over: algorithm.step_size, by: train_loss, seeds: [0]}\n"
    study = load_study(write(select, ("trials: 2", "trials: [0, 1]"), ("  clock.delay.spread: [0, 5]\n", "")))
    lines: list[str] = []
    assert sweep_selected(study, 2, lines.append).counts() == {"completed": 6}
    told = [line for line in lines if line]
    assert told[0] == "small: 0 of 4 runs completed, 2 running"
    assert "small: 4 of 6 runs completed, 2 running" in " ".join(told)
    assert told[-1] == "small: 6 of 6 runs completed"


def test_the_line_of_a_study(write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal one line, cleared before a message and at the end; in a log the first one, then one a minute."""
    path = write("retries: 0\n", TWO, ("[10, 100]", "[10, 1.0e+45]"), ("trials: 2", "trials: 1"))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["sweep", str(path), "--processes", "1"]) == 3
    shown = capsys.readouterr().err.split("\r\033[K")
    assert shown[1] == "small: 0 of 2 runs completed, 1 running"
    (message,) = (k for k, text in enumerate(shown) if "seed 0 failed: " in text)
    assert shown[message].startswith("mpifl: ") and shown[message].endswith("\n")
    assert shown[-1].startswith("mpifl: the run failed: 1 of 2 runs of the study failed")
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    assert main(["sweep", str(path), "--processes", "1", "trials=3"]) == 3
    err = capsys.readouterr().err
    assert "\033" not in err
    (line,) = (line for line in err.splitlines() if "completed" in line)
    assert line.startswith("small: 1 of 6 runs completed, 1 running, 1 failed, about ")


@pytest.mark.parametrize("text", [None, "", "{", '{"runs": [3]}'])
def test_a_lost_index_is_made_anew(copied: Study, text: str | None) -> None:
    stored = json.loads((copied.folder / INDEX).read_text())
    (copied.folder / INDEX).unlink()
    if text is not None:
        (copied.folder / INDEX).write_text(text)
    assert sweep(copied, 1).counts() == {"completed": 4}
    assert json.loads((copied.folder / INDEX).read_text()) == stored


def test_a_sweep_that_leaves_a_run_interrupted_fails(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    def left_interrupted(study: Study, *args: object, part: Part | None = None, **options: object) -> Index:
        index = Index(study, part)
        for k, (key, entry) in enumerate(index.entries.items()):
            index.entries[key] = replace(entry, status="completed" if k else "interrupted")
        return index

    monkeypatch.setattr("mpifl.tools.studies.sweep.sweep", left_interrupted)
    path = write("", TWO)
    assert main(["sweep", str(path)]) == 3
    says = "mpifl: the run failed: 1 of 4 runs of the study are not completed: sweep it again\n"
    assert says in capsys.readouterr().err
    assert main(["sweep", str(path), "--part", "1/2"]) == 0, "the first run is of the other part"


def test_failed_runs_are_tried_again_and_reported(write: Write, tmp_path: Path, printed: Callable[..., Any]) -> None:
    """A step so large that every update is refused: the run fails as often as it may, the others complete."""
    path = write("", TWO, ("[10, 100]", "[10, 1.0e+45]"), ("trials: 2", "trials: 1"))
    out, err = printed("sweep", path, "--processes", "1", code=3)
    assert "1 of 2 runs completed, 1 failed" in out and out.count("all clients are lost") == 1
    assert "1 of 2 runs of the study failed" in err
    study = load_study(path)
    entries = list(Index(study).entries.values())
    assert [(entry.status, entry.attempts) for entry in entries] == [("completed", 0), ("failed", 2)]
    assert "refused" in entries[1].error
    out = printed("show", study.folder).out
    assert "2 runs: 1 completed, 1 failed" in out and "all clients are lost" in out
    assert main(["sweep", str(path), "retries=3", "--processes", "1"]) == 3
    assert [entry.attempts for entry in Index(study).entries.values()] == [0, 4]
    assert "1 of the study's 2 runs are missing here: 1 failed." in printed("report", path).out


@pytest.mark.parametrize("retries", [0, 2])
def test_a_sweep_may_stop_at_a_failure(write: Write, capsys: pytest.CaptureFixture[str], retries: int) -> None:
    path = write(f"retries: {retries}\n", ("[10, 100]", "[1.0e+45]"), ("[0.1, 1]", "[0.1, 0.5, 1]"), *SINGLE)
    assert main(["sweep", str(path), "--processes", "1", "--stop-on-failure"]) == 3
    index = Index(load_study(path))
    assert {key: count for key, count in index.counts().items() if count} == {"failed": 1, "waiting": 3}
    assert [entry.attempts for entry in index.entries.values() if entry.status == "failed"] == [retries + 1]
    assert "1 of 4 runs of the study failed" in capsys.readouterr().err


def test_a_run_that_was_killed_a_moment_ago_is_not_running(swept: Path, tmp_path: Path) -> None:
    """Its file says that it runs, and was written to just now; but no process holds the lock."""
    study = load_study(swept, [f"output={tmp_path}", "set.stop.time=1e6", "set.evaluate.every=1e5"])
    run = study.runs[0]
    (tmp_path / "job.yaml").write_text(to_yaml(run.job))
    process = subprocess.Popen([sys.executable, "-m", "mpifl", "run", tmp_path / "job.yaml"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not is_locked(run.path) or Index(study).entries[run.identity].status != "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert Index(study).entries[run.identity].status == "interrupted"


def test_a_run_that_ended_before_it_began_is_run(copied: Study) -> None:
    """Its process was told to end once the file was there: the file is closed, and says that the run is running."""
    run = copied.runs[0]
    with changing(run.path) as file:
        file.attrs["status"] = "running"
    assert Index(copied).entries[run.identity].status == "interrupted"
    assert sweep(copied, 1).counts() == {"completed": 4}


def test_parts_of_a_study_run_side_by_side(swept: Path, tmp_path: Path) -> None:
    """Each task of a batch job runs a part; the index has the runs of all of them."""
    study = load_study(swept, [f"output={tmp_path}/parts"])
    with ThreadPoolExecutor() as tasks:
        list(tasks.map(lambda k: sweep(study, 1, part=Part(k, 3)), range(3)))
    assert contents(tmp_path / "parts").keys() == contents(swept.parent / "out").keys()
    stored = json.loads((tmp_path / "parts" / INDEX).read_text())
    assert [run["status"] for run in stored["runs"]] == ["completed"] * 4
    with (tmp_path / "parts" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # another part is running
        assert sweep(study, 1, part=Part(0, 3)).counts() == {"completed": 4}
        with pytest.raises(ConfigError, match=r"another process is running a study now; wait until it has ended"):
            sweep(study, 1)


def test_parts_of_another_number_are_refused_meanwhile(copied: Study) -> None:
    with (copied.folder / ".lock-1-2").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # part 1/2 is running
        with pytest.raises(ConfigError, match=r"--part=1/3: another process is running part 1/2 now; expected K/2"):
            sweep(copied, 1, part=Part(1, 3))
        assert sweep(copied, 1, part=Part(0, 2)).counts() == {"completed": 4}
    assert sweep(copied, 1, part=Part(1, 3)).counts() == {"completed": 4}


def test_what_a_killed_sweep_left_is_removed(copied: Study) -> None:
    names = [f".{INDEX}.1234", ".small-AREA-10-0-00112233aabb.h5.1234", ".small-AREA-10-0-00112233aabb.yaml"]
    old, new = [copied.folder / name for name in names], copied.folder / f".{INDEX}.5678"
    own = copied.folder / ".pre-commit-config.yaml"  # the study may be swept in a folder with files of the user's own
    for path in (*old, new, own):
        path.write_text("{")
        os.utime(path, (time.time() - 120,) * 2)
    os.utime(new)
    sweep(copied, 1, part=Part(0, 2))
    assert not any(path.exists() for path in old) and new.exists()  # another part may be writing the new one
    sweep(copied, 1)
    assert not new.exists() and own.exists()


def test_an_index_that_cannot_be_written_leaves_no_temporary_file(copied: Study) -> None:
    (copied.folder / "index.json").unlink()
    (copied.folder / "index.json").mkdir()
    with pytest.raises(RunFailed, match=r"index\.json cannot be written: Is a directory"):
        sweep(copied, 1)
    assert not list(copied.folder.glob(".index.json*"))


CODE = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from mpifl.algorithms.fedavg import FedAvg

Path(__file__).with_suffix(".imported").touch()

@dataclass(frozen=True)
class Mean(FedAvg):
    def init_server(self, x0, clients):
        {line}
        return super().init_server(x0, clients)
"""


@pytest.fixture
def own(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """own(line, *changes): a study whose first method is a class of a user's own, with a line in `init_server`."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(line: str, *changes: tuple[str, str], more: str = "") -> Path:
        (tmp_path / "users_code.py").write_text(CODE.format(line=line))
        named = "{name: area, trigger: {every: 2}}", "{name: 'users_code:Mean', cohort: 3}"
        return write(more, named, ("[10, 100]", "[0.1]"), *SINGLE, *changes)

    yield written
    sys.modules.pop("users_code", None)


KILL = """if not (begun := Path(__file__).with_name("begun")).exists():
            begun.touch()
            os.kill(os.getpid(), signal.SIGKILL)"""


def test_a_process_that_is_killed_takes_no_other_run_with_it(own: Write, caplog: pytest.LogCaptureFixture) -> None:
    index = sweep(load_study(own(KILL)), 2)
    assert [entry.status for entry in index.entries.values()] == ["completed"] * 3
    assert {entry.labels["method"]: entry.attempts for entry in index.entries.values()} == {"AREA": 1, "FedAvg": 0}
    assert caplog.text.count("failed: its process was killed") == 1


SCRIPT = """
import mpifl
index = mpifl.sweep(mpifl.load_study("study.yaml", "trials=[3]"), 1)
print([(entry.seed, entry.status) for entry in index.entries.values()])
"""


def test_a_script_without_a_main_guard(write: Write, tmp_path: Path) -> None:
    """From Python; the processes of a sweep do not run the program's main module again."""
    write("", ("[10, 100]", "[10]"), ("[0.1, 1]", "[1]"), *SINGLE)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[(3, 'completed'), (3, 'completed')]\n", done.stderr


@pytest.mark.parametrize("text", ["1", "2/2", "-1/2", "0/0", "a/b", "1/2/3"])
def test_wrong_parts_are_refused(write: Write, refused: Callable[..., str], text: str) -> None:
    assert f"--part={text}: not a part; expected K/N" in refused("sweep", write(), f"--part={text}")


@pytest.mark.long
def test_a_damaged_run_file_is_kept_and_made_anew(copied: Study, caplog: pytest.LogCaptureFixture) -> None:
    whole = contents(copied.folder)
    copied.runs[1].path.write_bytes(copied.runs[1].path.read_bytes()[:3000])
    copied.runs[2].path.write_bytes(copied.runs[3].path.read_bytes())  # undamaged, but of another job
    assert Index(copied).counts() == {"completed": 2, "damaged": 2}
    damaged = {run.path: run.path.read_bytes() for run in copied.runs[1:3]}
    sweep(copied, 1)
    first, second = (run.path.name for run in copied.runs[1:3])
    text = "2 run files are damaged, or of another job; they are renamed to FILE.damaged, and computed again"
    assert caplog.messages == [f"{text}: {first}, {second}"]
    assert contents(copied.folder) == whole
    for path, content in damaged.items():
        assert path.with_name(f"{path.name}.damaged").read_bytes() == content


@pytest.mark.long
def test_code_that_only_a_run_file_names_is_not_imported(
    copied: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with the name of a study's run, and its checkpoint, may be of another job, and from anybody."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "other_code.py").write_text(CODE.format(line="pass"))
    with mpifl.open_run(copied.runs[0].path) as first:
        job = mpifl.load_job(first.config, "algorithm={name: 'other_code:Mean', cohort: 3, step_size: 0.1}",
                             "checkpoint.every=0.25", f"output={tmp_path}/other.h5")  # fmt: skip
    mpifl.run(job).close()
    marker, run = tmp_path / "other_code.imported", copied.runs[0]
    marker.unlink()
    del sys.modules["other_code"]
    shutil.move(tmp_path / "other.ckpt", run.path.with_suffix(".ckpt"))
    shutil.move(tmp_path / "other.h5", run.path)
    assert Index(copied).entries[run.identity].status == "damaged"
    assert not marker.exists()
    run.path.write_bytes(run.path.read_bytes()[:3000])  # damaged: resume would take the job from the checkpoint
    with ThreadPoolExecutor(1) as executor:  # in this process, where an import shows
        assert sweep(copied, 1, executor=executor).counts() == {"completed": 4}
    assert not marker.exists()
    assert Index(copied).counts() == {"completed": 4}


@pytest.mark.parametrize(
    ("line", "error"), [("raise KeyError('x')", "KeyError: 'x'"), ("raise SystemExit(4)", "SystemExit: 4")]
)
def test_an_error_in_a_users_code_fails_its_run_alone(own: Write, line: str, error: str) -> None:
    index = sweep(load_study(own(line, ("[0.1, 1]", "[0.1]"), more="retries: 0\n")), 1)
    assert index.counts() == {"failed": 1, "completed": 1}
    (failed,) = (entry for entry in index.entries.values() if entry.status == "failed")
    assert failed.error == f"{error} (users_code.py:12, in init_server)"


def _sweep(path: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "mpifl", "sweep", str(path), "--processes", "2"]
    with path.with_suffix(".err").open("wb") as errors:
        return subprocess.Popen(words, stderr=errors, stdout=subprocess.DEVNULL, start_new_session=True)


def index_of(folder: Path) -> dict[str, dict[str, object]]:
    """What the index file has of each run, but for wall times and the times of files."""
    runs = json.loads((folder / INDEX).read_text())["runs"]
    return {run["file"]: {key: run[key] for key in ("identity", "labels", "seed", "status", "attempts", "error")}
            for run in runs}  # fmt: skip


SIXTY = ("  clock.delay.spread: [0, 5]\ntrials: 2", "trials: 15")


@pytest.mark.parametrize("kills", [1, long(10)])
def test_a_sweep_that_is_killed_continues(write: Write, tmp_path: Path, kills: int) -> None:
    """The whole process group is killed at random instants; the numbers are those of a sweep that was never killed."""
    rng = random.Random(kills)
    path = write("", SIXTY if kills > 2 else TWO)
    study = load_study(path)
    completed: dict[str, int] = {}  # file -> time of its completion
    for _ in range(kills):
        process = _sweep(path)
        time.sleep(rng.uniform(1.0, 4.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for entry, run in zip(Index(study).entries.values(), study.runs, strict=True):
            if entry.status == "completed":
                begun = completed.setdefault(entry.file, run.path.stat().st_mtime_ns)
                assert begun == run.path.stat().st_mtime_ns, "a completed run was run again"
    assert _sweep(path).wait(300) == 0
    other = load_study(path, [f"output={tmp_path}/whole"])
    sweep(other, 2)
    assert contents(study.folder) == contents(other.folder)
    assert index_of(study.folder) == index_of(other.folder)
    assert dry_run(study).endswith(f"\n0 of {len(study.runs)} runs to do")
    assert Index(study).counts() == {"completed": len(study.runs)}
    assert len(study.runs) == (60 if kills > 2 else 4)
    assert all((study.folder / file).stat().st_mtime_ns == time for file, time in completed.items())


def test_a_signal_ends_a_sweep_and_it_continues(write: Write) -> None:
    path = write("set: {stop.time: 300, checkpoint.every: 1}\n", TWO)
    process = _sweep(path)
    study = load_study(path)
    deadline = time.monotonic() + 60
    while not list(study.folder.glob("*.ckpt/*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    counts = Index(study).counts()
    assert counts["interrupted"] >= 1
    assert not counts["running"]
    last = path.with_suffix(".err").read_text().splitlines()[-1]
    done = f"{counts.get('completed', 0)} of {len(study.runs)} runs completed"
    assert last.startswith(f"mpifl: interrupted; {study.options.name}: {done}")


def use_launcher(folder: Path, patch: pytest.MonkeyPatch, script: str) -> None:
    """Makes a shell script the launcher of the runs."""
    launcher = folder / "launcher"
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o755)
    patch.setenv("MPIFL_MPIEXEC", str(launcher))


def test_a_signal_ends_a_sweep_whose_launcher_takes_its_time(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep has nothing left to do but to wait for the process that waits for the launcher."""
    use_launcher(tmp_path, monkeypatch, f"trap 'sleep 1; exit 1' USR1\ntouch {tmp_path}/started\nsleep 60 & wait")
    process = _sweep(write("ranks: 3\n", TWO))
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(60) == 130
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("mpifl: the run failed: one\nmpifl: it is lost\nprterun: ended\n", "it is lost"),
        (f"[a:1] begun\n{'-' * 74}\nRank 1\nis lost.\n{'-' * 74}\n", "Rank 1 is lost."),
        (f"Not as\nroot.\n\nThe reason ...\n{'-' * 74}\n", "Not as root."),
        ("srun: error: one\nsrun: error: two\n\n", "srun: error: two"),
        ("", "launcher ended with exit code 7"),
    ],
)  # fmt: skip
def test_a_run_whose_launcher_fails_has_its_message_as_the_reason(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, reason: str
) -> None:
    (tmp_path / "printed").write_text(printed)
    use_launcher(tmp_path, monkeypatch, f"cat {tmp_path}/printed >&2\nexit 7")
    index = sweep(load_study(write("ranks: 3\nretries: 0\n", TWO)), 1)
    assert {entry.error for entry in index.entries.values()} == {reason}


# -- selection ---------------------------------------------------------------------------------------------------------
def group(step: float, losses: list[list[float]], method: str = "AREA") -> Group:
    import pandas as pd

    frames = [pd.DataFrame({"time": range(len(row)), "train_loss": row}) for row in losses]
    trials = [Trial(Path(), "completed", "virtual", {}, frame, 1.0, 0.0, 1, k) for k, frame in enumerate(frames)]
    return Group({"method": method, "step_size": step}, trials)


GROUPS = [
    group(1, [[3, 2, 1.0], [3, 2, 2.0]]),  # last: mean 1.5
    group(10, [[3, 0.1, 1.5], [3, 0.1, 1.25]]),  # last: mean 1.375, best: 0.1
    group(100, [[3, 9, 0.5], [3, 9, np.inf]]),
    group(1, [[5, 5, 5.0], [5, 5, 5.0]], "FedAvg"),
]


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ({}, [10, 1]),
        ({"rule": "max"}, [1, 1]),
        ({"at": "best"}, [10, 1]),
        ({"at": "best", "rule": "max"}, [100, 1]),  # 0.5 and 3: their mean is above 1.5
        ({"rule": "largest-finite"}, [10, 1]),
        ({"rule": "largest-finite", "count": 2}, [1, 10, 1]),
        ({"count": 9}, [1, 10, 1]),
        ({"seeds": [0]}, [100, 1]),  # the trial of seed 1, which is not finite, is reported and does not decide
        ({"seeds": [1]}, [10, 1]),
    ],
)
def test_a_selection_follows_its_rule_and_seeds(rule: dict[str, object], steps: list[float]) -> None:
    select = Select(over="algorithm.step_size", **rule)  # type: ignore[arg-type]
    found = select_groups(GROUPS, select)
    assert [each.labels["step_size"] for each in found] == steps
    expected = {0, 1} if select.seeds is None else {0, 1} - set(select.seeds)
    assert {trial.seed for each in found for trial in reported_trials(each, select).trials} == expected


def test_a_best_evaluation_is_one_that_was_made() -> None:
    """A metric that is missing from some evaluations is compared at the others, wherever these are."""
    groups = [group(1, [[np.nan, 0.2, np.nan]]), group(2, [[0.5, 0.6]]), group(3, [[]]), group(4, [[np.nan, np.nan]])]
    for rule, step in (("min", 1), ("max", 2)):
        (found,) = select_groups(groups, Select(over="step_size", at="best", rule=rule))  # type: ignore[arg-type]
        assert found.labels["step_size"] == step


def test_selection_without_the_key_or_reported_trials_and_with_longer_labels() -> None:
    """Methods without the key are reported as they are; a value without reported trials takes no place; a key whose
    last part other keys have too has a longer label."""
    without = Group({"method": "FedDR", "step_size": None}, group(1, [[2.0]]).trials)
    select = Select(over="step_size", rule="largest-finite")
    found = select_groups([group(1, [[1.0]]), group(2, [[1.0]]), without], select)
    assert [each.labels["step_size"] for each in found] == [2, None]
    groups = [group(1, [[1.0]]), group(2, [[2.0], [2.0]])]  # of step size 1 only seed 0 is completed
    (one,) = select_groups(groups, Select(over="step_size", seeds=[0]))
    assert one.labels["step_size"] == 2
    labels = [{"trigger.every": every, "evaluate.every": 1} for every in (2, 4, 3)]
    groups = [Group(each, group(1, [[1.0 / each["trigger.every"]]]).trials) for each in labels]
    (one,) = select_groups(groups, Select(over="algorithm.trigger.every"))
    assert one.labels["trigger.every"] == 4


@pytest.mark.parametrize("more", ["", ", seeds: [0]"])
def test_a_value_at_which_a_trial_that_decides_failed_is_not_selected(
    write: Write, printed: Callable[..., Any], more: str
) -> None:
    """Neither for the trials that did not fail: most may have diverged."""
    select = f"select: {{over: algorithm.step_size, rule: largest-finite{more}}}\n"
    path = write(select, ("[10, 100]", "[10.0, 100.0]"), ("[0, 5]", "[0]"))
    study = load_study(path)
    assert sweep(study, 1).counts() == {"completed": 8}
    (failed,) = (r for r in study.runs if r.labels["algorithm.step_size"] == 100 and r.seed == 1)
    failed.path.unlink()
    Index(study).finish(failed, "failed", "it diverged")
    out = printed("report", path).out
    (row,) = (line.split() for line in out.splitlines() if line.startswith("AREA "))
    told = "a deciding trial failed: method AREA, algorithm.step_size 100.0"
    assert float(row[1]) == 10 and (told in out) == (not more)  # with seeds: [0] no trial that is reported is left


def test_the_rule_is_in_words() -> None:
    told = describe_selection(Select(over="algorithm.step_size", rule="largest-finite", count=2, seeds=[0, 1]))
    assert told == (
        "Selected for each setting: the largest 2 values of algorithm.step_size with a finite mean train_loss at the "
        "last evaluation (over seeds 0, 1; the other seeds are reported)."
    )


def test_a_report_shows_what_is_selected(swept: Path, printed: Callable[..., Any], tmp_path: Path) -> None:
    last: dict[str, dict[float, tuple[float, float]]] = {"AREA": {}, "FedAvg": {}}
    for method, step, trial in ((*run.labels.values(), load_trial(run.path)) for run in load_study(swept).runs):
        last[method][step] = trial.last("validation_accuracy"), trial.last("test_accuracy")
    out = printed("report", swept, "--out", tmp_path / "report", "--figures", "accuracy").out
    rows = [line.split() for line in out.splitlines() if line.startswith(("AREA ", "FedAvg "))]
    assert [row[0] for row in rows] == ["AREA", "FedAvg"]
    for row in rows:
        step = max(last[row[0]], key=lambda step: last[row[0]][step])
        assert (float(row[1]), row[2], row[3]) == (step, "1", f"{100 * last[row[0]][step][1]:.2f}")
    assert "with the largest mean validation_accuracy at the last evaluation (over all trials)" in out
    assert (tmp_path / "report" / "accuracy.pdf").stat().st_size > 1000
    assert "with the largest mean validation_accuracy" in (tmp_path / "report" / "report.md").read_text()


def test_show_a_folder(swept: Path, printed: Callable[..., Any], tmp_path: Path) -> None:
    out = printed("show", swept.parent / "out").out
    assert out.splitlines()[-1].endswith("4 runs: 4 completed")
    assert out.splitlines()[0].split()[:3] == ["file", "method", "algorithm.step_size"]
    assert "a RUN.h5, or a folder with run files" in printed("show", tmp_path, code=2).err
    assert printed("report", swept.parent / "out").out.count("fedavg") >= 2


def index_with(file: str, labels: str = "{}") -> str:
    entry = f'{{"identity": "a", "file": {file}, "labels": {labels}, "attempts": 0, "error": ""}}'
    return f'{{"study": "s", "runs": [{entry}]}}'


DEEP = ["[" * depth + "]" * depth for depth in (900, 950, 980, 990, 100_000)]
INDICES = [
    '{"study": "s", "runs": [3]}',
    index_with("3"),
    *DEEP,
    *(index_with('"bad.h5"', f'{{"a": {d}}}') for d in DEEP),
]


@pytest.mark.parametrize("text", INDICES, ids=lambda text: f"{text[:3]}, {len(text)} characters")
def test_show_a_folder_with_a_damaged_index(text: str, printed: Callable[..., Any], tmp_path: Path) -> None:
    """One that is nested deeply is named in one line, and the run files are shown."""
    (tmp_path / INDEX).write_text(text)
    (tmp_path / "bad.h5").write_bytes(b"no run")
    out, err = printed("show", tmp_path)
    assert "1 run: 1 damaged" in out
    if len(text) > 100_000:
        left = "left out, with the labels of the runs; it cannot be read: it is nested too deeply"
        assert err == f"mpifl: {tmp_path}/{INDEX}: {left}\n"
    assert printed("report", tmp_path, code=2).err.splitlines()[-1].startswith("mpifl: run file=")


@pytest.mark.long
def test_a_report_and_a_list_name_damaged_runs_and_show_the_others(
    swept: Path, tmp_path: Path, printed: Callable[..., Any]
) -> None:
    shutil.copytree(swept.parent, tmp_path / "copy")
    words = [str(tmp_path / "copy" / "study.yaml"), f"output={tmp_path}/copy/out"]
    first, second, *_ = [run.path for run in load_study(words[0], words[1:]).runs]
    first.write_bytes(first.read_bytes()[:5000])
    with h5py.File(second, "r+", libver="latest") as file:
        file.attrs["config"] = "["
    out = printed("report", *words).out
    assert first.name in out and second.name in out and "\nFedAvg " in out
    assert out.count("Left out: run file=") == 2 and "2 damaged" in out
    assert "4 runs: 2 completed, 2 damaged" in printed("show", tmp_path / "copy" / "out").out


def variable_once(path: Path, name: str) -> str | None:
    """The environment variable of this process, as soon as there is such a file."""
    while not path.exists():
        time.sleep(0.01)
    return os.getenv(name)


def test_processes_take_the_gpus_of_the_host_in_turn(tmp_path: Path) -> None:
    """Each begins with another one, also where its run starts a launcher."""
    begin = tmp_path / "begin"  # three tasks at a time: a process that is idle would take the next one
    with processes(3) as pool:
        futures = [pool.submit(variable_once, begin, RANKS_BEFORE) for _ in range(3)]
        begin.touch()
        assert sorted(future.result() for future in futures) == ["0", "1", "2"]


def test_a_process_that_dies_between_two_runs_is_replaced() -> None:
    threads = threading.active_count()
    with processes(1) as pool:
        process = pool.submit(os.getpid).result()
        os.kill(process, signal.SIGKILL)
        end = time.monotonic() + 60
        while threading.active_count() > threads:  # the thread that watches the process ends once that has died
            assert time.monotonic() < end
            time.sleep(0.01)
        assert pool.submit(os.getpid).result() != process
