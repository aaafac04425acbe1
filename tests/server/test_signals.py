"""The thread that ends a run in time, where the main thread computes outside Python."""

from __future__ import annotations

import os
import resource
import signal
import threading

import pytest

from mpifl.signals import SignalRecorder


def test_the_grace_period_ends_where_many_files_are_open() -> None:
    """Also in a process with more than 1024 descriptors, such as a server that is connected to as many ranks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may not open 2048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened: list[int] = []
    ended, found = threading.Event(), []
    try:
        while not opened or opened[-1] < 1100:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        with SignalRecorder() as signals:
            signals.record()
            signals.watch(0.05, lambda number: (found.append(number), ended.set()))  # type: ignore[arg-type,return-value]
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended.wait(20)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == [signal.SIGTERM]


def test_the_grace_period_begins_whichever_thread_reads_the_signal_first() -> None:
    for _ in range(20):
        ended = threading.Event()
        with SignalRecorder() as signals:
            signals.record()
            signals.watch(0.01, lambda number, ended=ended: ended.set())  # type: ignore[misc]
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended.wait(20)
