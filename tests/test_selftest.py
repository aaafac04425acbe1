"""`mpifl selftest`: what it reports on this machine, and that what does not work is reported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpifl.cli import main
from mpifl.errors import RunFailed, RunResult
from mpifl.tools import selftest
from tests.mpi.conftest import environment, mpiexec

NAMES = ["software", "ranks", "file locks", "HDF5, SWMR", "virtual clock", "torch", "GPU-aware MPI"]
ON_RANKS = ["wire, d = 7,850", "wire, d = 1,000,000", "fault tolerance", "virtual clock, ranks", "updates, ranks"]


def test_virtual_clock_compares_with_the_bits_that_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that cannot be written has none: what went wrong is said instead."""
    assert selftest._virtual_clock(tmp_path)[0] == selftest.OK
    (tmp_path / "process.h5").unlink()
    monkeypatch.setitem(selftest.JOB, "algorithm", {**selftest.JOB["algorithm"], "step_size": 0.1001})
    result, text = selftest._virtual_clock(tmp_path)
    assert (result, selftest.DIGEST in text) == (selftest.FAILED, True)
    failed = RunResult(3, RunFailed("No space left on device"), "process.h5")
    monkeypatch.setattr("mpifl.server.start.run_server", lambda job: failed)
    assert selftest._virtual_clock(tmp_path) == (selftest.FAILED, "No space left on device")


def test_one_process_says_which_mpi_would_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")
    result, text = selftest._ranks(None)
    assert result == selftest.ABSENT and "no MPI can be loaded" in text and "/nowhere/libmpi.so" in text


def test_a_child_process_that_hangs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "TIMEOUT", 0.2)
    with pytest.raises(RunFailed, match=r"a child process took longer than 0\.2 s"):
        selftest._python("import time; time.sleep(60)")


def test_locks_that_are_not_seen_by_others_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert selftest._locks(tmp_path)[0] == selftest.OK
    monkeypatch.setattr("mpifl.runfile.run_lock.Lock.__init__", lambda self, path: setattr(self, "_descriptor", -1))
    assert selftest._locks(tmp_path)[0] == selftest.FAILED


def test_a_check_that_raises_has_failed_and_the_exit_code_is_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> tuple[str, str]:
        raise OSError("no such\ndevice")

    for name in ("_locks", "_live_file", "_torch", "_gpu_aware_mpi", "_virtual_clock"):
        monkeypatch.setattr(selftest, name, broken)
    assert main(["selftest"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line[:13].strip() for line in lines] == [name[:13].strip() for name in NAMES]
    assert sum("FAILED  OSError: no such device" in line for line in lines) == 5


def test_wrong_command_line(refused: Callable[..., str]) -> None:
    assert refused("selftest", "--folder", "/none").startswith("mpifl: --folder=/none")
    says = "mpifl: selftest=x: it takes no argument; --folder DIR names the folder that is tested"
    assert refused("selftest", "x").startswith(says)


@pytest.mark.long
def test_everything_works_here_in_one_process(tmp_path: Path, printed: Callable[..., Any]) -> None:
    out = printed("selftest", "--folder", tmp_path).out
    assert all(name in out for name in NAMES) and selftest.FAILED not in out
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.skipif(mpiexec() is None, reason="no MPI launcher")
def test_everything_works_here_on_ranks(tmp_path: Path) -> None:
    words = [str(mpiexec()), "-n", "3", sys.executable, "-m", "mpifl", "selftest", "--folder", str(tmp_path)]
    run = subprocess.run(words, env={**os.environ, **environment("x")}, text=True, capture_output=True, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    assert all(name in run.stdout for name in [*NAMES, *ON_RANKS]) and "3 ranks of " in run.stdout
    script = (Path(__file__).parents[1] / "packaging" / "reframe" / "mpifl_check.py").read_text(encoding="utf-8")
    patterns = re.findall(r"\Wr\"(\^.*?)\"", script)  # what ReFrame reads in this output
    assert patterns and all(re.search(pattern, run.stdout, re.M) for pattern in patterns), patterns
