"""`mpifl selftest`: what it reports on this machine, and that what does not work is reported."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpifl.errors import RunFailed, RunResult
from mpifl.tools import selftest
from tests.mpi.conftest import MPIFL, Start, run, start

__all__ = ["run", "start"]  # fixtures

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
    monkeypatch: pytest.MonkeyPatch, printed: Callable[..., Any]
) -> None:
    def broken(*arguments: object) -> tuple[str, str]:
        raise OSError("no such\ndevice")

    for name in ("_locks", "_live_file", "_torch", "_gpu_aware_mpi", "_virtual_clock"):
        monkeypatch.setattr(selftest, name, broken)
    lines = printed("selftest", code=3).out.splitlines()
    assert [line[:13].strip() for line in lines] == [name[:13].strip() for name in NAMES]
    assert sum("FAILED  OSError: no such device" in line for line in lines) == 5


def test_wrong_command_line(refused: Callable[..., str]) -> None:
    assert refused("selftest", "--folder", "/none").startswith("mpifl: --folder=/none")
    says = "mpifl: selftest=x: it takes no argument; --folder DIR names the folder that is tested"
    assert refused("selftest", "x").startswith(says)


@pytest.mark.long
@pytest.mark.mpi
def test_everything_works_here_on_ranks(run: Start, tmp_path: Path) -> None:
    """In one process a wheel that is installed shows it (`packaging/test_wheel.py`)."""
    out = run(3, *MPIFL, "selftest", "--folder", tmp_path, deadline=100, code=0).out
    assert all(name in out for name in [*NAMES, *ON_RANKS]) and "3 ranks of " in out
    assert not list(tmp_path.iterdir())
    script = (Path(__file__).parents[1] / "packaging" / "reframe" / "mpifl_check.py").read_text(encoding="utf-8")
    patterns = re.findall(r"\Wr\"(\^.*?)\"", script)  # what ReFrame reads in this output
    assert patterns and all(re.search(pattern, out, re.M) for pattern in patterns), patterns
