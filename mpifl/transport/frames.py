"""The wire format. A frame is one buffer: a header of 128 bytes, then vectors.

If all vectors that a message may hold fit into `INLINE_BYTES` they travel in the frame, so that an update is one MPI
message; larger ones follow in messages of their own.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import numpy as np

from mpifl.algorithms.base import Message, Update

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
    """A frame's header: the only definition of its fields. A field that a kind does not use is 0."""

    kind: int
    subject: int = 0  # the client; else the number of the checkpoint or signal, the exit code, or a count
    length: int = 0  # vectors, or bytes of text, that follow
    round: int = 0
    work: int = 0
    version: int = 0
    local_steps: int = 0
    delay: float = 0.0  # s
    norm: float = 0.0
    compute: float = 0.0  # s
    busy: float = 0.0  # s
    accuracy: float = 0.0
    numbers: tuple[float, ...] = ()

    @classmethod
    def of_message(cls, i: int, m: Message, delay: float) -> Header:
        """The header of a message to client i."""
        return cls(
            Kind.MESSAGE, i, len(m.vectors), m.round, int(m.work), m.version, delay=delay, numbers=tuple(m.numbers)
        )

    @classmethod
    def of_update(cls, i: int, u: Update) -> Header:
        """The header of an update of client i; for a refused one the caller sets `length`, that of its text."""
        return cls(
            Kind.REFUSED if u.refused else Kind.UPDATE, i, len(u.vectors), u.round, 0, u.version, int(u.local_steps),
            0.0, u.norm, u.compute, u.busy, u.accuracy, tuple(u.numbers),
        )  # fmt: skip

    def to_message(self, vectors: tuple[np.ndarray, ...]) -> Message:
        """The message whose header this is."""
        return Message(vectors, self.numbers, self.work, self.version, self.round)

    def to_update(self, vectors: tuple[np.ndarray, ...], refused: str = "") -> Update:
        """The update whose header this is."""
        return Update(
            vectors, self.local_steps, self.numbers, self.version, self.round, self.norm, self.compute,
            refused=refused, busy=self.busy, accuracy=self.accuracy,
        )  # fmt: skip


_LAYOUT = Struct("=BBxxiII3q5d6d")  # count of numbers after the kind, then the fields in order; all 8-byte aligned
_PADDING = [(0.0,) * (MAX_NUMBERS - count) for count in range(MAX_NUMBERS + 1)]  # of the numbers


def read_header(frame: np.ndarray) -> Header:
    """The header of a frame."""
    kind, count, *fields = _LAYOUT.unpack_from(frame.data)
    numbers = fields[-MAX_NUMBERS:]
    return Header._make((kind, *fields[:-MAX_NUMBERS], tuple(numbers[:count])))


class FrameFormat:
    """The frames of a run with vectors (d,) of `dtype`, at most `vectors` in a message."""

    def __init__(self, d: int, dtype: np.dtype, vectors: int) -> None:
        self.d, self.dtype, self.vectors = d, dtype, vectors
        self.inline = vectors * d * dtype.itemsize <= INLINE_BYTES
        self.size = HEADER_BYTES + (vectors * d * dtype.itemsize if self.inline else 0)

    def buffer(self) -> np.ndarray:
        """A buffer to receive a frame, (size,) uint8."""
        return np.zeros(self.size, np.uint8)

    def read_vectors(self, frame: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
        """Copies of the `count` vectors in a frame."""
        end = HEADER_BYTES + count * self.d * self.dtype.itemsize
        return tuple(frame[HEADER_BYTES:end].view(self.dtype).reshape(count, self.d).copy())

    def pack(self, header: Header, vectors: tuple[np.ndarray, ...] = ()) -> list[np.ndarray]:
        """The buffers to send, in order: the frame, then the vectors that do not fit into it."""
        inside = vectors if self.inline else ()
        frame = np.empty(HEADER_BYTES + len(inside) * self.d * self.dtype.itemsize, np.uint8)
        kind, *fields, numbers = header
        _LAYOUT.pack_into(frame.data, 0, kind, len(numbers), *fields, *numbers, *_PADDING[len(numbers)])
        if inside:
            frame[HEADER_BYTES:].view(self.dtype).reshape(len(inside), self.d)[:] = inside
        return [frame, *(() if self.inline else map(np.ascontiguousarray, vectors))]
