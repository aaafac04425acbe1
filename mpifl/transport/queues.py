"""Frames and messages in transit over MPI: persistent sends and receives of a rank, and other sends in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mpifl.transport.backoff import Backoff
from mpifl.transport.frames import Frame, FrameFormat
from mpifl.transport.mpi import FRAME, MPI, wait

KEPT_FRAMES = 8  # of one rank: buffers that are kept for its next frames


class Outbox:
    """Frames to one rank: persistent sends, whose buffers are used again once they are complete.

    Methods raise MPI.Exception where the rank has died.
    """

    def __init__(self, comm: MPI.Comm, rank: int, format: FrameFormat) -> None:
        self._comm, self._rank, self._format = comm, rank, format
        self._sending: deque[tuple[MPI.Prequest, OutgoingFrame]] = deque()  # in order

    def take(self) -> OutgoingFrame:
        """A frame to write, which `start` is to send."""
        sending = self._sending
        if not sending or not sending[0][0].Test():
            return OutgoingFrame(self._format.frame(), {})
        _, outgoing = sending.popleft()
        while len(sending) >= KEPT_FRAMES and sending[0][0].Test():
            sending.popleft()[1].free()
        return outgoing

    def start(self, outgoing: OutgoingFrame, count: int) -> None:
        """Starts to send a frame with `count` vectors in it."""
        request = outgoing.sends.get(count) or self._new_send(outgoing, count)
        request.Start()
        self._sending.append((request, outgoing))

    def _new_send(self, outgoing: OutgoingFrame, count: int) -> MPI.Prequest:
        used = outgoing.frame.buffer[: self._format.sizes[count]]
        request = outgoing.sends[count] = self._comm.Send_init((used, MPI.BYTE), self._rank, FRAME)
        return request

    def drain(self) -> None:
        """Waits for all sends, and frees them."""
        wait(*(request for request, _ in self._sending))
        while self._sending:
            self._sending.popleft()[1].free()


@dataclass(slots=True)
class OutgoingFrame:
    """A frame and its persistent sends, by the number of vectors in it."""

    frame: Frame
    sends: dict[int, MPI.Prequest]

    def free(self) -> None:
        for request in self.sends.values():
            request.Free()


class Inbox:
    """Frames from one rank: persistent receives into several buffers, of which one is in progress at a time."""

    def __init__(self, comm: MPI.Comm, rank: int, format: FrameFormat) -> None:
        self._comm, self._rank, self._format = comm, rank, format
        self.frames: list[IncomingFrame] = []
        self.free: list[IncomingFrame] = []  # those that nobody reads any more
        self.current: IncomingFrame | None = None

    def start(self) -> MPI.Prequest:
        """Starts the receive of the next frame, `current`; raises MPI.Exception where the rank has died."""
        self.current = self.free.pop() if self.free else self._new()
        receive = self.current.receive
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


class LargeSends:
    """Sends straight from the caller's buffers: kept until they are sent, and for ever where the receiver has died.

    Their requests are in the list of all requests that the server tests at once. A test of sends alone would often find
    none complete, and Open MPI then yields the core where ranks outnumber cores.
    """

    def __init__(self, requests: list[MPI.Request], on_error: Callable[[MPI.Exception], None]) -> None:
        """Appends the sends' requests to `requests`, all that the server tests.

        on_error: handles the error of a call that fails because a rank has died; raises it where none has
        """
        self._requests, self._on_error = requests, on_error
        self._sending: dict[int, tuple[object, int]] = {}  # by position of the request: buffer, to which rank
        self._free: list[int] = []  # positions of earlier sends
        self._quarantined: list[object] = []  # what MPI may still read for a dead rank

    def __iter__(self) -> Iterator[int]:
        """The positions of the requests in progress."""
        return iter(self._sending)

    def add(self, request: MPI.Request, buffer: object, rank: int) -> None:
        """Registers a send that was started; not to be called between a test of the requests and `sent`."""
        if self._free:
            k = self._free.pop()
            self._requests[k] = request
        else:
            k = len(self._requests)
            self._requests.append(request)
        self._sending[k] = buffer, rank

    def sent(self, k: int) -> None:
        """Frees the buffer of the request at this position, which is complete."""
        if self._sending.pop(k, None):  # else its receiver has just died
            self._free.append(k)

    def forget_ranks(self, dead: set[int]) -> None:
        """Stops waiting for sends to ranks that have died."""
        for k in [k for k, (_, rank) in self._sending.items() if rank in dead]:
            self._quarantined.append(self._sending.pop(k)[0])
            self._requests[k] = MPI.REQUEST_NULL
            self._free.append(k)

    def drain(self) -> None:
        """Waits for all sends."""
        backoff = Backoff()
        while self._sending:
            try:
                for k in [k for k in self._sending if self._requests[k].Test()]:
                    self.sent(k)
            except MPI.Exception as error:
                self._on_error(error)
            backoff.sleep()
