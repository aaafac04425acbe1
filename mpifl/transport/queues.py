"""Messages in transit over MPI: frames, by persistent sends and receives of a rank, and large vectors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.objective import Vector
from mpifl.transport.frames import Frame, FrameFormat
from mpifl.transport.mpi import FRAME, MPI, eager_limit, wait

KEPT_FRAMES = 8  # of one rank: buffers that are kept for its next frames
COPIED_BYTES = eager_limit() - 96  # up to which MPI copies a frame that is sent on one host; 96: MPI's header
RING_BYTES = 2 << 20  # of frames that are used in turn, over all ranks
MAX_IN_RING = 64
RELEASE_INTERVAL = 0.01  # s between two tests of all sends of vectors


def ring_length(size: int, ranks: int, copied: int = COPIED_BYTES) -> int:
    """How many frames of `size` bytes to one rank are used in turn.

    ranks: those with clients; copied: the size up to which MPI copies a frame when it sends it on one host.

    On one host the receiver reads long frames from the memory of the sender. Writing to one again while it is in the
    caches of the receiver's core is several times slower, because each line has to be invalidated there.
    """
    return 1 if size <= copied else min(MAX_IN_RING, -(-RING_BYTES // (size * ranks)))


class Outbox:
    """Frames to one rank: persistent sends, whose buffers are used again once they are complete.

    Methods raise MPI.Exception where the rank has died.
    """

    def __init__(self, comm: MPI.Comm, rank: int, format: FrameFormat) -> None:
        self._comm, self._rank, self._format = comm, rank, format
        self._ring = ring_length(format.sizes[-1], comm.size - 1)
        self._kept = max(KEPT_FRAMES, self._ring)
        self._sending: deque[OutgoingFrame] = deque()  # in order
        self._vectors: tuple[Vector, ...] | None = None  # of the last frame, if it is a message

    def send_message(self, i: int, message: Message, delay: float) -> None:
        """Starts to send a message to client i, with the vectors that travel in the frame.

        If the send of the last frame is complete, that is written again where frames are not used in turn. A rank is
        often sent the same model twice in a row: then only the header is written, also where they are.
        """
        vectors, last = message.vectors if self._format.inline else (), self._vectors
        again = vectors is last
        if again or (last and self._ring == 1 and len(vectors) == len(last)):
            sent = self._sending[-1]
            if sent.send.Test():
                sent.frame.write_message(i, message, delay, () if again else vectors)
                sent.send.Start()
                self._vectors = vectors
                return
        outgoing = self.take()
        outgoing.frame.write_message(i, message, delay, vectors)
        self.start(outgoing, len(vectors))
        self._vectors = vectors

    def take(self) -> OutgoingFrame:
        """A frame to write, which `start` is to send."""
        sending, self._vectors = self._sending, None
        if len(sending) < self._ring or not sending[0].send.Test():
            return OutgoingFrame(self._format.frame())
        outgoing = sending.popleft()
        while len(sending) >= self._kept and sending[0].send.Test():
            sending.popleft().free()
        return outgoing

    def start(self, outgoing: OutgoingFrame, count: int) -> None:
        """Starts to send a frame with `count` vectors in it."""
        outgoing.send = send = outgoing.sends.get(count) or self._new_send(outgoing, count)
        send.Start()
        self._sending.append(outgoing)

    def _new_send(self, outgoing: OutgoingFrame, count: int) -> MPI.Prequest:
        used = outgoing.frame.buffer[: self._format.sizes[count]]
        request = outgoing.sends[count] = self._comm.Send_init((used, MPI.BYTE), self._rank, FRAME)
        return request

    def drain(self) -> None:
        """Waits for all sends, and frees them."""
        wait(*(outgoing.send for outgoing in self._sending))
        while self._sending:
            self._sending.popleft().free()


@dataclass(slots=True, eq=False)
class OutgoingFrame:
    """A frame and its persistent sends."""

    frame: Frame
    sends: dict[int, MPI.Prequest] = field(default_factory=dict)  # by the number of vectors in it
    send: Any = None  # the one started last

    def free(self) -> None:
        for request in self.sends.values():
            request.Free()


class Inbox:
    """Frames from one rank: persistent receives into several buffers, of which one is in progress at a time.

    `start` raises MPI.Exception where the rank has died.
    """

    def __init__(self, comm: MPI.Comm, rank: int, format: FrameFormat) -> None:
        self._comm, self._rank, self._format = comm, rank, format
        self.frames: list[IncomingFrame] = []
        self.free: list[IncomingFrame] = []  # those that nobody reads any more
        self.current: IncomingFrame  # whose receive was started last

    def start(self) -> MPI.Prequest:
        """Starts the receive of the next frame, `current`."""
        self.current = incoming = self.free.pop() if self.free else self._new()
        receive = incoming.receive
        receive.Start()
        return receive

    def _new(self) -> IncomingFrame:
        frame = self._format.frame()
        incoming = IncomingFrame(frame, self._comm.Recv_init((frame.buffer, MPI.BYTE), self._rank, FRAME))
        self.frames.append(incoming)
        return incoming

    def has_room(self) -> bool:
        """Whether the next frame can be received while the current one waits to be read."""
        return bool(self.free) or len(self.frames) <= KEPT_FRAMES

    def close(self) -> None:
        """Frees the receives, of which none is in progress."""
        for incoming in self.frames:
            incoming.receive.Free()


@dataclass(slots=True)
class IncomingFrame:
    """A frame, and the receive that fills it."""

    frame: Frame
    receive: MPI.Prequest


class VectorSends:
    """Sends of vectors straight from where they are; each vector is kept until its send is seen to be complete.

    A rank receives vectors in the order in which they are sent to it. So before each send only the oldest one to that
    rank is tested: usually the rank has received it by then. Where ranks outnumber cores, a test that finds nothing
    makes Open MPI yield the core, so `release`, which tests the sends to all ranks, is called every RELEASE_INTERVAL.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._sending: list[deque[tuple[MPI.Request, np.ndarray]]] = [deque() for _ in range(comm.size)]  # by rank
        self.next_release = 0.0  # perf_counter when `release` is due

    def start(self, vectors: Sequence[np.ndarray], rank: int, tag: int) -> None:
        """Starts to send vectors to a rank, and calls `release` if it is due.

        Raises MPI.Exception where a rank has died, this one or another.
        """
        sending = self._sending[rank]
        for v in vectors:
            if sending and sending[0][0].Test():
                sending.popleft()
            v = np.ascontiguousarray(v)
            sending.append((self._comm.Isend(v, rank, tag), v))
        if time.perf_counter() >= self.next_release:
            self.release()

    def release(self) -> None:
        """Lets go of the vectors sent to each rank, up to the first whose send is not complete.

        Raises MPI.Exception where one of the ranks has died.
        """
        self.next_release = time.perf_counter() + RELEASE_INTERVAL
        while queues := [sending for sending in self._sending if sending]:
            done = MPI.Request.Testsome([sending[0][0] for sending in queues])
            if done is None:  # all are inactive: an earlier call has completed them, but raised
                done = list(range(len(queues)))
            if not done:
                return
            for k in done:
                queues[k].popleft()

    def abandon(self, rank: int) -> list[np.ndarray]:
        """Forgets the sends to a rank; returns their vectors, which MPI may still read."""
        abandoned = [v for _, v in self._sending[rank]]
        self._sending[rank].clear()
        return abandoned

    def __len__(self) -> int:
        """The number of sends that are not seen to be complete."""
        return sum(map(len, self._sending))


@dataclass(slots=True, eq=False)
class LargeReceive:
    """The vectors of an update, on their way into a slot of the pool."""

    client: int
    rank: int
    slot: int
    update: Update
    missing: int  # vectors that are still to come


class Requests:
    """The server's receives, tested in one call: one of each rank, for frames, then those of large vectors."""

    def __init__(self, ranks: int) -> None:
        # A list and no class derived from it, whose items mpi4py would read in twice the time.
        self.all: list[MPI.Request] = [MPI.REQUEST_NULL] * ranks
        self._ranks = ranks
        self.receives: list[LargeReceive] = []  # of the requests from position `ranks` on

    def add(self, request: MPI.Request, receive: LargeReceive) -> None:
        """Adds a request that was started."""
        self.all.append(request)
        self.receives.append(receive)

    def drop(self, k: int) -> LargeReceive:
        """Removes the request at position k, at least `ranks`; the last one takes its place. Returns its receive."""
        request, receive = self.all.pop(), self.receives.pop()
        if k == len(self.all):
            return receive
        dropped, self.receives[k - self._ranks] = self.receives[k - self._ranks], receive
        self.all[k] = request
        return dropped

    def drop_where(self, which: Callable[[LargeReceive], bool]) -> None:
        """Removes requests without waiting for them."""
        for k in reversed([k for k, receive in enumerate(self.receives, self._ranks) if which(receive)]):
            self.drop(k)
