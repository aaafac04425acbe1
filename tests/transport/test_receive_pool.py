"""When the server starts to receive a large update while others arrive."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mpifl.algorithms.base import Update
from mpifl.transport import mpi_server
from mpifl.transport.frames import FrameFormat


class Link:
    """A pool of receive buffers, and a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(mpi_server, "time", SimpleNamespace(perf_counter=lambda: self.now))
        comm = SimpleNamespace(Irecv=lambda buffer, rank, tag: object())
        self.pool = mpi_server.ReceivePool(comm, FrameFormat(100_000, np.dtype(np.float32), 1), 4, [])  # type: ignore[arg-type]

    def start(self, i: int) -> None:
        self.pool.start(i, 1, Update((), 1), 1)

    def end(self, seconds: float) -> None:
        """The oldest update is complete so many seconds later."""
        self.now += seconds
        request = min(self.pool.active)
        self.pool.active.discard(request)
        complete = self.pool.received(request)
        assert complete
        self.pool.free.append(complete[0])


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    return Link(monkeypatch)


def test_on_a_fast_link_all_at_once(link: Link) -> None:
    for _ in range(50):
        for i in range(3):
            assert link.pool.has_turn()
            link.start(i)
        for _ in range(3):
            link.end(0.010)


def test_on_a_slow_link_one_after_the_other(link: Link) -> None:
    for _ in range(50):
        assert link.pool.has_turn()  # none is being received
        link.start(0)
        link.end(0.2)
    link.start(0)
    assert not link.pool.has_turn()
    link.now += 0.5
    assert not link.pool.has_turn()
    link.now += 0.2  # more than three times what the others took
    assert link.pool.has_turn()
    link.start(1)
    assert not link.pool.has_turn()
    link.end(0.1)
    assert not link.pool.has_turn()
    link.end(0.1)
    assert link.pool.has_turn()


def test_a_link_that_has_become_fast(link: Link) -> None:
    for seconds, slow in (0.2, True), (0.001, False):
        for _ in range(50):
            link.start(0)
            link.end(seconds)
        link.start(0)
        assert link.pool.has_turn() is not slow
        link.end(seconds)
