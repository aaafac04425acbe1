"""The thread that watches processes of its host."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from mpifl.transport import rank_deaths
from mpifl.transport.rank_deaths import ProcessWatch, _Info, _Value


def test_each_process_that_ends_is_reported_once() -> None:
    """One that exits with a status, one that is killed, one that had ended before; not the one that goes on."""
    words = [sys.executable, "-c", "import sys; sys.exit(len(input()))"]
    processes = {rank: subprocess.Popen(words, stdin=subprocess.PIPE, text=True) for rank in (3, 4, 5, 6)}
    processes[5].communicate("")
    found: list[int] = []
    three = threading.Semaphore(0)

    def ended(rank: int) -> None:
        found.append(rank)
        three.release()

    with closing(ProcessWatch({rank: process.pid for rank, process in processes.items()}, ended)):
        processes[3].communicate("abc\n")
        processes[4].kill()
        assert all(three.acquire(timeout=20) for _ in range(3))
        assert processes[6].poll() is None
    assert sorted(found) == [3, 4, 5] and processes[3].returncode == 3
    for process in processes.values():
        process.kill()
        process.communicate()
    time.sleep(0.01)
    assert sorted(found) == [3, 4, 5]  # nobody watches any more


def test_a_report_that_fails_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where the library is missing, as with another MPI."""
    monkeypatch.setattr(rank_deaths, "LIBRARY", "libmissing.so.0")
    rank_deaths.report_death(3)
    (line,) = caplog.messages
    assert line.startswith("rank 3 has ended, which cannot be reported to MPI: libmissing.so.0: cannot open")


def test_layout_of_the_structures() -> None:
    """Sizes and offsets are those of a C compiler for pmix_common.h on a 64-bit machine."""
    assert ctypes.sizeof(_Info) == 552 and _Info.value.offset == 520
    assert ctypes.sizeof(_Value) == 32 and _Value.data.offset == 8
