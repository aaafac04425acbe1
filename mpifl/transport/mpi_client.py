"""The clients' end of the MPI link, on each of the ranks 1 .. R-1; the server's end and the messages are in `mpi`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.errors import described
from mpifl.memory import HOST, Arrival, Departure, Memory
from mpifl.transport import frames as wire
from mpifl.transport.backoff import Backoff
from mpifl.transport.frames import Frames
from mpifl.transport.mpi import DATA, FRAME, MPI, TEXT, post, wait

IDLE = 0.05  # s that a rank sleeps at a time while no message can come but the last


class Coming(NamedTuple):
    """A message whose head is there, and whose vectors may still be under way."""

    head: list[float]
    vectors: Arrival
    requests: list[MPI.Request]  # that fill the vectors' buffers


class Leaving(NamedTuple):
    """An update that is not sent yet."""

    client: int
    frame: list[np.ndarray]
    vectors: Departure
    text: bytes = b""  # why the update was refused


class ClientEnd:
    """The end of n clients on R-1 ranks; at most `vectors` vectors (d,) a message, which live in `memory`."""

    def __init__(
        self, comm: MPI.Comm, clients: int, d: int, dtype: np.dtype, vectors: int, memory: Memory = HOST
    ) -> None:
        self._comm, self._workers, self._memory = comm, comm.size - 1, memory
        self._frames = Frames(d, dtype, vectors)
        self._mine = len(range(comm.rank - 1, clients, self._workers))
        self._frame = self._frames.empty()
        self._request = comm.Recv_init(self._frame, 0, FRAME)
        self._posted = False  # whether the frame's receive is under way
        self._ahead: Coming | None = None  # a message that came while clients computed
        self._came: dict[int, float] = {}  # client -> when its last message came
        self._held: list[tuple[float, int, Leaving]] = []  # (perf_counter until which it is held back, client, update)
        self._leaving: deque[Leaving] = deque()  # due, but their vectors may still be on their way out of the memory
        self._sending: deque[tuple[list[MPI.Request], Leaving]] = deque()
        self._ended = False  # whether the last message has come
        self.code = 0
        self.signals: list[int] = []  # that this rank hears; each is told to the server, once
        self._told = 0
        self.marked: Callable[[int], None] = lambda number: None  # called between two jobs: a checkpoint is to be made
        self.hosting: Callable[[int], None] = lambda i: None  # likewise: one more client, described in what follows
        self.idle: Callable[[], None] = lambda: None  # called now and then while nothing comes
        self.ending: Callable[[], None] = lambda: None  # called before the server hears goodbye

    # -- messages ------------------------------------------------------------------------------------------------------
    def messages(self, most: int) -> Iterator[list[tuple[int, Message, float]]]:
        group: list[tuple[int, Message, float]] = []
        while True:
            came = self._next(wait=not group)
            if came and came.head[0] == wire.WORK:
                wait(*came.requests)
                came.vectors.load()
                group.append(wire.to_message(came.head, came.vectors.get()))
                if len(group) < most:
                    continue
            if came and came.head[0] == wire.STOP:
                self.code, self._ended = int(came.head[1]), True
            if group:
                yield group
                group = []
            if self._ended:
                break
            if came and came.head[0] == wire.MARK:
                self.marked(int(came.head[1]))
            elif came and came.head[0] == wire.HOST:
                self._mine += 1
                self.hosting(int(came.head[1]))
        self.ending()
        self._goodbye()

    def _next(self, wait: bool) -> Coming | None:
        """The next message; None where none is there to `wait` for."""
        ahead, self._ahead = self._ahead, None
        if ahead or not (head := self._receive(wait)):
            return ahead
        if head[0] != wire.WORK:
            return Coming(head, Arrival(()), [])
        i, count, frames = int(head[1]), int(head[2]), self._frames
        self._came[i] = time.perf_counter()
        if frames.inline:
            vectors = [self._memory.inside(v) for v in frames.body(self._frame, count)]
            return Coming(head, Arrival(vectors), [])
        room = self._memory.arrival(count, frames.d, frames.dtype)
        return Coming(head, room, [self._comm.Irecv(b, 0, DATA + i) for b in room.buffers])

    def _receive(self, wait: bool) -> list[float] | None:
        """The head of the next frame, sending held updates as they fall due; None where none is there to `wait` for.

        While all updates of the rank are held back, only the end of the run can be announced: no need to look often.
        """
        if not self._posted:
            self._request.Start()
            self._posted = True
        if wait:  # also where messages are always there
            self._report()
            self._flush(time.perf_counter())
        backoff = Backoff()
        while not self._request.Test():
            if not wait:
                return None
            self._report()
            if self._held or self._leaving or self._sending:
                self._flush(time.perf_counter())
            if not self._held:
                backoff.sleep()
            elif len(self._held) == self._mine:
                time.sleep(max(0.0, min(self._held[0][0] - time.perf_counter(), IDLE)))
            else:
                backoff.sleep(self._held[0][0] - time.perf_counter())
        self._posted = False
        return self._frames.head(self._frame)

    def poll(self) -> None:
        """Called while clients compute: sends what is due and ready, and takes in one message, which then waits."""
        self._report()
        self._flush(time.perf_counter())
        if self._ended:  # a receive that is posted now would not be answered
            return
        self._ahead = self._next(wait=False)
        if self._ahead and MPI.Request.Testall(self._ahead.requests):
            self._ahead.vectors.load()

    # -- updates -------------------------------------------------------------------------------------------------------
    def send_update(self, i: int, update: Update, delay: float) -> None:
        head, vectors, frames = wire.update_head(i, update), update.vectors, self._frames
        text = update.refused.encode()
        if text:
            frame, out = frames.pack((wire.REFUSED, i, len(text), *head[3:])), Departure(())
        elif frames.inline:
            frame, out = frames.pack(head, tuple(map(self._memory.outside, vectors))), Departure(())
        else:
            frame, out = frames.pack(head), self._memory.departure(vectors, frames.d, frames.dtype)
        leaving = Leaving(i, frame, out, text)
        if delay > 0:
            heappush(self._held, (self._came[i] + delay, i, leaving))
        else:
            self._leaving.append(leaving)
            self._flush(-inf)

    def _flush(self, until: float) -> None:
        """Sends what was held until then, as far as it is ready, and lets go of what has been sent."""
        while self._held and self._held[0][0] <= until:
            self._leaving.append(heappop(self._held)[2])
        while self._leaving and self._leaving[0].vectors.ready():
            leaving = self._leaving.popleft()
            buffers = [*leaving.frame, *leaving.vectors.buffers]
            requests = post(self._comm, buffers, 0, leaving.client)
            if leaving.text:
                requests.append(self._comm.Isend(leaving.text, 0, TEXT))
            self._sending.append((requests, leaving))
            self._look()
        self._look()

    def _look(self) -> None:
        """Looks at two sends, for one that is added: the server fetches them in an order of its own."""
        for _ in range(min(2, len(self._sending))):
            if MPI.Request.Testall(self._sending[0][0]):
                self._sending.popleft()[1].vectors.over()
            else:
                self._sending.rotate(-1)

    def _goodbye(self) -> None:
        backoff = Backoff()
        while self._held or self._leaving:
            self._flush(inf)
            backoff.sleep()
        self._request.Free()
        bye = post(self._comm, self._frames.pack((wire.BYE,)), 0)
        wait(*(r for requests, _ in self._sending for r in requests), *bye)

    def resume(self, i: int, update: Update, held: float) -> None:
        """Client i's update was under way when the run was saved, and held back for so long still (s)."""
        self._came[i] = time.perf_counter()
        self.send_update(i, update, held)

    def holding(self) -> dict[int, float]:
        """How long updates are held back still (s), by client."""
        now = time.perf_counter()
        return {i: max(0.0, due - now) for due, i, _ in self._held}

    # -- words ---------------------------------------------------------------------------------------------------------
    def say(self, *head: float, text: str = "") -> None:
        """Tells the server something, with the length of the text that follows as its last number."""
        raw = text.encode()
        requests = post(self._comm, self._frames.pack((*head, len(raw))), 0)
        wait(*requests, *([self._comm.Isend(raw, 0, TEXT)] if raw else ()))

    def _report(self) -> None:
        """Tells of signals, and whatever else is to be told while nothing comes."""
        while self._told < len(self.signals):
            self._told += 1
            self.say(wire.SIGNAL, self.signals[self._told - 1])
        self.idle()

    def send_client_error(self, i: int, text: str) -> None:
        """Tells the server what client i raised."""
        self.say(wire.RAISED, i, text=text)

    def fail(self, error: BaseException) -> None:
        """Tells the server that this rank cannot go on, and waits for the end of the run."""
        self.send_client_error(-1, described(self._comm.rank, error))
        for _ in self.messages(1):  # taken in and dropped
            pass
