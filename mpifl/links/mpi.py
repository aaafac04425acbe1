"""The MPI link. Buffers only, every receive named by its source, waits that sleep; bounded memory on the server.

The server's end, and what both ends share; the clients' is in `client`.

Client i of n lives on rank 1 + i mod (R-1). An update comes as a frame (see `wire`), for which one persistent receive a
rank is posted; vectors too large for it are fetched into a pool of reused buffers, so they wait at the sender until a
buffer is free. Large messages leave by Isend straight from the model's array, which lives until its sends are complete.
"""

from __future__ import annotations

import sys
import time
from collections import deque

import mpi4py
import numpy as np

from mpifl.algorithms.base import Message, Update
from mpifl.errors import RunFailed
from mpifl.links import wire
from mpifl.links.waiting import Backoff
from mpifl.links.wire import Frames

mpi4py.rc.thread_level = "funneled"  # the evaluating and the writing thread never call MPI
from mpi4py import MPI  # noqa: E402

FRAME, TEXT, SETUP, DATA = 1, 2, 3, 16  # tags; large vectors of a rank's k-th client travel under DATA + k
POOL_BYTES = 256 << 20  # most memory in the server's receive buffers
POOL_MOST = 32
UNSEEN = 64  # sends of small frames, which are copies, that may go without a look at whether they are done


def wait(*requests: MPI.Request) -> None:
    """Waits for requests without spinning."""
    backoff = Backoff()
    while not MPI.Request.Testall(list(requests)):
        backoff.sleep()


def post(comm: MPI.Comm, buffers: list[np.ndarray], rank: int, slot: int = 0) -> list[MPI.Request]:
    """Sends a frame, and the vectors behind it under the tag of the client's slot."""
    frame, *vectors = buffers
    return [comm.Isend(frame, rank, FRAME), *(comm.Isend(v, rank, DATA + slot) for v in vectors)]


class ServerEnd:
    """The server's end: a link for n clients on the other ranks of `comm`; at most `vectors` vectors a message."""

    def __init__(self, comm: MPI.Comm, clients: int, d: int, dtype: np.dtype, vectors: int) -> None:
        self._comm, self._workers = comm, comm.size - 1
        self._frames = frames = Frames(d, dtype, vectors)
        if DATA + clients // self._workers > (comm.Get_attr(MPI.TAG_UB) or 32767):
            raise RunFailed("more clients a rank than this MPI has message tags")
        self._arriving = [frames.empty() for _ in range(self._workers)]
        self._posts = [comm.Recv_init(f, r, FRAME) for r, f in enumerate(self._arriving, 1)]
        MPI.Prequest.Startall(self._posts)
        most = 0 if frames.inline else max(2, min(POOL_MOST, clients, POOL_BYTES // (d * dtype.itemsize * vectors)))
        self._buffers = np.empty((most, vectors, d), dtype)
        self._free = list(range(most))
        # The frames' receives, then those of slot s, vector v at self._workers + s * vectors + v.
        self._requests: list[MPI.Request] = [*self._posts, *[MPI.REQUEST_NULL] * (most * vectors)]
        self._announced: dict[int, list[float]] = {}  # client -> head of an update that is not fetched yet, in order
        self._fetching: dict[int, tuple[int, list[float], int]] = {}  # slot -> client, head, vectors to come
        self._rounds: dict[int, int] = {}  # client -> round of its last message
        self._ready: dict[int, Update] = {}  # complete updates, in order of completion
        self._slots: dict[int, int] = {}  # client -> slot of its complete update
        self._outgoing: deque[tuple[list[MPI.Request], object]] = deque()
        self._error = ""  # what a client raised, until the server is told
        self._gone = 0  # ranks that have said goodbye

    def send(self, i: int, message: Message, delay: float) -> None:
        buffers = self._frames.pack(wire.message_head(i, message, delay), message.vectors)
        self._rounds[i] = message.round
        slot, worker = divmod(i, self._workers)
        self._outgoing.append((post(self._comm, buffers, worker + 1, slot), buffers))
        if self._frames.inline and len(self._outgoing) < UNSEEN:
            return
        for _ in range(2):  # two looked at for one that is added: old models are let go soon after their last send
            if not self._outgoing:
                break
            if MPI.Request.Testall(self._outgoing[0][0]):
                self._outgoing.popleft()
            else:
                self._outgoing.rotate(-1)

    def _fetch(self, i: int) -> None:
        """Starts the receives of an announced update into a free buffer."""
        slot, head, vectors = self._free.pop(), self._announced.pop(i), self._frames.vectors
        at, worker = divmod(i, self._workers)
        self._fetching[slot] = i, head, int(head[2])
        for v in range(int(head[2])):
            request = self._comm.Irecv(self._buffers[slot, v], worker + 1, DATA + at)
            self._requests[self._workers + slot * vectors + v] = request

    def _progress(self, fetch: bool) -> bool:
        """Takes in what has arrived, without waiting; whether anything had. Raises RunFailed for a client's error."""
        while fetch and self._announced and self._free:
            self._fetch(next(iter(self._announced)))
        done = MPI.Request.Testsome(self._requests)
        for k in done or ():
            if k < self._workers:
                self._frame(k)
            else:
                self._vector((k - self._workers) // self._frames.vectors)
        if self._error:
            error, self._error = self._error, ""
            raise RunFailed(error)
        return bool(done)

    def _frame(self, worker: int) -> None:
        head = self._frames.head(self._arriving[worker])
        kind, i = int(head[0]), int(head[1])
        if kind == wire.UPDATE and self._frames.inline:
            vectors = self._frames.body(self._arriving[worker], int(head[2]))
            self._ready[i] = wire.to_update(head, vectors, self._rounds[i])
        elif kind == wire.UPDATE:
            self._announced[i] = head
        elif kind == wire.ERROR:
            text = bytearray(i)
            wait(self._comm.Irecv(text, worker + 1, TEXT))
            self._error = text.decode("utf-8", "replace")
        else:  # goodbye: nothing follows
            self._gone += 1
            return
        self._posts[worker].Start()

    def _vector(self, slot: int) -> None:
        i, head, missing = self._fetching[slot]
        if missing > 1:
            self._fetching[slot] = i, head, missing - 1
            return
        del self._fetching[slot]
        self._ready[i] = wire.to_update(head, tuple(self._buffers[slot, : int(head[2])]), self._rounds[i])
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
                self._fetch(i)
            if self._progress(fetch=False):
                backoff.reset()
            else:
                backoff.sleep()
        return self._ready.pop(i)

    def release(self, i: int) -> None:
        slot = self._slots.pop(i, None)
        if slot is not None:
            self._free.append(slot)

    def finish(self, code: int) -> int:
        stop = self._frames.pack((wire.STOP, code))
        sends = [request for r in range(self._workers) for request in post(self._comm, stop, r + 1)]
        for i in [i for i in self._slots if i not in self._ready]:  # in use when the run broke off
            self.release(i)
        dropped, backoff = 0, Backoff()
        while self._gone < self._workers or self._fetching or self._ready or self._announced:
            try:
                if self._progress(fetch=True):
                    backoff.reset()
                else:
                    backoff.sleep()
            except RunFailed as error:
                print(error, file=sys.stderr)
            for i in list(self._ready):
                del self._ready[i]
                self.release(i)
                dropped += 1
        wait(*sends, *(r for requests, _ in self._outgoing for r in requests))
        for receive in self._posts:
            receive.Free()
        return dropped
