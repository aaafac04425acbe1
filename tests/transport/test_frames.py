"""The wire format: what a frame carries, and its size."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from mpifl.algorithms.base import Message, Update
from mpifl.transport.frames import HEADER_BYTES, FrameFormat, Header, Kind

NUMBERS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)  # as many as fit
FLOAT = np.dtype(np.float32)
VECTORS = (np.array([1.0, 2.0, 3.0], FLOAT), np.array([4.0, 5.0, 6.0], FLOAT))


@pytest.mark.parametrize(("d", "vectors", "size"), [(3, 2, 128 + 24), (8192, 1, 128 + 32768), (8193, 1, 128)])
def test_vectors_up_to_32_kib_travel_in_the_frame_behind_a_header_of_128_bytes(d: int, vectors: int, size: int) -> None:
    format = FrameFormat(d, FLOAT, vectors)
    assert format.frame().buffer.size == size and format.inline == (size > 128)
    assert ctypes.sizeof(Header) == HEADER_BYTES == 128


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_message_arrives_as_it_was_sent(count: int) -> None:
    """With the largest number of numbers; 2**53 units of work are exact."""
    sender, receiver = (FrameFormat(3, FLOAT, 2).frame() for _ in range(2))
    message = Message(VECTORS[:count], NUMBERS, work=2**53, version=3, round=4)
    sender.write_message(7, message, 0.5)
    receiver.buffer[:] = sender.buffer
    header, arrived = receiver.header, receiver.read_message(lambda v: v)
    assert (header.kind, header.subject, header.delay, header.length) == (Kind.MESSAGE, 7, 0.5, count)
    receiver.buffer[:] = 0  # the next frame: the vectors were copied
    assert [v.tolist() for v in arrived.vectors] == [v.tolist() for v in message.vectors]
    assert arrived._replace(vectors=()) == message._replace(vectors=())
    sender.write_message(8, Message(()), 0.0)  # keeps nothing of the last one
    assert sender.read_message(lambda v: v) == Message(()) and sender.header.delay == 0.0


def test_an_update_arrives_as_it_was_sent() -> None:
    frame = FrameFormat(3, FLOAT, 2).frame()
    update = Update(VECTORS, 5, NUMBERS, 3, 4, 2.5, compute=0.125, busy=0.25, accuracy=0.75)
    frame.write_update(7, update, update.vectors)
    arrived = frame.read_update()
    assert (frame.header.kind, frame.header.subject, frame.header.length) == (Kind.UPDATE, 7, 2)
    assert [v.tolist() for v in arrived.vectors] == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    unset = {"vectors": (), "exchange": 0.0, "time": 0.0}  # nan until the server's clock knows them
    assert arrived._replace(**unset) == update._replace(**unset)
    assert np.isnan([arrived.exchange, arrived.time]).all()


def test_a_refused_update_has_no_vectors() -> None:
    frame = FrameFormat(3, FLOAT, 1).frame()
    frame.write_update(7, Update(VECTORS[:1], 5, refused="not finite"), (), 10)
    assert (frame.header.kind, frame.header.length) == (Kind.REFUSED, 10)
    arrived = frame.read_update(refused="not finite")
    assert arrived.vectors == () and arrived.refused == "not finite" and arrived.local_steps == 5
