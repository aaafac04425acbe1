"""What is in transit: which buffers are kept, used again, or never touched again."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.base import Update
from mpifl.errors import ConfigError
from mpifl.transport import queues
from mpifl.transport.frames import Frame, FrameFormat, Kind
from mpifl.transport.mpi import DATA, MPI, check_tags
from mpifl.transport.queues import KEPT_FRAMES, Outbox, ReceivePool

SMALL, LARGE = 1_000, 100_000  # entries of vectors that travel in frames, and of larger ones


class Request(SimpleNamespace):
    """A send or a receive that is complete when the test says so."""

    def Test(self) -> bool:
        return bool(self.complete)


class Comm:
    """A communicator of three ranks whose requests the test completes."""

    size = 3

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.sizes: list[int] = []  # of what was sent, in bytes
        self.fails_at = -1  # the number of the request whose start raises

    def Irecv(self, buffer: np.ndarray, rank: int, tag: int) -> Request:
        if len(self.requests) == self.fails_at:
            raise MPI.Exception(MPI.ERR_OTHER)
        self.sizes.append(buffer.nbytes)
        self.requests.append(Request(complete=False))
        return self.requests[-1]

    Isend = Irecv

    def complete(self, *numbers: int) -> None:
        for k in numbers:
            self.requests[k].complete = True


@pytest.fixture
def quarantine(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    found: list[object] = []
    monkeypatch.setattr(queues, "QUARANTINE", found)
    request = SimpleNamespace(Testall=lambda requests: all(each.complete for each in requests))
    monkeypatch.setattr(queues, "MPI", SimpleNamespace(Request=request, Exception=MPI.Exception))
    return found


@pytest.fixture
def comm(quarantine: list[object]) -> Any:
    return Comm()


# -- sends -------------------------------------------------------------------------------------------------------------
def outbox(comm: Any, d: int) -> Outbox:
    return Outbox(comm, 1, FrameFormat(d, np.dtype(np.float32), 2))


def send(box: Outbox, count: int = 0) -> Frame:
    frame = box.take()
    frame.write(Kind.MARKER, 1)
    box.send(frame, count)
    return frame


def test_a_frame_is_as_long_as_its_vectors_and_written_again_once_it_is_sent(comm: Comm) -> None:
    box = outbox(comm, SMALL)
    first, second = send(box, 1), send(box, 2)
    assert first is not second and comm.sizes == [128 + 4000, 128 + 8000]
    comm.complete(0)
    assert send(box) is first
    comm.complete(1, 2)
    assert {id(send(box)), id(send(box))} == {id(first), id(second)} and comm.sizes[-1] == 128


def test_few_frames_are_kept_after_many_were_in_transit(comm: Comm) -> None:
    box = outbox(comm, SMALL)
    frames = [weakref.ref(send(box).buffer) for _ in range(50)]
    assert all(frame() is not None for frame in frames)
    comm.complete(*range(50))
    box.release()
    assert sum(frame() is not None for frame in frames) == KEPT_FRAMES


def test_a_large_vector_is_kept_until_it_is_sent(comm: Comm) -> None:
    box, vectors = outbox(comm, LARGE), [np.zeros(LARGE, np.float32) for _ in range(2)]
    kept = [weakref.ref(v) for v in vectors]
    box.send_vectors(vectors, 16)
    del vectors
    comm.complete(0)
    send(box)  # looks at earlier sends first
    assert [v() is not None for v in kept] == [False, True]


def test_what_a_dead_rank_was_sent_is_never_used_again(comm: Comm, quarantine: list[object]) -> None:
    box = outbox(comm, SMALL)
    frame = send(box)
    box.abandon()
    comm.complete(0)
    assert send(box) is not frame and len(quarantine) == 1


# -- receives ----------------------------------------------------------------------------------------------------------
def pool(comm: Any, clients: int = 4) -> ReceivePool:
    return ReceivePool(comm, FrameFormat(LARGE, np.dtype(np.float32), 2), clients)


@pytest.mark.parametrize(("d", "clients", "count"), [(LARGE, 4, 4), (LARGE, 1, 2), (LARGE, 500, 32), (10**8, 9, 2)])
def test_the_pool_is_bounded(comm: Any, d: int, clients: int, count: int) -> None:
    assert len(ReceivePool(comm, FrameFormat(d, np.dtype(np.float32), 1), clients).free) == count


def test_an_update_is_complete_with_its_last_vector_in_any_order_and_its_buffers_are_used_again(comm: Any) -> None:
    receives = pool(comm, 2)
    receives.start(0, 1, Update((), 1), 1)
    receives.start(3, 1, Update((), 5), 2)
    assert not receives.free
    comm.complete(2)
    assert not receives.take_complete()
    comm.complete(1)
    (receive,) = receives.take_complete()
    assert (receive.client, receive.rank, receive.update.local_steps) == (3, 1, 5)
    assert [v.shape for v in receive.update.vectors] == [(LARGE,)] * 2 and len(receives.active) == 1
    receives.free.append(receive.buffers)
    receives.start(2, 1, Update((), 1), 1)
    assert receives.active[1].buffers is receive.buffers


def test_an_abandoned_update_takes_its_buffers_with_it(comm: Any, quarantine: list[object]) -> None:
    """MPI may still write to them: the pool gets others."""
    receives = pool(comm, 2)
    for i in range(2):
        receives.start(i, 1, Update((), 1), 1)
    kept, abandoned = receives.active
    receives.abandon(lambda receive: receive.client == 1)
    assert receives.active == [kept] and quarantine == [abandoned] and len(receives.free) == 1
    assert not np.shares_memory(receives.free[0][0], abandoned.buffers[0])


def test_a_rank_that_dies_while_a_receive_is_started_costs_no_buffer(comm: Any, quarantine: list[object]) -> None:
    receives, comm.fails_at = pool(comm), 1  # the second of two vectors
    with pytest.raises(MPI.Exception):
        receives.start(0, 1, Update((), 1), 2)
    assert not receives.active and len(receives.free) == 4 and len(quarantine) == 1


def test_more_clients_than_message_tags() -> None:
    comm: Any = SimpleNamespace(Get_attr=lambda key: 32767)  # the least that MPI promises
    check_tags(comm, 32767 - DATA)
    text = "problem.clients=32752: this MPI has 32751 message tags for clients; expected at most 32751"
    with pytest.raises(ConfigError, match=text):
        check_tags(comm, 32767 - DATA + 1)
