"""The thread that ends a run in time, where the main thread computes outside Python."""

from __future__ import annotations

import os
import queue
import resource
import signal

import pytest

from mpifl.signals import SignalRecorder


def test_the_grace_period_ends_where_many_files_are_open() -> None:
    """In a process with more than 1024 descriptors, such as a server that is connected to as many ranks; whichever
    thread reads the signal first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may not open 2048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened: list[int] = []
    try:
        while not opened or opened[-1] < 1100:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(20):
            found: queue.Queue[int] = queue.Queue()
            with SignalRecorder() as signals:
                signals.record()
                signals.watch(0.01, found.put)
                os.kill(os.getpid(), signal.SIGTERM)
                assert found.get(timeout=20) == signal.SIGTERM
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
