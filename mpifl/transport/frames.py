"""What crosses the wire: frames of 16 float64, with small vectors in the frame and large ones behind it, as they are.

Integers up to 2**53 are exact in a frame's head. A frame is one buffer: the head, then room for the vectors where all
that a message may hold fits into `INLINE` bytes; one message is then all that an update costs.
"""

from __future__ import annotations

import numpy as np

from mpifl.algorithms.base import Message, Update

HEAD = 16  # numbers in a frame's head; a message's or an update's own, at most 6, come last
INLINE = 1 << 16  # bytes of vectors up to which they travel in the frame
WORK, UPDATE, STOP, BYE = range(1, 5)
MARK, SAVED = 5, 6  # a checkpoint's number; a rank's part of it: number, bytes, checksum, length of an error's text
REFUSED, RAISED = 7, 8  # as UPDATE, with the length of the text that follows in place of vectors; client, length
TEXTS = {REFUSED: 2, RAISED: 2, SAVED: 4}  # where in their heads the length of the text that follows is
SIGNAL, HOST = 9, 10  # a signal's number, heard by a client rank; more clients for a rank, in the messages that follow


class Frames:
    """How the frames of a run with (d,) vectors of `dtype`, at most `vectors` a message, look."""

    def __init__(self, d: int, dtype: np.dtype, vectors: int) -> None:
        self.d, self.dtype, self.vectors = d, dtype, vectors
        self.inline = vectors * d * dtype.itemsize <= INLINE
        self.size = 8 * HEAD + (vectors * d * dtype.itemsize if self.inline else 0)

    def empty(self) -> np.ndarray:
        """A frame to receive into, (size,) uint8."""
        return np.zeros(self.size, np.uint8)

    def head(self, frame: np.ndarray) -> list[float]:
        """The numbers in a frame's head."""
        return frame[: 8 * HEAD].view(np.float64).tolist()

    def body(self, frame: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
        """Copies of the `count` vectors in a frame."""
        end = 8 * HEAD + count * self.d * self.dtype.itemsize
        return tuple(frame[8 * HEAD : end].view(self.dtype).reshape(count, self.d).copy())

    def pack(self, head: tuple[float, ...], vectors: tuple[np.ndarray, ...] = ()) -> list[np.ndarray]:
        """The buffers to send, in order: the frame, then the vectors that do not fit into it."""
        inside = vectors if self.inline else ()
        frame = np.empty(8 * HEAD + len(inside) * self.d * self.dtype.itemsize, np.uint8)
        frame[: 8 * HEAD].view(np.float64)[:] = *head, *(HEAD - len(head)) * (0.0,)
        if inside:
            frame[8 * HEAD :].view(self.dtype).reshape(len(inside), self.d)[:] = inside
        return [frame, *(() if self.inline else map(np.ascontiguousarray, vectors))]


def message_head(i: int, m: Message, delay: float) -> tuple[float, ...]:
    """kind, client, vectors, numbers, version, round, delay (s), work, then the numbers"""
    return WORK, i, len(m.vectors), len(m.numbers), m.version, m.round, delay, m.work, *m.numbers


def to_message(head: list[float], vectors: tuple[np.ndarray, ...]) -> tuple[int, Message, float]:
    """(client, message, delay in s)"""
    _, i, _, count, version, round, delay, work, *numbers = head
    numbers = numbers[: int(count)]
    return int(i), Message(vectors, tuple(numbers), int(work), int(version), int(round)), delay


def update_head(i: int, u: Update) -> tuple[float, ...]:
    """kind, client, vectors, numbers, version, local steps, norm, compute (s), busy (s), accuracy, then the numbers"""
    head = UPDATE, i, len(u.vectors), len(u.numbers), u.version, u.local_steps, u.norm, u.compute, u.busy, u.accuracy
    return *head, *u.numbers


def to_update(head: list[float], vectors: tuple[np.ndarray, ...], round: int) -> Update:
    """The update whose head and vectors came, in answer to the message of that round."""
    _, _, _, count, version, steps, norm, compute, busy, accuracy, *numbers = head
    numbers = numbers[: int(count)]
    return Update(
        vectors, int(steps), tuple(numbers), int(version), round, norm, compute, busy=busy, accuracy=accuracy
    )  # fmt: skip
