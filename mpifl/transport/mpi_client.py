"""The clients' end of the MPI transport, on each rank with clients: 1 .. R-1, or the first one of each group."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.errors import ConfigError, RunFailed, format_client_error, host_name
from mpifl.transport.backoff import LONGEST_IDLE, Backoff, wait
from mpifl.transport.client_end import Delivery, LocalClients
from mpifl.transport.frames import FrameFormat, Kind
from mpifl.transport.mpi import DATA, END, FRAME, MPI, TEXT
from mpifl.transport.queues import Outbox
from mpifl.vector_memory import IncomingVectors, OutgoingVectors

if TYPE_CHECKING:
    from mpifl.checkpoint.part import PartStatus

MAX_END_TESTS = 1000  # tests for the end of the run in a row, at most: these take about half a millisecond
POLL_INTERVAL = 0.01  # s between two polls for the end of the run, and two reports, while messages wait


class Received(NamedTuple):
    """A frame whose vectors may still be in flight."""

    kind: int
    subject: int = 0
    message: Message | None = None  # the message, without the vectors in flight
    due: float = 0.0  # `Delivery.due`
    incoming: IncomingVectors | None = None  # the vectors in flight
    requests: Sequence[MPI.Request] = ()  # receives that fill the buffers of these vectors


class Outgoing(NamedTuple):
    """An update whose large vectors may still be on their way out of the memory in which clients compute."""

    client: int
    update: Update
    vectors: OutgoingVectors


class MPIClientTransport:
    """The clients' end (`client_end.ClientTransport`) for the clients of this rank."""

    def __init__(
        self, comm: MPI.Comm, clients: LocalClients, hosted: int, d: int, dtype: np.dtype, vectors: int,
        sharded: bool = False,
    ) -> None:  # fmt: skip
        """hosted: clients on this rank. d, dtype: of a vector, or of this rank's part (`sharded`). vectors: maximum in
        a message."""
        self._comm, self._clients, self._memory = comm, clients, clients.memory
        clients.link = self
        self._format = FrameFormat(d, dtype, vectors, sharded)
        self._hosted = hosted
        self._frame = self._format.frame()
        self._frame_receive = comm.Recv_init((self._frame.buffer, MPI.BYTE), 0, FRAME)
        # Posted from the start: a probe for the end would search all messages that wait, again and again.
        self._end_receive = comm.Irecv(np.empty(0), 0, END)
        self._receiving = False  # whether the frame's receive is in progress
        self._peeked: Received | None = None  # a frame that arrived while clients computed
        self._leaving: deque[Outgoing] = deque()  # updates to be sent, in the order of their computation
        self._outbox = Outbox(comm, 0, self._format)
        self._sending: deque[tuple[list[MPI.Request], OutgoingVectors]] = deque()  # large vectors
        self._ending = self._stopped = False  # whether the run has ended, and whether the last frame has arrived
        self._dropped = 0  # messages that came before the last frame, but were not processed
        self._next_poll = 0.0  # perf_counter
        self.signals: list[int] = []  # signals that this rank has received; each is reported to the server once
        self._signals_reported = 0
        self.on_marker: Callable[[int], None] = lambda number: None  # called between two messages
        self.on_host: Callable[[int], None] = lambda i: None  # called between two messages; receives the client
        self.on_message: Callable[[int, Message], None] = lambda i, message: None  # called before a message is complete
        self.on_vectors: Callable[[int], None] = lambda i: None  # called when the vectors of a client's update leave
        self.on_progress: Callable[[], None] = lambda: None  # called now and then
        self.on_stop: Callable[[], None] = lambda: None  # called before the last frame to the server

    # -- messages ------------------------------------------------------------------------------------------------------
    def messages(self, most: int) -> Iterator[list[Delivery]]:
        """Yields batches of the messages that have arrived, at most `most` in one, until the run ends."""
        batch: list[Delivery] = []
        while not self._stopped:
            received = self._next(block=not batch)
            if received and received.message:
                message = self._complete(received)
                if self._ending:
                    self._dropped += 1
                    continue
                batch.append(Delivery(received.subject, message, received.due))
                if len(batch) < most:
                    continue
            if batch:
                yield batch
                batch = []
                if (now := time.perf_counter()) >= self._next_poll:
                    self._next_poll = now + POLL_INTERVAL
                    self._report()
                    self._ending = self._has_ended()  # the messages that are left are then dropped
            if received and not received.message:
                self._handle(received)
        self.on_stop()
        self._close()

    def _complete(self, received: Received) -> Message:
        """The message, once its vectors are here."""
        assert received.message
        self.on_message(received.subject, received.message)
        if not received.incoming:
            return received.message
        wait(*received.requests)
        received.incoming.load()
        return received.message.with_vectors(received.incoming.get())

    def _handle(self, received: Received) -> None:
        """Handles a frame that is no message."""
        if received.kind == Kind.MARKER:
            self.on_marker(received.subject)
        elif received.kind == Kind.HOST:
            self._hosted += 1
            self.on_host(received.subject)

    def _has_ended(self) -> bool:
        """Whether the server has ended the run, also while messages from before wait.

        Each test of MPICH takes in one of the messages that have arrived, and those of all clients may come first.
        """
        before = self._hosted * (1 + self._format.vectors)
        return any(self._end_receive.Test() for _ in range(min(before + 1, MAX_END_TESTS)))

    def _next(self, block: bool) -> Received | None:
        """The next frame; without `block` None if none has arrived. Sends updates as their contacts end."""
        if received := self._peeked:
            self._peeked = None
            return received
        if not self._receiving:
            self._frame_receive.Start()
            self._receiving = True
        if block:
            self._await_frame()
        elif not self._frame_receive.Test():
            return None
        self._receiving = False
        header, format = self._frame.header, self._format
        i, self._stopped = header.subject, header.kind == Kind.STOP  # no receive is started after the last frame
        if header.kind != Kind.MESSAGE:
            return Received(header.kind, i)
        message, count = self._frame.read_message(self._memory.from_host), header.length
        due = time.perf_counter() + header.delay
        if format.inline:
            return Received(Kind.MESSAGE, i, message, due)
        incoming = self._memory.incoming(count, format.d, format.dtype)
        requests = [self._comm.Irecv(b, 0, DATA + i) for b in incoming.buffers]
        return Received(Kind.MESSAGE, i, message, due, incoming, requests)

    def _await_frame(self) -> None:
        """Waits until the next frame is received. Sends updates as their contacts end."""
        backoff = Backoff(LONGEST_IDLE)
        while True:
            next_release = self._clients.release(time.perf_counter())
            self._send_leaving()
            if self._frame_receive.Test():
                return
            self._test_sends()
            self._report()
            backoff.pause(next_release - time.perf_counter())

    def poll(self) -> None:
        """Sends what is due and ready, and receives one frame, which then waits; called while clients compute."""
        self._report()
        self._clients.release(time.perf_counter())
        self._send_leaving()
        self._test_sends()
        if self._stopped:  # a receive that is started now would never complete
            return
        self._peeked = self._next(block=False)
        if self._peeked and self._peeked.incoming and MPI.Request.Testall(self._peeked.requests):
            self._peeked.incoming.load()

    # -- updates -------------------------------------------------------------------------------------------------------
    def send_update(self, i: int, update: Update) -> None:
        if self._format.inline or update.refused:
            self._send_frame(i, update, [self._memory.to_host(v) for v in update.vectors])
        else:
            vectors = self._memory.outgoing(update.vectors, self._format.d, self._format.dtype)
            self._leaving.append(Outgoing(i, update, vectors))
            self._send_leaving()

    def _send_leaving(self) -> None:
        """Starts to send, in order, the updates whose vectors have left the memory that clients compute with."""
        while self._leaving and self._leaving[0].vectors.ready():
            i, update, vectors = self._leaving.popleft()
            self._send_frame(i, update)
            self._test_sends()
            self._sending.append(([self._comm.Isend(b, 0, DATA + i) for b in vectors.buffers], vectors))
            self.on_vectors(i)

    def _send_frame(self, i: int, update: Update, inside: Sequence[np.ndarray] = ()) -> None:
        """Starts to send an update's frame, with the vectors that travel in it; sends the reason of a refused one."""
        frame, reason = self._outbox.take(), update.refused.encode()
        frame.write_update(i, update, inside, len(reason))
        self._outbox.send(frame, len(inside))
        self._send_text(reason)

    def _send_text(self, text: bytes) -> None:
        """Sends what follows a frame, which the server receives at once."""
        if text:
            wait(self._comm.Isend(text, 0, TEXT))

    def _test_sends(self) -> None:
        """Tests up to two sends, in turn, since the server receives them in any order.

        Called before another one is added, at each poll, and before each pause.
        """
        sending = self._sending
        for _ in range(min(2, len(sending))):
            if MPI.Request.Testall(sending[0][0]):
                sending.popleft()[1].release()
            else:
                sending.rotate(-1)

    def _close(self) -> None:
        """Sends all updates that are held back, and the last frame."""
        backoff = Backoff()
        self._clients.release(inf)
        while self._leaving:
            self._send_leaving()
            backoff.pause()
        self._frame_receive.Free()
        wait(self._end_receive)
        self._send_report(Kind.GOODBYE, self._dropped)
        wait(*(r for requests, _ in self._sending for r in requests))
        self._outbox.drain()

    # -- reports -------------------------------------------------------------------------------------------------------
    def _send_report(self, kind: Kind, subject: int, text: str = "") -> None:
        """Sends the server a frame that is no update, and the text that follows it."""
        frame, raw = self._outbox.take(), text.encode()
        frame.write(kind, subject, len(raw))
        self._outbox.send(frame)
        self._send_text(raw)

    def _report(self) -> None:
        while self._signals_reported < len(self.signals):
            self._signals_reported += 1
            self._send_report(Kind.SIGNAL, self.signals[self._signals_reported - 1])
        self.on_progress()

    def send_part_status(self, status: PartStatus) -> None:
        """Reports this rank's part of a checkpoint: durable, or failed."""
        self._send_report(Kind.PART_STATUS, status.number, json.dumps([status.bytes, status.crc, status.error]))

    def send_client_error(self, i: int, text: str) -> None:
        self._send_report(Kind.CLIENT_ERROR, i, text)

    def fail(self, error: BaseException) -> None:
        """Reports that this rank cannot continue, and waits for the end of the run."""
        rank = self._comm.rank
        known = isinstance(error, ConfigError | RunFailed)  # else a traceback tells where it was raised
        text = f"rank {rank} on {host_name()}: {error}" if known else format_client_error(rank, error)
        self.send_client_error(-1, text)
        for _ in self.messages(1):  # messages are received and dropped
            pass
