"""The MPI link. Buffers only, every receive named by its source, waits that sleep; bounded memory on the server.

Client i of n lives on rank 1 + i mod (R-1). An update is announced by a small header, for which one persistent receive
a rank is posted; its vectors are fetched into a pool of reused buffers, so large ones wait at the sender until a buffer
is free. Messages leave by Isend straight from the model's array, which lives until its sends are complete.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

import mpi4py
import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.errors import RunFailed
from mpifl.links import wire

mpi4py.rc.thread_level = "funneled"  # the evaluating and the writing thread never call MPI
from mpi4py import MPI  # noqa: E402

HEADER, TEXT, SETUP, DATA = 1, 2, 3, 16  # tags; vectors of a rank's k-th client travel under DATA + k
POOL_BYTES = 256 << 20  # most memory in the server's receive buffers
POOL_MOST = 32


class Backoff:
    """Waiting that yields the core: 1 us, doubling to 1 ms."""

    def __init__(self) -> None:
        self._pause = 1e-6

    def reset(self) -> None:
        self._pause = 1e-6

    def sleep(self, most: float = 1e-3) -> None:
        time.sleep(max(0.0, min(self._pause, most)))
        self._pause = min(2 * self._pause, 1e-3)


def wait(*requests: MPI.Request) -> None:
    """Waits for requests without spinning."""
    backoff = Backoff()
    while not MPI.Request.Testall(list(requests)):
        backoff.sleep()


class ServerEnd:
    """The server's end: a link for n clients on the other ranks of `comm`."""

    def __init__(self, comm: MPI.Comm, clients: int, d: int, dtype: np.dtype, vectors: int) -> None:
        self._comm, self._workers = comm, comm.size - 1
        self._d, self._dtype = d, dtype
        if DATA + clients // self._workers > (comm.Get_attr(MPI.TAG_UB) or 32767):
            raise RunFailed("more clients a rank than this MPI has message tags")
        self._headers = np.zeros((self._workers, wire.WIDTH))
        self._requests = [comm.Recv_init(self._headers[r], r + 1, HEADER) for r in range(self._workers)]
        MPI.Prequest.Startall(self._requests)
        most = max(2, min(POOL_MOST, clients, POOL_BYTES // (d * dtype.itemsize * vectors)))
        self._vectors = vectors
        self._buffers = np.empty((most, vectors, d), dtype)
        self._free = list(range(most))
        self._requests += [MPI.REQUEST_NULL] * (most * vectors)  # slot s, vector v: self._workers + s * vectors + v
        self._announced: dict[int, list[float]] = {}  # client -> header of an update that is not fetched yet
        self._order: deque[int] = deque()  # the same clients in order of arrival
        self._fetching: dict[int, tuple[int, list[float], int]] = {}  # slot -> client, header, vectors to come
        self._ready: dict[int, Update] = {}  # complete updates, in order of completion
        self._slots: dict[int, int] = {}  # client -> slot of its complete update
        self._outgoing: deque[tuple[list[MPI.Request], object]] = deque()
        self._error = ""  # what a client raised, until the server is told
        self._gone = 0  # ranks that have said goodbye
        self.stats = np.zeros((self._workers, 2))  # CPU seconds and peak MiB of every rank that has

    def _rank(self, i: int) -> int:
        return 1 + i % self._workers

    def send(self, i: int, message: Message, delay: float) -> None:
        header, rank, tag = wire.header(), self._rank(i), DATA + i // self._workers
        wire.pack_message(header, i, message, delay)
        requests = [self._comm.Isend(header, rank, HEADER)]
        requests += [self._comm.Isend(v, rank, tag) for v in message.vectors]
        self._outgoing.append((requests, (header, message)))
        for _ in range(2):  # two looked at for one that is added: old models are let go soon after their last send
            if not MPI.Request.Testall(self._outgoing[0][0]):
                self._outgoing.rotate(-1)
            else:
                self._outgoing.popleft()
            if not self._outgoing:
                break

    def _fetch(self, i: int) -> None:
        """Starts the receives of an announced update into a free buffer."""
        slot, header = self._free.pop(), self._announced.pop(i)
        rank, tag, count = self._rank(i), DATA + i // self._workers, int(header[2])
        self._fetching[slot] = i, header, count
        first = self._workers + slot * self._vectors
        for v in range(count):
            self._requests[first + v] = self._comm.Irecv(self._buffers[slot, v], rank, tag)

    def _progress(self, fetch: bool) -> bool:
        """Takes in what has arrived, without waiting; whether anything had. Raises RunFailed for a client's error."""
        while fetch and self._order and self._free:
            self._fetch(self._order.popleft())
        done = MPI.Request.Testsome(self._requests)
        for k in done or ():
            if k < self._workers:
                self._header(k)
            else:
                self._vector((k - self._workers) // self._vectors)
        if self._error:
            error, self._error = self._error, ""
            raise RunFailed(error)
        return bool(done)

    def _header(self, worker: int) -> None:
        header = self._headers[worker].tolist()
        kind, i = int(header[0]), int(header[1])
        if kind == wire.BYE:
            self._gone += 1
            self.stats[worker] = header[2:4]
            return
        self._requests[worker].Start()  # type: ignore[attr-defined]
        if kind == wire.ERROR:
            text = bytearray(i)
            wait(self._comm.Irecv(text, worker + 1, TEXT))
            self._error = text.decode("utf-8", "replace")
            return
        self._announced[i] = header
        self._order.append(i)

    def _vector(self, slot: int) -> None:
        i, header, missing = self._fetching[slot]
        if missing > 1:
            self._fetching[slot] = i, header, missing - 1
            return
        del self._fetching[slot]
        vectors = tuple(self._buffers[slot, v] for v in range(int(header[2])))
        self._ready[i] = wire.unpack_update(header, vectors)
        self._slots[i] = slot

    def any(self, timeout: float) -> tuple[int, Update] | None:
        end = time.perf_counter() + timeout
        backoff = Backoff()
        while not self._ready:
            if self._progress(fetch=True):
                backoff.reset()
            elif (left := end - time.perf_counter()) <= 0:
                return None
            else:
                backoff.sleep(left)
        i = next(iter(self._ready))
        return i, self._ready.pop(i)

    def take(self, i: int) -> Update:
        backoff = Backoff()
        while i not in self._ready:
            if i in self._announced and self._free:
                self._order.remove(i)
                self._fetch(i)
            backoff.reset() if self._progress(fetch=False) else backoff.sleep()
        return self._ready.pop(i)

    def release(self, i: int) -> None:
        self._free.append(self._slots.pop(i))

    def finish(self, code: int) -> int:
        stop = wire.header()
        stop[:2] = wire.STOP, code
        sends = [self._comm.Isend(stop, r + 1, HEADER) for r in range(self._workers)]
        dropped, backoff = 0, Backoff()
        for i in list(self._slots):  # consumed halfway when the run broke off
            if i not in self._ready:
                self.release(i)
        while self._gone < self._workers or self._fetching or self._ready or self._announced:
            try:
                backoff.reset() if self._progress(fetch=True) else backoff.sleep()
            except RunFailed as error:
                print(error, file=sys.stderr)
            for i in list(self._ready):
                del self._ready[i]
                self.release(i)
                dropped += 1
        wait(*sends, *(r for requests, _ in self._outgoing for r in requests))
        return dropped


class ClientEnd:
    """The clients' end, on one of the ranks 1 .. R-1."""

    def __init__(self, comm: MPI.Comm, d: int, dtype: np.dtype) -> None:
        self._comm, self._workers, self._d, self._dtype = comm, comm.size - 1, d, dtype
        self._header = wire.header()
        self._request = comm.Recv_init(self._header, 0, HEADER)
        self._held: list[tuple[float, int, Update]] = []  # (perf_counter until which it is held back, client, update)
        self._sending: deque[tuple[list[MPI.Request], object]] = deque()
        self._came = 0.0  # when the present message came
        self.code = 0

    def messages(self) -> Iterator[tuple[int, Message, float]]:
        while self._receive() == wire.WORK:
            self._came = time.perf_counter()
            i, count = int(self._header[1]), int(self._header[2])
            vectors = tuple(np.empty(self._d, self._dtype) for _ in range(count))
            wait(*(self._comm.Irecv(v, 0, DATA + i // self._workers) for v in vectors))
            yield wire.unpack_message(self._header, vectors)
        self.code = int(self._header[1])
        self._flush(float("inf"))
        self._goodbye()

    def _receive(self) -> int:
        """Waits for the next header, sending held updates as they fall due; the kind of message."""
        self._request.Start()
        backoff = Backoff()
        while not self._request.Test():
            self._flush(time.perf_counter())
            backoff.sleep(self._held[0][0] - time.perf_counter() if self._held else 1e-3)
        return int(self._header[0])

    def _flush(self, until: float) -> None:
        while self._held and self._held[0][0] <= until:
            _, i, update = heappop(self._held)
            self._send(i, update)
        while self._sending and MPI.Request.Testall(self._sending[0][0]):
            self._sending.popleft()

    def reply(self, i: int, update: Update, delay: float) -> None:
        if delay > 0:
            heappush(self._held, (self._came + delay, i, update))
        else:
            self._send(i, update)
        self._flush(time.perf_counter())

    def _send(self, i: int, update: Update) -> None:
        header, tag = wire.header(), DATA + i // self._workers
        wire.pack_update(header, i, update)
        requests = [self._comm.Isend(header, 0, HEADER)]
        requests += [self._comm.Isend(np.ascontiguousarray(v), 0, tag) for v in update.vectors]
        self._sending.append((requests, (header, update)))

    def _goodbye(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        bye = wire.header()
        bye[:4] = wire.BYE, 0, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
        wait(*(r for requests, _ in self._sending for r in requests), self._comm.Isend(bye, 0, HEADER))

    def fail(self, error: BaseException) -> None:
        """Tells the server of an error, with rank, host and traceback, and waits for the end of the run."""
        where = f"rank {self._comm.rank} on {socket.gethostname()} (process {os.getpid()}):\n"
        text = (where + "".join(traceback.format_exception(error))).encode()
        header = wire.header()
        header[:2] = wire.ERROR, len(text)
        wait(self._comm.Isend(header, 0, HEADER), self._comm.Isend(text, 0, TEXT))
        for _ in self.messages():  # taken in and dropped
            pass
