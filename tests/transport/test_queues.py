"""What one rank sends to another: the frames that are used in turn, and vectors from where they are."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from mpifl.algorithms.base import Message
from mpifl.transport import mpi, queues
from mpifl.transport.frames import Frame, FrameFormat, Header, Kind
from mpifl.transport.queues import KEPT_FRAMES, Outbox, VectorSends, ring_length


class Send:
    """A persistent send that is complete when the test says so."""

    def __init__(self) -> None:
        self.complete, self.freed = True, False

    def Start(self) -> None: ...

    def Test(self) -> bool:
        return self.complete

    def Free(self) -> None:
        self.freed = True


class Wire:
    """An outbox to one of some ranks, for frames of one vector (d,) float32."""

    def __init__(self, d: int, ranks: int) -> None:
        self.sends: list[Send] = []
        comm = SimpleNamespace(size=ranks + 1, Send_init=self._send_init)
        self.outbox = Outbox(comm, 1, FrameFormat(d, np.dtype(np.float32), 1))  # type: ignore[arg-type]

    def _send_init(self, *args: object) -> Send:
        self.sends.append(Send())
        return self.sends[-1]

    def send(self) -> int:
        """Sends a frame; returns the address of its buffer."""
        outgoing = self.outbox.take()
        outgoing.frame.write(Header(Kind.MARKER, 1))
        self.outbox.start(outgoing, 1)
        address: int = outgoing.frame.buffer.__array_interface__["data"][0]
        return address

    def send_message(self, i: int, vectors: tuple[np.ndarray, ...], round: int) -> Frame:
        """Sends a message; returns its frame."""
        self.outbox.send_message(i, Message(vectors, (), version=3, round=round), 0.0)
        return self.outbox._sending[-1].frame


@pytest.mark.parametrize(
    ("size", "ranks", "expected"),
    [
        (4000, 1, 1),  # MPI copies it
        (4001, 8, 64),  # 65.5
        (4001, 9, 59),  # 58.2
        (31_528, 1, 64),  # 2 MiB would be 67 of them
        (31_528, 4, 17),  # 2,097,152 / 126,112 = 16.6
        (31_528, 16, 5),
        (31_528, 128, 1),
        (65_664, 4, 8),
    ],
)  # fmt: skip
def test_two_mebibytes_of_frames_are_used_in_turn(size: int, ranks: int, expected: int) -> None:
    assert ring_length(size, ranks, copied=4000) == expected


@pytest.mark.parametrize(
    ("library", "chosen", "expected"),
    [
        ("Open MPI v5.0.8, package: Open MPI", "33792", 33792),
        ("Open MPI v10.1.0, package: Open MPI", "65536", 65536),
        ("Open MPI v5.0.8, package: Open MPI", "32K", 4096),  # a suffix is not read: at worst an unneeded ring
        ("Open MPI v4.1.6, package: Open MPI", "33792", 4096),  # has no such component
        ("MPICH Version: 4.3.0", "33792", 4096),
    ],
)
def test_the_size_up_to_which_open_mpi_copies_is_the_one_in_its_environment(
    library: str, chosen: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_MCA_btl_sm_eager_limit", chosen)
    monkeypatch.setattr(mpi.MPI, "Get_library_version", lambda: library)
    assert mpi.eager_limit() == expected


@pytest.mark.parametrize(("d", "ranks", "expected"), [(16_000, 4, 9), (16_000, 128, 1), (10, 1, 1)])
def test_complete_frames_are_used_again_in_turn(d: int, ranks: int, expected: int) -> None:
    wire = Wire(d, ranks)
    addresses = [wire.send() for _ in range(3 * expected)]
    assert len(set(addresses)) == expected and addresses == 3 * addresses[:expected]


def test_a_frame_that_is_being_sent_is_not_written() -> None:
    wire = Wire(16_000, 16)
    first = [wire.send() for _ in range(3)]
    for send in wire.sends:
        send.complete = False
    more = [wire.send() for _ in range(20)]
    assert not {*first} & {*more} and len({*more}) == 20


def test_frames_beyond_those_that_are_kept_are_freed() -> None:
    for ranks, kept in (16, KEPT_FRAMES), (4, 9):
        wire = Wire(16_000, ranks)
        for _ in range(30):
            wire.send()
            wire.sends[-1].complete = False
        for send in wire.sends:
            send.complete = True
        wire.send()
        assert sum(not send.freed for send in wire.sends) == kept
        assert wire.send() and sum(not send.freed for send in wire.sends) == kept


def read(frame: Frame) -> tuple[int, int, list[float]]:
    """Client, round and the first entries of the vectors."""
    i, message, _, _ = frame.read_message(lambda v: v)
    return i, message.round, [float(v[0]) for v in message.vectors]


def test_a_model_that_is_sent_again_is_not_written_again() -> None:
    wire, model = Wire(16_000, 1), (np.ones(16_000, np.float32),)
    first = wire.send_message(1, model, 5)
    first.vectors[0][0] = 7  # what the frame has now, not what a second copy would write
    again = wire.send_message(2, model, 6)
    assert again is first and read(again) == (2, 6, [7.0])


def test_a_model_is_written_where_the_frame_before_holds_another_one_or_is_not_received() -> None:
    wire, model = Wire(16_000, 1), (np.ones(16_000, np.float32),)
    first = wire.send_message(1, model, 5)
    equal = wire.send_message(1, (model[0].copy(),), 6)  # another array
    assert equal is not first and read(equal) == (1, 6, [1.0])
    wire.send()  # a frame of another kind comes between
    other = wire.send_message(1, model, 7)
    wire.sends[-1].complete = False
    last = wire.send_message(2, model, 8)
    frames = [first, equal, other, last]
    assert len({id(frame) for frame in frames}) == 4
    assert [read(frame) for frame in frames] == [(1, 5, [1.0]), (1, 6, [1.0]), (1, 7, [1.0]), (2, 8, [1.0])]


def test_frames_before_large_vectors_have_the_header_alone() -> None:
    wire, model = Wire(1_000_000, 1), (np.ones(1_000_000, np.float32),)
    assert [wire.send_message(i, model, 5).read()[:2] for i in range(3)] == [(Kind.MESSAGE, i) for i in range(3)]
    assert len(wire.outbox._sending[-1].frame.buffer) == 128


class VectorWire:
    """Vectors that are being sent to some ranks."""

    def __init__(self, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(queues, "time", SimpleNamespace(perf_counter=lambda: self.now))
        request = SimpleNamespace(Testsome=self._testsome)
        monkeypatch.setattr(queues, "MPI", SimpleNamespace(Request=request))
        self.sends: dict[int, list[Send]] = {rank: [] for rank in range(1, ranks + 1)}
        self.vector_sends = VectorSends(SimpleNamespace(size=ranks + 1, Isend=self._isend))  # type: ignore[arg-type]
        self.dead: Send | None = None  # a test of it raises
        self._null: set[Send] = set()  # those that a test has seen complete

    def _isend(self, v: np.ndarray, rank: int, tag: int) -> Send:
        send = Send()
        send.complete = False
        self.sends[rank].append(send)
        return send

    def _testsome(self, sends: list[Send]) -> list[int] | None:
        """As MPI's: requests that were seen complete before are ignored, and where all are it returns no list."""
        active = [k for k, send in enumerate(sends) if send not in self._null]
        done = [k for k in active if sends[k].complete]
        self._null |= {sends[k] for k in done}
        if self.dead in sends:
            raise ConnectionError("the rank has died")
        return done if active else None

    def send(self, rank: int) -> weakref.ref[np.ndarray]:
        """Sends a new vector; returns a reference that does not keep it."""
        v = np.zeros(100)
        self.vector_sends.start([v], rank, 16)
        return weakref.ref(v)


def kept(*vectors: weakref.ref[np.ndarray]) -> list[bool]:
    return [v() is not None for v in vectors]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> VectorWire:
    return VectorWire(3, monkeypatch)


def test_a_vector_is_kept_until_its_send_is_complete(wire: VectorWire) -> None:
    vectors = [wire.send(1), wire.send(2), wire.send(1)]
    assert kept(*vectors) == [True, True, True]
    wire.sends[1][0].complete = True
    vectors.append(wire.send(1))
    assert kept(*vectors) == [False, True, True, True] and len(wire.vector_sends) == 3


def test_all_that_was_sent_is_released_every_10_ms(wire: VectorWire) -> None:
    vectors = [wire.send(rank) for rank in (1, 2, 3, 1, 2, 2)]
    wire.sends[2][0].complete = wire.sends[2][1].complete = True
    wire.sends[3][0].complete = wire.sends[1][1].complete = True  # the latter behind one that is not complete
    wire.now += 0.009
    wire.send(1)
    assert kept(*vectors) == [True] * 6
    wire.now += 0.002
    wire.send(1)
    assert kept(*vectors) == [True, False, False, True, False, True] and len(wire.vector_sends) == 5


def test_after_the_first_messages_only_those_in_progress_are_kept(wire: VectorWire) -> None:
    """All clients are sent the same model at first; each of them answers at once later on."""
    for _ in range(50):
        wire.send(1)
    for send in wire.sends[1]:
        send.complete = True
    for _ in range(10):
        wire.send(1)
        wire.sends[1][-1].complete = True
        wire.now += 0.002
    assert len(wire.vector_sends) <= 6  # of the last 10 ms


def test_a_dead_rank_holds_up_no_other(wire: VectorWire) -> None:
    """A test that raises may have seen the sends to other ranks complete: those are released later."""
    vectors = [wire.send(rank) for rank in (1, 2, 1)]
    wire.sends[2][0].complete, wire.dead = True, wire.sends[1][0]
    with pytest.raises(ConnectionError):
        wire.vector_sends.release()
    abandoned = wire.vector_sends.abandon(1)
    assert [id(v) for v in abandoned] == [id(vectors[0]()), id(vectors[2]())]
    assert len(wire.vector_sends) == 1
    wire.vector_sends.release()
    assert not wire.vector_sends and not kept(vectors[1])[0]
