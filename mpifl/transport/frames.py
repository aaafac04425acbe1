"""The wire format. A frame is one buffer: a header of 128 bytes, then vectors.

If all vectors that a message may hold fit into `INLINE_BYTES` they travel in the frame, so that an update is one MPI
message; larger ones follow in messages of their own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.errors import MAX_PART, shortened
from mpifl.objective import Vector

HEADER_BYTES = 128
INLINE_BYTES = 1 << 15  # maximum of the vectors that travel in the frame
MAX_NUMBERS = 6  # numbers in a message or an update


def as_float64(verb: str, numbers: Sequence[object]) -> tuple[float, ...]:
    """The numbers of a message or an update as MPI sends them. Raises ValueError, which begins with `verb`."""
    try:
        if (count := len(numbers)) > MAX_NUMBERS:
            raise ValueError(f"{verb} {count} numbers, more than {MAX_NUMBERS}")
        if not any(isinstance(number, str | bytes) for number in numbers):
            return tuple([float(number) for number in numbers])  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        pass
    raise ValueError(f"{verb} numbers={shortened(repr(numbers), MAX_PART)}, not numbers of float64")


class Kind(IntEnum):
    """Kinds of frames."""

    MESSAGE = 1  # a message to a client; vectors follow
    UPDATE = 2  # an update of a client; vectors follow
    REFUSED = 3  # an update without vectors; a text says why the client loop refused it
    CLIENT_ERROR = 4  # a text says what the client raised; client -1 means that the whole rank cannot continue
    PART_STATUS = 5  # a JSON text says whether a rank's part of this checkpoint is durable
    SIGNAL = 6  # a client rank has received this signal
    MARKER = 7  # each rank writes its part of this checkpoint
    HOST = 8  # the rank hosts this client from now on; messages with the tag SETUP describe it
    STOP = 9  # the run ends
    GOODBYE = 10  # the last frame of a rank, with the number of messages that it dropped


WITH_TEXT = frozenset([Kind.REFUSED, Kind.CLIENT_ERROR, Kind.PART_STATUS])


class Header(ctypes.Structure):
    """The header of every frame, in its buffer.

    Every kind of frame has the first three fields. Those from `round` on belong to messages and updates, whose
    attributes are described in `algorithms.base`.
    """

    _fields_ = (
        ("subject", ctypes.c_int32),  # the client, or what the kind says: a checkpoint, a signal, a count
        ("length", ctypes.c_uint32),  # the number of vectors, or of bytes of text, that follow
        ("kind", ctypes.c_uint8),
        ("count", ctypes.c_uint8),  # the length of the part of `numbers` that is used
        ("round", ctypes.c_uint32),
        ("version", ctypes.c_int64),
        ("work", ctypes.c_int64),
        ("local_steps", ctypes.c_int64),
        ("delay", ctypes.c_double),  # s: how long the client holds its update back
        ("norm", ctypes.c_double),
        ("compute", ctypes.c_double),
        ("busy", ctypes.c_double),
        ("accuracy", ctypes.c_double),
        ("numbers", ctypes.c_double * MAX_NUMBERS),
    )


class Frame:
    """The buffer of a frame, (size,) uint8, with views of its header and of its vectors, (d,) each."""

    __slots__ = ("buffer", "header", "vectors")

    def __init__(self, size: int, d: int, dtype: np.dtype) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.header = Header.from_buffer(self.buffer.data)
        self.vectors = tuple(self.buffer[HEADER_BYTES:].view(dtype).reshape(-1, d))

    def write(self, kind: Kind, subject: int, length: int = 0) -> None:
        """Writes the fields that every kind of frame has."""
        self.header.kind, self.header.subject, self.header.length = kind, subject, length

    def write_message(self, i: int, message: Message, delay: float) -> None:
        """Writes a message to client i, with its vectors if they travel in the frame."""
        self.header.work, self.header.delay = message.work, delay
        self._write_contact(Kind.MESSAGE, i, len(message.vectors), message, message.vectors)

    def write_update(self, i: int, update: Update, vectors: Sequence[np.ndarray], text: int = 0) -> None:
        """Writes an update of client i, with the vectors that travel in the frame.

        text: Bytes of the reason why it was refused, which follows.
        """
        header = self.header
        kind, length = (Kind.REFUSED, text) if update.refused else (Kind.UPDATE, len(update.vectors))
        header.local_steps, header.norm, header.accuracy = int(update.local_steps), update.norm, update.accuracy
        header.compute, header.busy = update.compute, update.busy
        self._write_contact(kind, i, length, update, vectors)

    def _write_contact(
        self, kind: Kind, i: int, length: int, sent: Message | Update, vectors: Sequence[np.ndarray]
    ) -> None:  # fmt: skip
        """Writes what messages and updates both have."""
        header, count = self.header, len(sent.numbers)
        header.kind, header.subject, header.length = kind, i, length
        header.round, header.version, header.count = sent.round, sent.version, count
        header.numbers[:count] = sent.numbers
        for inside, v in zip(self.vectors, vectors):
            inside[...] = v

    def read_message(self, deliver: Callable[[np.ndarray], Vector]) -> Message:
        """Returns the message, with the vectors that travel in the frame, copied and passed through `deliver`."""
        header = self.header
        return Message(
            vectors=tuple([deliver(v.copy()) for v in self.vectors[: header.length]]),
            numbers=tuple(header.numbers[: header.count]), work=header.work, version=header.version, round=header.round,
        )  # fmt: skip

    def read_update(self, refused: str = "") -> Update:
        """Returns the update, with copies of the vectors that travel in the frame; refused: the text that followed."""
        header = self.header
        count = 0 if refused else header.length
        return Update(
            vectors=tuple([v.copy() for v in self.vectors[:count]]), local_steps=header.local_steps,
            numbers=tuple(header.numbers[: header.count]), version=header.version, round=header.round, norm=header.norm,
            compute=header.compute, busy=header.busy, accuracy=header.accuracy, refused=refused,
        )  # fmt: skip


class FrameFormat:
    """The frames of a run with vectors (d,) of `dtype`, at most `vectors` in a message."""

    def __init__(self, d: int, dtype: np.dtype, vectors: int, sharded: bool = False) -> None:
        """sharded: whether several ranks have a part each of a vector, which then never travels in the frame."""
        self.d, self.dtype, self.vectors = d, dtype, vectors
        self.vector_bytes = d * dtype.itemsize
        self.inline = vectors * self.vector_bytes <= INLINE_BYTES and not sharded

    def frame(self) -> Frame:
        """A frame with room for as many vectors as travel in it."""
        return Frame(HEADER_BYTES + self.inline * self.vectors * self.vector_bytes, self.d, self.dtype)
