"""When the server starts to receive a large update while others arrive."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mpifl.algorithms.base import Update
from mpifl.transport import mpi_server
from mpifl.transport.frames import FrameFormat
from mpifl.transport.queues import LargeReceive, Requests


class Link:
    """A pool of receive buffers, and a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(mpi_server, "time", SimpleNamespace(perf_counter=lambda: self.now))
        self.requests, self.at_once = Requests(2), False
        self.fails_at: int | None = None  # the receive whose test raises, from 0 on
        self.test = self._test
        comm = SimpleNamespace(Irecv=lambda buffer, rank, tag: SimpleNamespace(Test=self.test))
        format = FrameFormat(100_000, np.dtype(np.float32), 2)
        self.pool = mpi_server.ReceivePool(comm, format, 4, self.requests)  # type: ignore[arg-type]

    def _test(self) -> bool:
        if self.fails_at is not None:
            self.fails_at -= 1
            if self.fails_at < 0:
                raise ConnectionError("the rank has died")
        return self.at_once

    def start(self, i: int, count: int = 1) -> LargeReceive:
        """Starts to receive an update, which is not complete at once."""
        assert self.pool.start(i, 1, Update((), 1), count) is None
        return self.requests.receives[-1]

    def end(self, seconds: float) -> None:
        """The oldest update is complete so many seconds later."""
        self.now += seconds
        receive = self.requests.drop(2)
        assert self.pool.received(receive)
        self.pool.free.append(receive.slot)


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


def test_vectors_that_are_there_need_no_second_look(link: Link) -> None:
    link.at_once = True
    complete = link.pool.start(0, 1, Update((), 1), 2)
    assert complete and not link.pool.active and len(link.requests.all) == 2
    update, slot = complete
    assert [v.shape for v in update.vectors] == [(100_000,), (100_000,)] and slot not in link.pool.free


def test_an_update_without_vectors_is_complete(link: Link) -> None:
    complete = link.pool.start(0, 1, Update((), 1), 0)
    assert complete and not link.pool.active and complete[0].vectors == ()


def test_an_update_whose_first_vector_is_there_waits_for_the_second(link: Link) -> None:
    complete = iter([True, False])
    link.test = lambda: next(complete)
    receive = link.start(0, 2)
    assert receive.missing == 1 and link.pool.active == {receive} and len(link.requests.all) == 3
    assert link.pool.received(link.requests.drop(2)) and not link.pool.active


def test_an_update_is_complete_with_its_last_vector(link: Link) -> None:
    receive = link.start(0, 2)
    assert receive.missing == 2 and link.pool.active == {receive} and len(link.requests.all) == 4
    first, second = link.requests.drop(2), link.requests.drop(2)
    assert first is second is receive and len(link.requests.all) == 2
    assert not link.pool.received(receive) and link.pool.received(receive) and not link.pool.active


def test_an_abandoned_update_takes_its_buffer_with_it(link: Link) -> None:
    """MPI may still write to the buffer: the slot gets another one, and no request of the update is tested again."""
    kept, abandoned = link.start(0), link.start(1, 2)
    before = abandoned.update.vectors[0]
    link.pool.abandon(lambda i, rank: i == 1)
    assert link.pool.active == {kept} and link.requests.receives == [kept] and len(link.requests.all) == 3
    again = link.start(2)
    assert again.slot == abandoned.slot and not np.shares_memory(again.update.vectors[0], before)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_rank_that_dies_while_a_receive_is_started(link: Link, at_once: bool) -> None:
    """The transport abandons what is received from it: no request and no slot is lost."""
    link.at_once, link.fails_at = at_once, 1  # the second of two vectors
    with pytest.raises(ConnectionError):
        link.start(0, 2)
    link.pool.abandon(lambda i, rank: rank == 1)
    assert not link.pool.active and len(link.requests.all) == 2 and sorted(link.pool.free) == [0, 1, 2, 3]


def test_removed_requests_leave_no_gap() -> None:
    """The last request takes the place of a removed one; positions removed from the highest down stay valid."""
    requests, started = Requests(3), [SimpleNamespace() for _ in range(5)]
    for k, request in enumerate(started):
        requests.add(request, LargeReceive(k, k % 2, 0, Update((), 1), 1))  # type: ignore[arg-type]
    assert [requests.drop(k).client for k in (6, 3)] == [3, 0]
    assert requests.all[3:] == [started[4], started[1], started[2]]
    assert [receive.client for receive in requests.receives] == [4, 1, 2]
    requests.drop_where(lambda receive: receive.rank == 0)
    assert requests.all[3:] == [started[1]] and [receive.client for receive in requests.receives] == [1]
