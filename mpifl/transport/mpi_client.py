"""The clients' end of the MPI transport, on each of the ranks 1 .. R-1."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.errors import format_client_error
from mpifl.memory import HOST, Arrival, Departure, Memory
from mpifl.transport.backoff import Backoff
from mpifl.transport.frames import FrameFormat, Header, Kind, read_header
from mpifl.transport.mpi import DATA, END, FRAME, MPI, TEXT, send_frame, wait

END_INTERVAL = 0.01  # s between two looks for the end of the run while messages are there
HELD_INTERVAL = 0.05  # s that a rank sleeps at a time while all its updates are held back


class Received(NamedTuple):
    """A frame whose vectors may still be in flight."""

    header: Header
    vectors: Arrival
    requests: list[MPI.Request]  # that fill the vectors' buffers


class Outgoing(NamedTuple):
    """An update that is not sent yet."""

    client: int
    frame: list[np.ndarray]
    vectors: Departure
    text: bytes = b""  # why the update was refused


class MPIClientTransport:
    """The clients' end (`base.ClientTransport`) of n clients on R-1 ranks; vectors (d,) live in `memory`."""

    def __init__(
        self, comm: MPI.Comm, clients: int, d: int, dtype: np.dtype, vectors: int, memory: Memory = HOST
    ) -> None:
        """vectors: most in a message."""
        self._comm, self._memory = comm, memory
        self._format = FrameFormat(d, dtype, vectors)
        self._hosted = len(range(comm.rank - 1, clients, comm.size - 1))  # clients on this rank
        self._frame = self._format.buffer()
        self._frame_receive = comm.Recv_init(self._frame, 0, FRAME)
        self._receiving = False  # whether the frame's receive is in progress
        self._early: Received | None = None  # a frame that arrived while clients computed
        self._arrival_time: dict[int, float] = {}  # perf_counter, of each client's last message
        self._held: list[tuple[float, int, Outgoing]] = []  # (perf_counter until which it is held back, client, update)
        self._due: deque[Outgoing] = deque()  # their vectors may still be on their way out of the memory
        self._sending: deque[tuple[list[MPI.Request], Outgoing]] = deque()
        self._ending = self._stopped = False  # whether the run has ended, and whether the last frame has arrived
        self._dropped = 0  # messages that came before the last frame, but were not processed
        self._next_look = 0.0  # perf_counter
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
            received = self._next(wait=not batch)
            if received and received.header.kind == Kind.MESSAGE:
                wait(*received.requests)
                received.vectors.load()
                if self._ending:
                    self._dropped += 1
                    continue
                header = received.header
                batch.append((header.subject, header.to_message(received.vectors.get()), header.delay))
                if len(batch) < most:
                    continue
            if received and received.header.kind == Kind.STOP:
                self.code, self._stopped = received.header.subject, True
            if batch:
                yield batch
                batch = []
                self._look_for_end()
            if self._stopped:
                break
            if received and received.header.kind == Kind.MARKER:
                self.on_marker(received.header.subject)
            elif received and received.header.kind == Kind.HOST:
                self._hosted += 1
                self.on_host(received.header.subject)
        self.on_stop()
        self._close()

    def _look_for_end(self) -> None:
        """Finds out, now and then, whether the run has ended: the messages that are left are then dropped."""
        now = time.perf_counter()
        if now >= self._next_look:
            self._next_look = now + END_INTERVAL
            self._ending = self._comm.Iprobe(0, END)

    def _next(self, wait: bool) -> Received | None:
        """The next frame; None where none has arrived and there is no `wait`."""
        early, self._early = self._early, None
        if early or not (header := self._receive(wait)):
            return early
        if header.kind != Kind.MESSAGE:
            return Received(header, Arrival(()), [])
        i, count, format = header.subject, header.length, self._format
        self._arrival_time[i] = time.perf_counter()
        if format.inline:
            vectors = [self._memory.from_host(v) for v in format.read_vectors(self._frame, count)]
            return Received(header, Arrival(vectors), [])
        arrival = self._memory.arrival(count, format.d, format.dtype)
        return Received(header, arrival, [self._comm.Irecv(b, 0, DATA + i) for b in arrival.buffers])

    def _receive(self, wait: bool) -> Header | None:
        """The header of the next frame, or None; sends held updates as they fall due.

        While the updates of all its clients are held back, no message to them can arrive: it polls less often.
        """
        if not self._receiving:
            self._frame_receive.Start()
            self._receiving = True
        if wait:  # also where messages are always there
            self._report()
            self._flush(time.perf_counter())
        backoff = Backoff()
        while not self._frame_receive.Test():
            if not wait:
                return None
            self._report()
            if self._held or self._due or self._sending:
                self._flush(time.perf_counter())
            if not self._held:
                backoff.sleep()
            elif len(self._held) == self._hosted:
                time.sleep(max(0.0, min(self._held[0][0] - time.perf_counter(), HELD_INTERVAL)))
            else:
                backoff.sleep(self._held[0][0] - time.perf_counter())
        self._receiving = False
        return read_header(self._frame)

    def poll(self) -> None:
        """Sends what is due and ready, and receives one frame, which then waits; called while clients compute."""
        self._report()
        self._flush(time.perf_counter())
        if self._stopped:  # a receive that is started now would never complete
            return
        self._early = self._next(wait=False)
        if self._early and MPI.Request.Testall(self._early.requests):
            self._early.vectors.load()

    # -- updates -------------------------------------------------------------------------------------------------------
    def send_update(self, i: int, update: Update, delay: float) -> None:
        header, vectors, format = Header.of_update(i, update), update.vectors, self._format
        text = update.refused.encode()
        if text:
            frame, departure = format.pack(header._replace(length=len(text))), Departure(())
        elif format.inline:
            frame, departure = format.pack(header, tuple(map(self._memory.to_host, vectors))), Departure(())
        else:
            frame, departure = format.pack(header), self._memory.departure(vectors, format.d, format.dtype)
        outgoing = Outgoing(i, frame, departure, text)
        if delay > 0:
            heappush(self._held, (self._arrival_time[i] + delay, i, outgoing))
        else:
            self._due.append(outgoing)
            self._flush(-inf)

    def _flush(self, until: float) -> None:
        """Sends updates held back until `until` (perf_counter) or earlier, if ready, and frees sent ones."""
        while self._held and self._held[0][0] <= until:
            self._due.append(heappop(self._held)[2])
        while self._due and self._due[0].vectors.ready():
            outgoing = self._due.popleft()
            buffers = [*outgoing.frame, *outgoing.vectors.buffers]
            requests = send_frame(self._comm, buffers, 0, outgoing.client)
            if outgoing.text:
                requests.append(self._comm.Isend(outgoing.text, 0, TEXT))
            self._sending.append((requests, outgoing))
            self._test_sends()
        self._test_sends()

    def _test_sends(self) -> None:
        """Tests two sends; called for each send that is started. The server receives them in any order."""
        for _ in range(min(2, len(self._sending))):
            if MPI.Request.Testall(self._sending[0][0]):
                self._sending.popleft()[1].vectors.release()
            else:
                self._sending.rotate(-1)

    def _close(self) -> None:
        """Sends all that is held back, and the last frame."""
        backoff = Backoff()
        while self._held or self._due:
            self._flush(inf)
            backoff.sleep()
        self._frame_receive.Free()
        self._comm.Recv(np.empty(0), 0, END)
        goodbye = send_frame(self._comm, self._format.pack(Header(Kind.GOODBYE, self._dropped)), 0)
        wait(*(r for requests, _ in self._sending for r in requests), *goodbye)

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
        requests = send_frame(self._comm, self._format.pack(Header(kind, subject, len(raw))), 0)
        wait(*requests, *([self._comm.Isend(raw, 0, TEXT)] if raw else ()))

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
        self.send_client_error(-1, format_client_error(self._comm.rank, error))
        for _ in self.messages(1):  # received and dropped
            pass
