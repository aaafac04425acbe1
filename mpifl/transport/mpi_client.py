"""The clients' end of the MPI transport, on each of the ranks 1 .. R-1."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.errors import ConfigError, RunFailed, format_client_error, host_name
from mpifl.memory import HOST, IncomingVectors, OutgoingVectors, VectorMemory
from mpifl.transport.backoff import Backoff
from mpifl.transport.frames import FrameFormat, Kind
from mpifl.transport.mpi import DATA, END, FRAME, MPI, TEXT, wait
from mpifl.transport.queues import Outbox

MAX_END_TESTS = 1000  # tests for the end of the run in a row, at most: these take about half a millisecond
POLL_INTERVAL = 0.01  # s between two polls for the end of the run, and two reports, while messages wait
HELD_INTERVAL = 0.05  # s that a rank sleeps at a time while all its updates are held back


class Received(NamedTuple):
    """A frame whose vectors may still be in flight."""

    kind: int = 0  # 0: no frame
    subject: int = 0
    message: Message | None = None  # without those vectors
    delay: float = 0.0  # s
    incoming: IncomingVectors | None = None  # the vectors in flight
    requests: Sequence[MPI.Request] = ()  # that fill their buffers


NOTHING = Received()


class Outgoing(NamedTuple):
    """An update that is not sent yet."""

    client: int
    update: Update
    vectors: OutgoingVectors
    text: bytes = b""  # why the update was refused


class MPIClientTransport:
    """The clients' end (`base.ClientTransport`) of n clients on R-1 ranks; vectors (d,) live in `memory`."""

    def __init__(
        self, comm: MPI.Comm, clients: int, d: int, dtype: np.dtype, vectors: int, memory: VectorMemory = HOST
    ) -> None:
        """vectors: maximum in a message."""
        self._comm, self._memory, self._on_host = comm, memory, memory.on_host
        self._format = FrameFormat(d, dtype, vectors)
        self._hosted = len(range(comm.rank - 1, clients, comm.size - 1))  # clients on this rank
        self._frame = self._format.frame()
        self._frame_receive = comm.Recv_init((self._frame.buffer, MPI.BYTE), 0, FRAME)
        # Posted from the start: a probe for the end would search all messages that wait, again and again.
        self._end_receive = comm.Irecv(np.empty(0), 0, END)
        self._receiving = False  # whether the frame's receive is in progress
        self._early = NOTHING  # a frame that arrived while clients computed
        self._arrival_time: dict[int, float] = {}  # perf_counter, of each client's last message
        self._held: list[tuple[float, int, Outgoing]] = []  # (perf_counter until which it is held back, client, update)
        self._due: deque[Outgoing] = deque()  # their vectors may still be on their way out of the memory
        self._outbox = Outbox(comm, 0, self._format)
        self._sending: deque[tuple[list[MPI.Request], Outgoing]] = deque()  # large vectors and texts
        self._ending = self._stopped = False  # whether the run has ended, and whether the last frame has arrived
        self._dropped = 0  # messages that came before the last frame, but were not processed
        self._next_poll = 0.0  # perf_counter
        self.code = 0
        self.signals: list[int] = []  # that this rank has received; each is reported to the server, once
        self._signals_reported = 0
        self.on_marker: Callable[[int], None] = lambda number: None  # called between two messages
        self.on_host: Callable[[int], None] = lambda i: None  # likewise; receives what describes the client
        self.on_poll: Callable[[], None] = lambda: None  # called now and then
        self.on_stop: Callable[[], None] = lambda: None  # called before the last frame to the server

    # -- messages ------------------------------------------------------------------------------------------------------
    def messages(self, most: int) -> Iterator[list[tuple[int, Message, float]]]:
        batch: list[tuple[int, Message, float]] = []
        while True:
            kind, subject, message, delay, incoming, requests = self._next(wait=not batch)
            if message:
                if incoming:
                    wait(*requests)
                    incoming.load()
                if self._ending:
                    self._dropped += 1
                    continue
                if incoming:
                    message = message.with_vectors(incoming.get())
                batch.append((subject, message, delay))
                if len(batch) < most:
                    continue
            elif kind == Kind.STOP:
                self.code, self._stopped = subject, True
            if batch:
                yield batch
                batch = []
                if (now := time.perf_counter()) >= self._next_poll:
                    self._next_poll = now + POLL_INTERVAL
                    self._report()
                    self._ending = self._has_ended()  # the messages that are left are then dropped
            if message:  # else a frame of another kind
                continue
            if self._stopped:
                break
            if kind == Kind.MARKER:
                self.on_marker(subject)
            elif kind == Kind.HOST:
                self._hosted += 1
                self.on_host(subject)
        self.on_stop()
        self._close()

    def _has_ended(self) -> bool:
        """Whether the server has ended the run, also while messages from before wait.

        Each test of MPICH takes in one of the messages that have arrived, and those of all clients may come first.
        """
        before = self._hosted * (1 + self._format.vectors)
        return any(self._end_receive.Test() for _ in range(min(before + 1, MAX_END_TESTS)))

    def _next(self, wait: bool) -> Received:
        """The next frame. With `wait`, waits for one and sends held updates as they fall due.

        Without, `NOTHING` where none has arrived.
        """
        if (early := self._early) is not NOTHING:
            self._early = NOTHING
            return early
        if not self._receiving:
            self._frame_receive.Start()
            self._receiving = True
        if wait and (self._held or self._due):
            self._flush(time.perf_counter())
        if not self._frame_receive.Test():
            if not wait:
                return NOTHING
            self._await_frame()
        self._receiving = False
        frame, format = self._frame, self._format
        kind, i, count, delay = frame.header.kind, frame.header.subject, frame.header.length, frame.header.delay
        if kind != Kind.MESSAGE:
            return Received(kind, i)
        message = frame.read_message(self._memory.from_host)
        if delay > 0:
            self._arrival_time[i] = time.perf_counter()
        if format.inline:
            return Received(kind, i, message, delay)
        incoming = self._memory.incoming(count, format.d, format.dtype)
        requests = [self._comm.Irecv(b, 0, DATA + i) for b in incoming.buffers]
        return Received(kind, i, message, delay, incoming, requests)

    def _await_frame(self) -> None:
        """Waits until the next frame is received. Sends held updates as they fall due.

        While the updates of all its clients are held back, no message to them can arrive: it polls less often.
        """
        backoff = Backoff()
        while not self._frame_receive.Test():
            if self._held or self._due:
                self._flush(time.perf_counter())
            self._test_sends()
            self._report()
            if not self._held:
                backoff.pause()
            elif len(self._held) == self._hosted:
                time.sleep(max(0.0, min(self._held[0][0] - time.perf_counter(), HELD_INTERVAL)))
            else:
                backoff.pause(self._held[0][0] - time.perf_counter())

    def poll(self) -> None:
        """Sends what is due and ready, and receives one frame, which then waits; called while clients compute."""
        self._report()
        self._flush(time.perf_counter())
        self._test_sends()
        if self._stopped:  # a receive that is started now would never complete
            return
        self._early = self._next(wait=False)
        if self._early.incoming and MPI.Request.Testall(self._early.requests):
            self._early.incoming.load()

    # -- updates -------------------------------------------------------------------------------------------------------
    def send_update(self, i: int, update: Update, delay: float) -> None:
        format, text = self._format, b""
        if update.refused:
            vectors, text = OutgoingVectors(()), update.refused.encode()
        elif format.inline:
            inside = update.vectors if self._on_host else tuple(map(self._memory.to_host, update.vectors))
            if delay <= 0 and not self._due:
                self._send_in_frame(i, update, inside)
                return
            vectors = OutgoingVectors(inside)
        else:
            vectors = self._memory.outgoing(update.vectors, format.d, format.dtype)
        outgoing = Outgoing(i, update, vectors, text)
        if delay > 0:
            heappush(self._held, (self._arrival_time[i] + delay, i, outgoing))
        elif self._due or not vectors.ready():
            self._due.append(outgoing)
        else:
            self._send(outgoing)

    def _flush(self, until: float) -> None:
        """Sends updates held back until `until` (perf_counter) or earlier, if ready."""
        while self._held and self._held[0][0] <= until:
            self._due.append(heappop(self._held)[2])
        while self._due and self._due[0].vectors.ready():
            self._send(self._due.popleft())

    def _send(self, outgoing: Outgoing) -> None:
        """Starts to send an update whose vectors are ready."""
        i, update, vectors, text = outgoing
        self._send_in_frame(i, update, vectors.buffers if self._format.inline else (), len(text))
        requests = [] if self._format.inline else [self._comm.Isend(b, 0, DATA + i) for b in vectors.buffers]
        if text:
            requests.append(self._comm.Isend(text, 0, TEXT))
        if requests:
            self._test_sends()
            self._sending.append((requests, outgoing))
        else:
            vectors.release()

    def _send_in_frame(self, i: int, update: Update, vectors: Sequence[np.ndarray], text: int = 0) -> None:
        """Starts to send an update's frame, with the vectors that travel in it; text: bytes of what follows."""
        frame = self._outbox.take()
        frame.write_update(i, update, vectors, text)
        self._outbox.send(frame, len(vectors))

    def _send_control(self, kind: Kind, subject: int, length: int = 0) -> None:
        """Starts to send a frame that is no update; length: bytes of the text that follows."""
        frame = self._outbox.take()
        frame.write(kind, subject, length)
        self._outbox.send(frame)

    def _test_sends(self) -> None:
        """Tests up to two sends, in turn, since the server receives them in any order.

        Called before another one is added, at each poll, and before each pause.
        """
        sending = self._sending
        for _ in range(min(2, len(sending))):
            if MPI.Request.Testall(sending[0][0]):
                sending.popleft()[1].vectors.release()
            else:
                sending.rotate(-1)

    def _close(self) -> None:
        """Sends all that is held back, and the last frame."""
        backoff = Backoff()
        while self._held or self._due:
            self._flush(inf)
            backoff.pause()
        self._frame_receive.Free()
        wait(self._end_receive)
        self._send_control(Kind.GOODBYE, self._dropped)
        wait(*(r for requests, _ in self._sending for r in requests))
        self._outbox.drain()

    def resend_update(self, i: int, update: Update, delay: float) -> None:
        """Sends client i's update, which was in flight when the run was saved, once `delay` seconds have passed."""
        self._arrival_time[i] = time.perf_counter()
        self.send_update(i, update, delay)

    def remaining_delays(self) -> dict[int, float]:
        """For how long updates are still held back (s), by client."""
        now = time.perf_counter()
        return {i: max(0.0, due - now) for due, i, _ in self._held}

    # -- reports -------------------------------------------------------------------------------------------------------
    def _send_report(self, kind: Kind, subject: int, text: str = "") -> None:
        """Sends the server a frame and the text that follows it."""
        raw = text.encode()
        self._send_control(kind, subject, len(raw))
        if raw:
            wait(self._comm.Isend(raw, 0, TEXT))

    def _report(self) -> None:
        while self._signals_reported < len(self.signals):
            self._signals_reported += 1
            self._send_report(Kind.SIGNAL, self.signals[self._signals_reported - 1])
        self.on_poll()

    def send_part_status(self, number: int, bytes: int, crc: int, error: str) -> None:
        """Reports this rank's part of a checkpoint: durable, or failed."""
        self._send_report(Kind.PART_STATUS, number, json.dumps([bytes, crc, error]))

    def send_client_error(self, i: int, text: str) -> None:
        self._send_report(Kind.CLIENT_ERROR, i, text)

    def fail(self, error: BaseException) -> None:
        """Reports that this rank cannot continue, and waits for the end of the run."""
        rank = self._comm.rank
        known = isinstance(error, ConfigError | RunFailed)  # else a traceback tells where it was raised
        text = f"rank {rank} on {host_name()}: {error}" if known else format_client_error(rank, error)
        self.send_client_error(-1, text)
        for _ in self.messages(1):  # received and dropped
            pass
