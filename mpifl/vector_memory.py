"""Where the vectors of a rank's clients live, and how they travel between there and MPI.

host     NumPy arrays, which MPI reads and writes without a copy (`VectorMemory`)
pinned   a device whose memory MPI cannot access: vectors pass through host buffers that are used again, by copies that
         run while the device computes (`Staged`)
direct   a device whose memory MPI reads and writes itself: problems/torch/device.py

The server's vectors are always in host memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from mpifl.objective import Vector

PINNED_BYTES = 1 << 30  # maximum in pinned buffers; further vectors are staged in ordinary memory
Done = Callable[[], bool]  # true once an operation has completed; does not block


class IncomingVectors:
    """Vectors on their way to the clients. MPI fills `buffers`; then call `load` and `get`."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        self.buffers = buffers

    def load(self) -> None:
        """Starts the copy to the compute device. Does not block; further calls do nothing."""

    def get(self) -> tuple[Vector, ...]:
        """Returns the clients' vectors. The device finishes their copies before it computes what is queued next."""
        return tuple(self.buffers)


class OutgoingVectors:
    """Vectors on their way to the server. MPI may read `buffers` from when `ready()` is true until `release`."""

    def __init__(self, buffers: Sequence[Any], ready: Done = lambda: True) -> None:
        self.buffers, self.ready = buffers, ready

    def release(self) -> None:
        """Releases the buffers, once they are sent."""


class VectorMemory:
    """Host memory."""

    transfers = "host"  # name of this memory in the run file
    on_host = True  # vectors are NumPy arrays, and a call that returns one has computed it

    def from_host(self, v: np.ndarray) -> Vector:
        """A host vector in this memory."""
        return v

    def to_host(self, v: Vector) -> np.ndarray:
        """A vector of this memory in host memory."""
        return v

    def incoming(self, count: int, d: int, dtype: np.dtype) -> IncomingVectors:
        """Room for `count` vectors (d,) to be received."""
        return IncomingVectors([np.empty(d, dtype) for _ in range(count)])

    def outgoing(self, vectors: Sequence[Vector], d: int, dtype: np.dtype) -> OutgoingVectors:
        """Vectors (d,) to be sent. The caller does not change them any more."""
        return OutgoingVectors([np.ascontiguousarray(v) for v in vectors])

    def wait(self, on_wait: Callable[[], None]) -> None:
        """Waits until everything queued is computed, and calls `on_wait` repeatedly."""


HOST = VectorMemory()


# -- a device behind host buffers --------------------------------------------------------------------------------------
class Device(Protocol):
    """A device for `Staged`: it computes in the order of the calls, and copies at the same time."""

    def from_host(self, v: np.ndarray) -> Vector: ...

    def to_host(self, v: Vector) -> np.ndarray: ...

    def wait(self, on_wait: Callable[[], None]) -> None: ...

    def buffer(self, d: int, dtype: np.dtype, pinned: bool) -> np.ndarray:
        """(d,) host memory."""

    def load(self, buffer: np.ndarray) -> tuple[Vector, Done]:
        """Starts a copy to the device. The buffer must not change until it is done."""

    def use(self, v: Vector, loaded: Any) -> None:
        """Makes what is computed from now on wait for this load."""

    def store(self, v: Vector, buffer: np.ndarray) -> Done:
        """Starts a copy into the buffer, after what is queued. Until it is done v must not change."""


class HostBufferPool:
    """Host buffers, given out again once the copy or the MPI call that used them has completed.

    A buffer is always available; otherwise a client rank and the server could deadlock, each waiting for the other to
    receive. Beyond PINNED_BYTES buffers are ordinary memory, slower to copy, and are not kept.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pinned: dict[int, np.ndarray] = {}  # id of a buffer -> the buffer
        self._free: list[np.ndarray] = []
        self._copied: deque[tuple[Done, np.ndarray]] = deque()  # buffers that copies read, in order

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
        """Takes a buffer back. It is free at once, or when `done` returns true."""
        if done:
            self._copied.append((done, buffer))
        elif id(buffer) in self._pinned:
            self._free.append(buffer)


class StagedIncoming(IncomingVectors):
    def __init__(self, device: Device, pool: HostBufferPool, buffers: Sequence[np.ndarray]) -> None:
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
    def __init__(
        self, device: Device, pool: HostBufferPool, vectors: Sequence[Vector], buffers: Sequence[np.ndarray]
    ) -> None:
        super().__init__(buffers, self._stored)
        self._pool = pool
        self._copies = deque((device.store(v, b), v) for v, b in zip(vectors, buffers, strict=True))

    def _stored(self) -> bool:
        while self._copies and self._copies[0][0]():
            self._copies.popleft()  # this also releases the vector
        return not self._copies

    def release(self) -> None:
        for buffer in self.buffers:
            self._pool.give(buffer)


class Staged(VectorMemory):
    """A device whose vectors pass through host buffers. All that do have one shape and dtype."""

    transfers, on_host = "pinned", False

    def __init__(self, device: Device) -> None:
        self.device, self._pool = device, HostBufferPool(device)

    def from_host(self, v: np.ndarray) -> Vector:
        return self.device.from_host(v)

    def to_host(self, v: Vector) -> np.ndarray:
        return self.device.to_host(v)

    def wait(self, on_wait: Callable[[], None]) -> None:
        self.device.wait(on_wait)

    def incoming(self, count: int, d: int, dtype: np.dtype) -> IncomingVectors:
        return StagedIncoming(self.device, self._pool, [self._pool.take(d, dtype) for _ in range(count)])

    def outgoing(self, vectors: Sequence[Vector], d: int, dtype: np.dtype) -> OutgoingVectors:
        return StagedOutgoing(self.device, self._pool, vectors, [self._pool.take(d, dtype) for _ in vectors])
