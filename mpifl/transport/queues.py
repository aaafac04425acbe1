"""What is in transit over MPI: frames and large vectors to one rank, and large vectors from any rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mpifl.algorithms.base import Update
from mpifl.transport.backoff import wait
from mpifl.transport.frames import HEADER_BYTES, Frame, FrameFormat
from mpifl.transport.mpi import DATA, FRAME, MPI, QUARANTINE

KEPT_FRAMES = 8  # buffers that are kept for the next frames to a rank
POOL_BYTES = 256 << 20  # maximum of the buffers that receive large vectors
POOL_BUFFERS = 32


class Outbox:
    """Sends to one rank, in order. A buffer or a vector is kept until its send is seen to be complete.

    Methods raise MPI.Exception where the rank has died.
    """

    def __init__(self, comm: MPI.Comm, rank: int, format: FrameFormat) -> None:
        self._comm, self._rank, self._format = comm, rank, format
        self._sending: deque[tuple[MPI.Request, Frame | np.ndarray]] = deque()
        self._free: list[Frame] = []

    def take(self) -> Frame:
        """A frame to write, which `send` is to send."""
        self.release()
        return self._free.pop() if self._free else self._format.frame()

    def send(self, frame: Frame, count: int = 0) -> None:
        """Starts to send a frame with `count` vectors in it."""
        size = HEADER_BYTES + count * self._format.vector_bytes
        self._sending.append((self._comm.Isend(frame.buffer[:size], self._rank, FRAME), frame))

    def send_vectors(self, vectors: Sequence[np.ndarray], tag: int) -> None:
        """Starts to send vectors from where they are; nobody changes them any more."""
        for v in map(np.ascontiguousarray, vectors):
            self._sending.append((self._comm.Isend(v, self._rank, tag), v))

    def release(self) -> None:
        """Releases what the rank has received: it receives in order, so the oldest send is tested first."""
        while self._sending and self._sending[0][0].Test():
            _, sent = self._sending.popleft()
            if isinstance(sent, Frame) and len(self._free) < KEPT_FRAMES:
                self._free.append(sent)

    def abandon(self) -> None:
        """Forgets what is being sent to a rank that has died; MPI may still read it."""
        QUARANTINE.extend(self._sending)
        self._sending.clear()

    def drain(self) -> None:
        """Waits for all sends."""
        wait(*(request for request, _ in self._sending))
        self._sending.clear()


@dataclass(eq=False)
class LargeReceive:
    """An update whose vectors are being received into buffers of the pool."""

    client: int
    rank: int
    update: Update
    buffers: Sequence[np.ndarray]
    requests: list[MPI.Request]


class ReceivePool:
    """Receives of vectors too large for a frame, into a bounded number of buffers that are used again.

    Vectors wait at their sender until a buffer is free, so that the server's memory does not grow with the clients.
    """

    def __init__(
        self, comm: MPI.Comm, format: FrameFormat, clients: int, parts: Sequence[slice] = (slice(None),)
    ) -> None:  # fmt: skip
        """parts: The slices of a vector; each is sent by a rank of the group, whose first one announces the update."""
        self._comm, self._format, self._parts = comm, format, parts
        size = format.vectors * format.vector_bytes
        count = 0 if format.inline else max(2, min(POOL_BUFFERS, clients, POOL_BYTES // size))
        self.free = [self._new_buffers() for _ in range(count)]
        self.active: list[LargeReceive] = []  # receives in progress, in the order of their starts

    def _new_buffers(self) -> Sequence[np.ndarray]:
        """Room for the vectors of an update, (d,) each."""
        return tuple(np.empty((self._format.vectors, self._format.d), self._format.dtype))

    def start(self, i: int, rank: int, update: Update, count: int) -> None:
        """Starts to receive the `count` vectors of client i's update. There must be a free buffer.

        Raises MPI.Exception where a rank has died.
        """
        buffers = self.free.pop()
        receive = LargeReceive(i, rank, update._replace(vectors=tuple(buffers[:count])), buffers, [])
        self.active.append(receive)
        try:
            for v in receive.update.vectors:
                for k, part in enumerate(self._parts):
                    receive.requests.append(self._comm.Irecv(v[part], rank + k, DATA + i))
        except MPI.Exception:
            self.abandon(lambda other: other is receive)
            raise

    def take_complete(self) -> list[LargeReceive]:
        """The receives that have completed; their buffers belong to the caller, until it returns them to `free`.

        Raises MPI.Exception where a rank has died.
        """
        complete = [receive for receive in self.active if MPI.Request.Testall(receive.requests)]
        for receive in complete:
            self.active.remove(receive)
        return complete

    def abandon(self, which: Callable[[LargeReceive], bool]) -> None:
        """Stops waiting for the updates that `which` selects; MPI may still write to their buffers."""
        abandoned = [receive for receive in self.active if which(receive)]
        self.active = [receive for receive in self.active if receive not in abandoned]
        QUARANTINE.extend(abandoned)
        self.free += [self._new_buffers() for _ in abandoned]
