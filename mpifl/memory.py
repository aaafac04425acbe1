"""Where the vectors of a rank's clients live, and how they get from there to the wire and back.

host     in NumPy arrays, which MPI takes as they are: nothing is copied (`Memory`)
pinned   on a device of which MPI knows nothing: through host buffers that are used again and again, by copies that run
         beside the computing (`Staged`)
direct   on a device whose memory MPI reads and writes itself: problems/torch/device.py

The server's vectors are always in host memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from mpifl.objective import Vector

PINNED_BYTES = 1 << 30  # maximum in pinned buffers; vectors beyond it are staged in ordinary memory
Done = Callable[[], bool]  # whether something that was begun is over; never waits


class IncomingVectors:
    """Vectors in transfer to the clients. MPI fills `buffers`; once it has, `load`, then `get`."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        self.buffers = buffers

    def load(self) -> None:
        """Begins to copy them to where clients compute, without waiting; once, however often it is called."""

    def get(self) -> tuple[Vector, ...]:
        """What the clients are given; what they compute from now on comes after the copies."""
        return tuple(self.buffers)


class OutgoingVectors:
    """Vectors in transfer to the server. MPI may read `buffers` once it is `ready`, until it is released."""

    def __init__(self, buffers: Sequence[Any], ready: Done = lambda: True) -> None:
        self.buffers, self.ready = buffers, ready

    def release(self) -> None:
        """Releases the buffers: all has been sent."""


class Memory:
    """Host memory."""

    transfers = "host"  # for the run file
    on_host = True  # vectors are NumPy arrays, computed when the call that returns them does

    def from_host(self, v: np.ndarray) -> Vector:
        """A host vector as clients compute with it."""
        return v

    def to_host(self, v: Vector) -> np.ndarray:
        """A client's vector in host memory."""
        return v

    def incoming(self, count: int, d: int, dtype: np.dtype) -> IncomingVectors:
        """Room for `count` vectors (d,) of the dtype that are to be received."""
        return IncomingVectors([np.empty(d, dtype) for _ in range(count)])

    def outgoing(self, vectors: Sequence[Vector], d: int, dtype: np.dtype) -> OutgoingVectors:
        """Likewise vectors that are to be sent, which nobody changes any more."""
        return OutgoingVectors([np.ascontiguousarray(v) for v in vectors])

    def wait(self, on_wait: Callable[[], None]) -> None:
        """Waits until all that was begun is computed; `on_wait` is called now and then."""


HOST = Memory()


# -- a device behind host buffers --------------------------------------------------------------------------------------
class Device(Protocol):
    """A device as `Staged` requires it: it computes in the order of the calls, and copies concurrently."""

    def from_host(self, v: np.ndarray) -> Vector: ...

    def to_host(self, v: Vector) -> np.ndarray: ...

    def wait(self, on_wait: Callable[[], None]) -> None: ...

    def buffer(self, d: int, dtype: np.dtype, pinned: bool) -> np.ndarray:
        """(d,) host memory."""

    def load(self, buffer: np.ndarray) -> tuple[Vector, Done]:
        """Begins a copy to the device; the buffer is not to change until it is done."""

    def use(self, v: Vector, loaded: Any) -> None:
        """What is computed from now on comes after this load."""

    def store(self, v: Vector, buffer: np.ndarray) -> Done:
        """Begins a copy into the buffer, after all that was to be computed so far; v is not to change until then."""


class Pool:
    """Host buffers. One is given out again when whoever had it, a copy or MPI, is done with it.

    A buffer is always available; otherwise a client rank and the server could deadlock, each waiting for the other to
    receive. Beyond PINNED_BYTES buffers are of ordinary memory, slower to copy, and not kept.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pinned: dict[int, np.ndarray] = {}  # by id
        self._free: list[np.ndarray] = []
        self._copied: deque[tuple[Done, np.ndarray]] = deque()  # read by copies, in the order of their ends

    def take(self, d: int, dtype: np.dtype) -> np.ndarray:
        while self._copied and self._copied[0][0]():
            self.give(self._copied.popleft()[1])
        if self._free:
            return self._free.pop()
        pinned = (len(self._pinned) + 1) * d * dtype.itemsize <= PINNED_BYTES
        buffer = self._device.buffer(d, dtype, pinned)
        if pinned:
            self._pinned[id(buffer)] = buffer
        return buffer

    def give(self, buffer: np.ndarray, done: Done | None = None) -> None:
        """Takes a buffer back; it is free at once, or when `done` returns true."""
        if done:
            self._copied.append((done, buffer))
        elif id(buffer) in self._pinned:
            self._free.append(buffer)


class StagedIncoming(IncomingVectors):
    def __init__(self, device: Device, pool: Pool, buffers: Sequence[np.ndarray]) -> None:
        super().__init__(buffers)
        self._device, self._pool = device, pool
        self._loads: list[tuple[Vector, Done]] = []

    def load(self) -> None:
        for buffer in self.buffers[len(self._loads) :]:
            self._loads.append(self._device.load(buffer))
            self._pool.give(buffer, self._loads[-1][1])

    def get(self) -> tuple[Vector, ...]:
        for v, done in self._loads:
            self._device.use(v, done)
        return tuple(v for v, _ in self._loads)


class StagedOutgoing(OutgoingVectors):
    def __init__(self, device: Device, pool: Pool, vectors: Sequence[Vector], buffers: Sequence[np.ndarray]) -> None:
        super().__init__(buffers, self._stored)
        self._pool = pool
        self._copies = deque((device.store(v, b), v) for v, b in zip(vectors, buffers, strict=True))

    def _stored(self) -> bool:
        while self._copies and self._copies[0][0]():
            self._copies.popleft()  # and lets go of the vector
        return not self._copies

    def release(self) -> None:
        for buffer in self.buffers:
            self._pool.give(buffer)


class Staged(Memory):
    """A device whose vectors travel through host buffers; all that do have one shape and dtype."""

    transfers, on_host = "pinned", False

    def __init__(self, device: Device) -> None:
        self.device, self._pool = device, Pool(device)

    def from_host(self, v: np.ndarray) -> Vector:
        return self.device.from_host(v)

    def to_host(self, v: Vector) -> np.ndarray:
        return self.device.to_host(v)

    def wait(self, on_wait: Callable[[], None]) -> None:
        self.device.wait(on_wait)

    def incoming(self, count: int, d: int, dtype: np.dtype) -> IncomingVectors:
        return StagedIncoming(self.device, self._pool, [self._pool.take(d, dtype) for _ in range(count)])

    def outgoing(self, vectors: Sequence[Vector], d: int, dtype: np.dtype) -> OutgoingVectors:
        buffers = [self._pool.take(d, dtype) for _ in vectors]
        return StagedOutgoing(self.device, self._pool, vectors, buffers)
