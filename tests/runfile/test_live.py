"""A run file can be read at every instant: while it is written, after a kill, after the end."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from mpifl.cli import main
from mpifl.runfile.checkpoint_folder import folder_of, sets
from mpifl.runfile.reader import Run, open_run
from mpifl.runfile.run_lock import WATCH_TIME, Lock, is_locked
from mpifl.tools.analysis import show as show_module
from tests.mpi.cases import AREA, SMALL, job
from tests.mpi.conftest import MPIFL, Command, Start, run, start, until, write
from tests.mpi.files import consumed
from tests.runfile.test_resumed import fill, resumed
from tests.runfile.test_writer import writer
from tests.tiers import examples, long

__all__ = ["run", "start"]
ROOT = Path(__file__).parents[2]
Writing = Callable[..., tuple[subprocess.Popen[bytes], Path]]


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Writing]:
    """writing(name, period) starts a process that writes a run file."""
    processes = []

    def begin(name: str = "live.h5", period: float = 0.005) -> tuple[subprocess.Popen[bytes], Path]:
        path = tmp_path / name
        words = [sys.executable, "-m", "tests.runfile.live_writer", path, str(period)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, cwd=ROOT)
        processes.append(process)
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.005)
        return process, path

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def consistent(run: Run) -> int:
    """Checks every row against what the writer writes; returns the number of updates."""
    updates, k = run.updates, np.arange(len(run.updates))
    assert (updates.time == k / 1000).all() and (updates.norm == k / 2).all()
    assert (updates.client == k % 7).all() and (updates.version == k // 30 * 3).all()
    assert (updates.staleness == k // 10 % 3).all() and (updates.bytes == 8 * k).all()
    evaluations = run.evaluations
    assert (evaluations.updates == 100 * (1 + np.arange(len(evaluations)))).all()
    assert len(evaluations) * 100 <= len(updates)
    assert len(run.aggregations) * 10 <= len(updates) <= len(run.aggregations) * 10 + 10, "no version is missing"
    assert run.events.text.tolist() == [f"after {1000 * (i + 1)}" for i in range(len(run.events))]
    assert run.clients.updates.sum() >= len(updates) or run.status == "running"
    assert run.config == {"name": "live"}
    return len(updates)


@pytest.mark.timeout(120)
def test_reader_opens_the_file_hundreds_of_times_while_it_is_written(writing: Writing) -> None:
    process, path = writing()
    seen, rows = [], 0
    opens = examples(200)
    for _ in range(opens):
        with open_run(path) as run:
            assert run.status == "running" and run.open_ended and run.age < 60
            assert run.model_version == 0 and not run.model.any()
            seen.append(consistent(run))
            assert seen[-1] >= rows
            rows = seen[-1]
    assert len(set(seen)) > opens // 10, "the file must have grown between the looks"
    with open_run(path) as run:
        rows = len(run.updates)
        time.sleep(0.2)
        assert len(run.updates) == rows, "they are those of the last look"
        run.refresh()
        assert consistent(run) > rows
    process.communicate(b"\n", timeout=30)
    assert process.returncode == 0
    with open_run(path) as run:
        assert consistent(run) >= rows
        assert run.status == "completed" and not run.open_ended and run.attrs["finished"]
        assert run.model.tolist() == list(range(1000)) and run.model_version == len(run.aggregations)
        assert run.clients.updates.sum() == len(run.updates)
        assert run.layout == [("w", (10, 100))]
    with h5py.File(path, "r") as plain:
        assert plain["updates/time"].shape[0] % 100 == 0


@pytest.mark.long
@pytest.mark.timeout(120)
def test_no_header_of_a_dataset_lies_across_two_pages(writing: Writing) -> None:
    """Linux ends the write of a killed process between two pages of 4,096 bytes: half a header has a wrong checksum."""
    process, path = writing()
    process.kill()
    process.communicate()
    headers = {}
    with open_run(path) as run:
        run._open_file.visititems(lambda name, item: headers.update({name: h5py.h5o.get_info(item.id)}))
    assert len(headers) > 50
    for name, header in headers.items():
        first, last = header.addr, header.addr + header.hdr.space.total - 1
        assert first // 4096 == last // 4096, name


def test_reader_survives_the_end_of_the_run(writing: Writing) -> None:
    """Opening again and again while the writer closes the file never fails, nor after it was killed."""
    for trial in range(3):
        process, path = writing(f"killed{trial}.h5", 0.002)
        time.sleep(random.Random(trial).uniform(0.1, 0.4))
        process.kill()
        process.wait(timeout=10)
        with open_run(path) as run:
            assert consistent(run) >= 0 and run.open_ended
    for trial in range(4):
        process, path = writing(f"end{trial}.h5")
        with open_run(path) as run:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            while run.status == "running":
                run.refresh()
                consistent(run)
        assert run.status == "completed"
        process.communicate(timeout=10)


LEFT = """
import sys
import numpy as np
import mpifl.runfile.writer as writer_module
from mpifl.runfile.create import Start
from mpifl.runfile.writer import RunWriter
from mpifl.runfile.tables import UpdateRow
writer_module.WRITE_INTERVAL = 1e-5
start = Start({"name": "left"}, {"samples": np.ones(3), "rank": np.ones(3)}, np.zeros(4), [("w", (4,))])
left = [RunWriter(f"{sys.argv[1]}/{k}.h5", start) for k in range(3)]
for k in range(20_000):
    for writer in left:
        writer.append(UpdateRow(k, 0, 0, 0, 1, 0, 0))
"""


@pytest.mark.timeout(120)
def test_a_process_that_closes_no_writer_ends(tmp_path: Path) -> None:
    """Although its threads write all the time: HDF5 is not left in the middle of an operation, nor waited for."""
    subprocess.run([sys.executable, "-c", LEFT, tmp_path], cwd=ROOT, timeout=60, check=True)
    for k in range(3):
        with open_run(tmp_path / f"{k}.h5") as run:
            assert (run.updates.time == np.arange(len(run.updates))).all()


THREADS = """
import sys, threading
import h5py
from h5py import h5p
from mpifl.runfile import reader
file = h5py.File(sys.argv[1], "w", libver="latest")
file["group/column"] = [0.0]
over = threading.Event()
def write():
    while not over.is_set():
        len(file["group"]["column"])
thread = threading.Thread(target=write)
thread.start()
sys.setswitchinterval(1e-5)
for _ in range(300):
    reader._limit_attempts(h5p.create(h5p.FILE_ACCESS))
over.set()
thread.join()
"""


@pytest.mark.timeout(120)
def test_a_file_is_opened_while_another_thread_uses_hdf5(tmp_path: Path) -> None:
    """HDF5 is not thread-safe: the setting that h5py does not have must wait for h5py's lock."""
    subprocess.run([sys.executable, "-c", THREADS, tmp_path / "a.h5"], cwd=ROOT, timeout=100, check=True)


def test_a_follower_goes_on_with_the_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lines = tmp_path / "run.h5", []
    attrs = {"name": "followed", "hosts": "[]"}
    old, new = writer(path, attrs=attrs), []
    fill(old, 0, 30)
    old.flush()

    def steps() -> Iterator[None]:
        new.append(resumed(path, attrs=attrs))
        yield
        fill(new[0], 23, 60)
        new[0].flush()
        yield
        new[0].close("completed")
        yield

    waits = steps()
    monkeypatch.setattr(show_module, "time", SimpleNamespace(sleep=lambda _: next(waits)))
    show_module.show(path, follow=True, write=lines.append)
    assert lines[-1] == "completed" and len(lines) == 39, "the page, evaluations 23 to 59, the end"
    assert "updates 59" in lines[-2] and "updates 23" in lines[1]


# -- a live run's file and checkpoints are not replaced: locks, and the heartbeat --------------------------------------
SHIM = """
#include <errno.h>
#include <stdlib.h>
int flock(int fd, int operation) { errno = atoi(getenv("FLOCK_ERRNO")); return errno ? -1 : 0; }
"""
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 20}}


@pytest.fixture
def flock_fails(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """From then on flock fails in new processes with an error number; 0: succeeds, and locks nothing."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "flock.c").write_text(SHIM)
    library = folder / "flock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "flock.c"], check=True)

    def fails(number: int) -> None:
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("FLOCK_ERRNO", str(number))

    return fails


@pytest.fixture
def begin(start: Start, tmp_path: Path) -> Callable[..., Command]:
    """begin(**job) starts a run of a.h5 that lasts, and waits for its first rows."""

    def begun(**more: Any) -> Command:
        file = write(tmp_path, "a", job(AREA, SMALL, **{"clock": REAL, "stop": {"time": 60.0}, **more}))
        command = start(0, *MPIFL, "run", file, f"output={tmp_path / 'a.h5'}")
        until(lambda: consumed(tmp_path / "a.h5"), command, "rows")
        return command

    return begun


@pytest.fixture
def overwrite(tmp_path: Path) -> list[str]:
    """The command of a short run with the same output."""
    file = write(tmp_path, "b", job(AREA, SMALL, stop={"updates": 20}))
    return ["run", str(file), f"output={tmp_path / 'a.h5'}", "overwrite=true"]


def test_a_live_file_is_not_replaced(
    begin: Any, overwrite: list[str], tmp_path: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is that of a stopped process, which writes nothing for a while. That of a killed process is, at once."""
    command, path = begin(checkpoint={"every": 0.2}), tmp_path / "a.h5"
    until(lambda: is_locked(folder_of(path)), command, "checkpoint")
    process = command.process
    process.send_signal(signal.SIGSTOP)
    os.utime(path, (1e9, 1e9))
    says = f"mpifl: output={path}: the run is still being written; expected one that has ended\n"
    assert refused(*overwrite) == says
    moved = path.rename(tmp_path / "moved.h5")
    says = f"mpifl: output={path}: a.ckpt is still being written; expected a run that has ended\n"
    assert refused(*overwrite) == says
    moved.rename(path)
    before = consumed(path)
    process.send_signal(signal.SIGCONT)
    until(lambda: consumed(path) > before, command, "rows")  # the run goes on
    process.kill()
    process.wait()
    os.utime(path)
    start = time.monotonic()
    assert main(overwrite) == 0
    assert time.monotonic() - start < WATCH_TIME and not capsys.readouterr().err
    assert open_run(path).count("updates") == 20 and not folder_of(path).exists()


@pytest.mark.long
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, 0], ids=["ENOLCK", "EOPNOTSUPP", "of one host"])
def test_the_heartbeat_tells_where_locks_do_not(
    begin: Any, run: Start, overwrite: list[str], tmp_path: Path, flock_fails: Callable[[int], None], number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also of a run on another host, whose locks may not be seen here."""
    path = tmp_path / "a.h5"
    flock_fails(number)
    process = begin().process
    monkeypatch.setenv("SLURMD_NODENAME", "elsewhere")
    says = f"mpifl: output={path}: the run is still being written; expected one that has ended\n"
    assert run(0, *MPIFL, *overwrite, code=2).err == says
    process.kill()
    process.wait()
    done = run(0, *MPIFL, *overwrite, code=0)
    assert done.seconds > WATCH_TIME
    assert done.err == f"mpifl: {path}: not written for 3 s, so its run has ended; file locks could not tell\n"
    assert open_run(path).count("updates") == 20


@pytest.mark.parametrize("number", [errno.ENOLCK, long(errno.EOPNOTSUPP)], ids=["ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks(
    run: Start, tmp_path: Path, flock_fails: Callable[[int], None], number: int
) -> None:
    """A run, with checkpoints, and all that reads its file."""
    path = tmp_path / "a.h5"
    file = write(tmp_path, "a", job(AREA, SMALL, checkpoint={"updates": 20}, stop={"updates": 4000}))
    commands = [["run", str(file), f"output={path}"], ["show", str(path)], ["replay", str(path)]]
    code = f"import sys; from mpifl.cli import main; sys.exit(max(map(main, {commands})))"
    flock_fails(number)
    assert not run(0, "-c", code, code=0).err
    assert open_run(path).status == "completed" and sets(folder_of(path))


# -- the parts ---------------------------------------------------------------------------------------------------------
def test_a_lock_is_seen_until_its_last_holder_releases_it(tmp_path: Path) -> None:
    """Several may hold one; files and folders; it is gone with the process or when it is released."""
    path = tmp_path / "file"
    path.touch()
    for target in (path, tmp_path):
        assert is_locked(target) is False
        one, other = Lock(target), Lock(target)
        one.release()
        one.release()
        assert is_locked(target) is True
        del other
        assert is_locked(target) is False
    assert is_locked(tmp_path / "none") is None
    Lock(tmp_path / "none").release()


def test_what_may_be_overwritten(overwrite: list[str], tmp_path: Path, refused: Callable[..., str]) -> None:
    """It is replaced unless somebody has locked it. Plain h5py locks what it reads, which a completed run may be."""
    path = tmp_path / "a.h5"
    path.write_text("a note")
    lock = Lock(path)
    assert "another process has locked the file; choose another name, or wait for that process" in refused(*overwrite)
    lock.release()
    assert main(overwrite) == 0
    with h5py.File(path):
        assert is_locked(path) and main(overwrite) == 0
