"""Vectors too large for a frame, on their way to the server: received into a pool of buffers that are used again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from mpifl.transport.frames import Frames
from mpifl.transport.mpi import DATA, MPI

POOL_BYTES = 256 << 20  # most memory in the buffers
POOL_MOST = 32


class ReceivePool:
    """The updates whose vectors are being received, each into a slot of the pool."""

    def __init__(self, comm: MPI.Comm, frames: Frames, clients: int, requests: list[MPI.Request]) -> None:
        """Appends to `requests` those of slot s, vector v, at the present length + s * vectors + v."""
        self._comm, self._frames, self._requests, self._first = comm, frames, requests, len(requests)
        size = frames.vectors * frames.d * frames.dtype.itemsize
        most = 0 if frames.inline else max(2, min(POOL_MOST, clients, POOL_BYTES // size))
        self._buffers = [np.empty((frames.vectors, frames.d), frames.dtype) for _ in range(most)]
        self._graves: list[np.ndarray] = []  # buffers that messages may still touch which nobody waits for
        requests += [MPI.REQUEST_NULL] * (most * frames.vectors)
        self.free = list(range(most))
        self.coming: set[int] = set()  # which of the requests are under way
        self.slots: dict[int, tuple[int, int, list[float], int]] = {}  # slot -> client, rank, head, vectors to come

    def _range(self, slot: int, count: int) -> range:
        first = self._first + slot * self._frames.vectors
        return range(first, first + count)

    def start(self, i: int, rank: int, head: list[float]) -> None:
        """Receives client i's announced update into a free slot."""
        slot, count = self.free.pop(), int(head[2])
        self.slots[slot] = i, rank, head, count
        for v, k in enumerate(self._range(slot, count)):
            self._requests[k] = self._comm.Irecv(self._buffers[slot][v], rank, DATA + i)
            self.coming.add(k)

    def arrived(self, k: int) -> tuple[int, int, int, list[float]] | None:
        """Slot, client, rank and head of an update that request k makes complete."""
        slot = (k - self._first) // self._frames.vectors
        if slot not in self.slots:  # it was dropped just now
            return None
        i, rank, head, missing = self.slots[slot]
        if missing > 1:
            self.slots[slot] = i, rank, head, missing - 1
            return None
        del self.slots[slot]
        return slot, i, rank, head

    def vectors(self, slot: int, count: int) -> tuple[np.ndarray, ...]:
        return tuple(self._buffers[slot][:count])

    def drop(self, which: Callable[[int, int], bool]) -> None:
        """Waits no more for those of some (client, rank)."""
        for slot in [slot for slot, (i, rank, *_) in self.slots.items() if which(i, rank)]:
            del self.slots[slot]
            for k in self._range(slot, self._frames.vectors):
                self._requests[k] = MPI.REQUEST_NULL
                self.coming.discard(k)
            self._graves.append(self._buffers[slot])
            self._buffers[slot] = np.empty_like(self._buffers[slot])
            self.free.append(slot)

    def over(self, done: Iterable[int]) -> None:
        """These requests are not under way any more."""
        self.coming.difference_update(done)
