"""The wire format. A frame is one buffer: a header of 128 bytes, then vectors.

If all vectors that a message may hold fit into `INLINE_BYTES` they travel in the frame, so that an update is one MPI
message; larger ones follow in messages of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from math import nan
from struct import Struct
from typing import NamedTuple

import numpy as np

from mpifl.algorithms.base import Message, Update, new_tuple
from mpifl.objective import Vector

HEADER_BYTES = 128
INLINE_BYTES = 1 << 16  # of vectors, up to which they travel in the frame
MAX_NUMBERS = 6  # in a message or an update


class Kind(IntEnum):
    """Kinds of frames."""

    MESSAGE = 1  # to a client; vectors follow
    UPDATE = 2  # of a client; vectors follow
    REFUSED = 3  # an update without vectors; the text why follows
    CLIENT_ERROR = 4  # what a client raised; the text follows. Client -1: the rank cannot continue
    PART_STATUS = 5  # a rank's part of a checkpoint; a JSON text follows
    SIGNAL = 6  # received by a client rank
    MARKER = 7  # of a snapshot: each rank writes its part of a checkpoint
    HOST = 8  # one more client for a rank, which is described in the messages that follow
    STOP = 9  # the run ends; the exit code
    GOODBYE = 10  # the last frame of a rank; the number of messages that it dropped


WITH_TEXT = frozenset([Kind.REFUSED, Kind.CLIENT_ERROR, Kind.PART_STATUS])


class Header(NamedTuple):
    """The first fields of every frame's header; 0 where a kind of frame does not use one."""

    kind: int
    subject: int = 0  # the client; else the number of the checkpoint or signal, the exit code, or a count
    length: int = 0  # vectors, or bytes of text, that follow


# kind, count of numbers, subject, length; round, work, version, local steps; delay, norm, times of computing and of the
# rank (s), accuracy; after these the numbers
_UPDATE_FIELDS = Struct("=BBxxiII3q5d")
_MESSAGE_FIELDS = Struct("=BBxxiII2q8xd")  # the same, up to the last that messages use
_BEGIN = Struct("=BxxxiI")  # a `Header`
_NUMBERS = [Struct(f"={count}d") for count in range(MAX_NUMBERS + 1)]
_UNUSED = _UPDATE_FIELDS.size - _MESSAGE_FIELDS.size  # bytes of a message before its numbers
# the fields of a message and its numbers, by their count
_MESSAGES = [Struct(f"{_MESSAGE_FIELDS.format}{_UNUSED}x{count}d") for count in range(MAX_NUMBERS + 1)]
_MESSAGE, _UPDATE, _REFUSED = int(Kind.MESSAGE), int(Kind.UPDATE), int(Kind.REFUSED)


class Frame:
    """The buffer of a frame, (size,) uint8, with views of its header and of its vectors, (d,) each."""

    __slots__ = ("buffer", "header", "vectors")

    def __init__(self, size: int, d: int, dtype: np.dtype) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.header = self.buffer.data
        self.vectors = tuple(self.buffer[HEADER_BYTES:].view(dtype).reshape(-1, d))

    def write(self, header: Header) -> None:
        """Writes a frame that is neither message nor update."""
        _BEGIN.pack_into(self.header, 0, *header)

    def read(self) -> Header:
        """Returns the first fields of the header."""
        return Header._make(_BEGIN.unpack_from(self.header))

    def write_message(self, i: int, m: Message, delay: float, vectors: Sequence[np.ndarray]) -> None:
        """Writes a message to client i: the header, and these vectors."""
        own, numbers, work, version, round = m
        count = len(numbers)
        _MESSAGES[count].pack_into(self.header, 0, _MESSAGE, count, i, len(own), round, work, version, delay, *numbers)
        if vectors:  # else the frame has them already, or they follow
            for inside, v in zip(self.vectors, vectors):
                inside[...] = v

    def read_message(self, deliver: Callable[[np.ndarray], Vector]) -> tuple[int, Message, float, int]:
        """Returns client, message, delay (s) and the number of the message's vectors.

        The message has those that travel in the frame, copied and passed through `deliver`.
        """
        _, count, i, length, round, work, version, delay = _MESSAGE_FIELDS.unpack_from(self.header)
        inside = self.vectors[:length]
        if len(inside) == 1:  # the usual case
            vectors: tuple[Vector, ...] = (deliver(inside[0].copy()),)
        else:
            vectors = tuple([deliver(v.copy()) for v in inside])
        numbers = _NUMBERS[count].unpack_from(self.header, _UPDATE_FIELDS.size) if count else ()
        return i, new_tuple(Message, (vectors, numbers, work, version, round)), delay, length

    def write_update(self, i: int, u: Update, vectors: Sequence[np.ndarray], text: int = 0) -> None:
        """Writes an update of client i, with the vectors that travel in the frame.

        text: for a refused update, the bytes of the reason, which follows
        """
        own, steps, numbers, version, round, norm, compute, _, busy, accuracy, refused, _ = u
        count, header = len(numbers), self.header
        kind, length = (_REFUSED, text) if refused else (_UPDATE, len(own))
        _UPDATE_FIELDS.pack_into(
            header, 0, kind, count, i, length, round, 0, version, int(steps), 0.0, norm, compute, busy, accuracy
        )
        if count:
            _NUMBERS[count].pack_into(header, _UPDATE_FIELDS.size, *numbers)
        for inside, v in zip(self.vectors, vectors):
            inside[...] = v

    def read_update(self) -> tuple[int, Update, int]:
        """Returns client, update with views of the vectors in the frame, and the number of its vectors."""
        _, count, i, length, round, _, version, steps, _, norm, compute, busy, accuracy = _UPDATE_FIELDS.unpack_from(
            self.header
        )
        numbers = _NUMBERS[count].unpack_from(self.header, _UPDATE_FIELDS.size) if count else ()
        fields = self.vectors[:length], steps, numbers, version, round, norm, compute, nan, busy, accuracy, "", nan
        return i, new_tuple(Update, fields), length


class FrameFormat:
    """The frames of a run with vectors (d,) of `dtype`, at most `vectors` in a message."""

    def __init__(self, d: int, dtype: np.dtype, vectors: int) -> None:
        self.d, self.dtype, self.vectors = d, dtype, vectors
        self.vector_bytes = vectors * d * dtype.itemsize  # of the vectors in a message, at most
        self.inline = self.vector_bytes <= INLINE_BYTES
        # bytes of a frame with so many vectors
        self.sizes = [HEADER_BYTES + (count * d * dtype.itemsize if self.inline else 0) for count in range(vectors + 1)]

    def frame(self) -> Frame:
        """A frame with room for as many vectors as travel in it."""
        return Frame(self.sizes[-1], self.d, self.dtype)
