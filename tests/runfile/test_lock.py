"""A live run's file and checkpoints are not replaced: locks, and the heartbeat where there are none."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from mpifl.cli import main
from mpifl.errors import ConfigError
from mpifl.runfile.checkpoint_folder import folder_of, sets
from mpifl.runfile.run_lock import WATCH_TIME, Lock, is_locked
from tests.mpi.cases import AREA, SMALL, job
from tests.mpi.conftest import write

SHIM = """
#include <errno.h>
#include <stdlib.h>
int flock(int fd, int operation) { errno = atoi(getenv("FLOCK_ERRNO")); return errno ? -1 : 0; }
"""
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 20}}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, str]]:
    """The environment of a process whose flock fails with an error number; 0: succeeds, and locks nothing."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "flock.c").write_text(SHIM)
    library = folder / "flock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "flock.c"], check=True)
    return lambda number: {"LD_PRELOAD": str(library), "FLOCK_ERRNO": str(number)}


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Any]:
    """begin(environment, **job) starts a run of a.h5 that lasts, and waits for its first rows."""
    started = []

    def start(environment: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
        file = write(tmp_path, "a", job(AREA, SMALL, **{"clock": REAL, "stop": {"time": 60.0}, **more}))
        words = [sys.executable, "-m", "mpifl", "run", str(file), f"output={tmp_path / 'a.h5'}"]
        process = subprocess.Popen(
            words, env=os.environ | (environment or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        end = time.monotonic() + 60
        while not rows(tmp_path / "a.h5"):
            assert process.poll() is None and time.monotonic() < end, process.communicate()
            time.sleep(0.05)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def rows(path: Path) -> int:
    try:
        with open_run(path) as run:
            return run.count("updates")
    except ConfigError:
        return 0


def overwrite(folder: Path, environment: dict[str, str] | None = None) -> tuple[int, str, float]:
    """A short run with the same output: exit code, stderr, seconds."""
    file = write(folder, "b", job(AREA, SMALL, stop={"updates": 20}))
    words = [sys.executable, "-m", "mpifl", "run", str(file), f"output={folder / 'a.h5'}", "overwrite=true"]
    start = time.monotonic()
    done = subprocess.run(words, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr, time.monotonic() - start


def test_a_live_file_is_not_replaced(begin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is that of a stopped process, which writes nothing for a while. That of a killed process is, at once."""
    process, path = begin(checkpoint={"every": 0.2}), tmp_path / "a.h5"
    file = write(tmp_path, "b", job(AREA, SMALL, stop={"updates": 20}))
    end = time.monotonic() + 30
    while not is_locked(folder_of(path)):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGSTOP)
    os.utime(path, (1e9, 1e9))
    assert main(["run", str(file), f"output={path}", "overwrite=true"]) == 2
    expected = f"mpifl: output={path}: the run is still being written; expected one that has ended\n"
    assert capsys.readouterr().err == expected
    moved = path.rename(tmp_path / "moved.h5")
    assert main(["run", str(file), f"output={path}", "overwrite=true"]) == 2
    assert (
        capsys.readouterr().err
        == f"mpifl: output={path}: a.ckpt is still being written; expected a run that has ended\n"
    )
    moved.rename(path)
    process.kill()
    process.wait()
    os.utime(path)
    begin_ = time.monotonic()
    assert main(["run", str(file), f"output={path}", "overwrite=true"]) == 0
    assert time.monotonic() - begin_ < WATCH_TIME and not capsys.readouterr().err
    assert open_run(path).count("updates") == 20 and not folder_of(path).exists()


@pytest.mark.long
def test_a_run_goes_on_when_its_file_was_to_be_replaced(begin: Any, tmp_path: Path) -> None:
    process = begin(stop={"time": 6.0})
    assert overwrite(tmp_path)[0] == 2
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and ": completed, " in out and not err
    assert open_run(tmp_path / "a.h5").status == "completed"


@pytest.mark.long
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, 0], ids=["ENOLCK", "EOPNOTSUPP", "of one host"])
def test_the_heartbeat_tells_where_locks_do_not(
    begin: Any, tmp_path: Path, shim: Callable[[int], dict[str, str]], number: int
) -> None:
    """Also of a run on another host, whose locks may not be seen here."""
    path, environment = tmp_path / "a.h5", shim(number)
    process = begin(environment)
    elsewhere = {**environment, "SLURMD_NODENAME": "elsewhere"}
    code, err, _ = overwrite(tmp_path, elsewhere)
    assert code == 2 and err == f"mpifl: output={path}: the run is still being written; expected one that has ended\n"
    process.kill()
    process.wait()
    code, err, seconds = overwrite(tmp_path, elsewhere)
    assert err == f"mpifl: {path}: not written for 3 s, so its run has ended; file locks could not tell\n"
    assert code == 0 and seconds > WATCH_TIME
    assert open_run(path).count("updates") == 20


@pytest.mark.parametrize(
    "number", [errno.ENOLCK, pytest.param(errno.EOPNOTSUPP, marks=pytest.mark.long)], ids=["ENOLCK", "EOPNOTSUPP"]
)
def test_a_file_system_without_locks(tmp_path: Path, shim: Callable[[int], dict[str, str]], number: int) -> None:
    """A run, with checkpoints, and all that reads its file."""
    path = tmp_path / "a.h5"
    file = write(tmp_path, "a", job(AREA, SMALL, checkpoint={"updates": 20}, stop={"updates": 4000}))
    commands = [["run", str(file), f"output={path}"], ["show", str(path)], ["replay", str(path)]]
    code = (
        "import sys, json; from mpifl.cli import main; sys.exit(max(main(words) for words in json.loads(sys.argv[1])))"
    )
    words = [sys.executable, "-c", code, __import__("json").dumps(commands)]
    done = subprocess.run(
        words, env=os.environ | shim(number), capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0 and not done.stderr, done
    assert open_run(path).status == "completed" and sets(folder_of(path))


# -- the parts ---------------------------------------------------------------------------------------------------------
def test_locks(tmp_path: Path) -> None:
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


def test_a_reader_is_no_run(tmp_path: Path) -> None:
    """Plain h5py locks a file that it reads; what is completed may be replaced all the same."""
    import h5py

    file, path = write(tmp_path, "a", job(AREA, SMALL)), tmp_path / "a.h5"
    assert main(["run", str(file), f"output={path}"]) == 0
    with h5py.File(path):
        assert is_locked(path)
        assert main(["run", str(file), f"output={path}", "overwrite=true"]) == 0


def test_a_file_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """overwrite=true replaces it, unless somebody has locked it."""
    file, path = write(tmp_path, "a", job(AREA, SMALL)), tmp_path / "a.h5"
    path.write_text("a note")
    lock = Lock(path)
    assert main(["run", str(file), f"output={path}", "overwrite=true"]) == 2
    assert (
        "another process has locked the file; choose another name, or wait for that process"
    ) in capsys.readouterr().err
    lock.release()
    assert main(["run", str(file), f"output={path}", "overwrite=true"]) == 0
