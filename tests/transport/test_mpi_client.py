"""The clients' end of MPI at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpifl.algorithms.base import Message
from mpifl.scheduling.due_queue import DueQueue
from mpifl.transport.frames import Frame, FrameFormat, Kind
from mpifl.transport.mpi_client import MPIClientTransport
from mpifl.vector_memory import HOST

FORMAT = FrameFormat(3, np.dtype(np.float32), 1)


class Receive:
    """A persistent receive: once started, it takes the next of the frames that have arrived."""

    def __init__(self, buffer: np.ndarray, frames: list[Frame]) -> None:
        self.buffer, self.frames, self.active = buffer, frames, False
        self.freed_while_active: bool | None = None

    def Start(self) -> None:
        self.active = True

    def Test(self) -> bool:
        if self.active and self.frames:
            self.buffer[:] = self.frames.pop(0).buffer
            self.active = False
        return not self.active

    def Free(self) -> None:
        self.freed_while_active = self.active


def frame(write: Callable[[Frame], Any]) -> Frame:
    made = FORMAT.frame()
    write(made)
    return made


def test_no_receive_is_started_after_the_last_frame() -> None:
    """A message and the last frame have arrived; while the client computes the rank polls, as it does beside a GPU."""
    message = Message((np.ones(3, np.float32),))
    frames = [frame(lambda f: f.write_message(0, message, 0.0)), frame(lambda f: f.write(Kind.STOP, 0))]
    done = SimpleNamespace(Test=lambda: True)
    receives: list[Receive] = []

    def start_later(buffer: Any, *_: Any) -> Receive:
        receives.append(Receive(buffer[0], frames))
        return receives[0]

    comm: Any = SimpleNamespace(rank=1, Recv_init=start_later, Irecv=lambda *_: done, Isend=lambda *_: done)
    clients: Any = SimpleNamespace(memory=HOST, max_deliveries=8, held=DueQueue(), release=lambda now: inf)
    transport = MPIClientTransport(comm, clients, 2, 3, FORMAT.dtype, 1)
    delivered = []
    for batch in transport.messages(8):
        delivered += batch
        transport.poll()
    assert [each.client for each in delivered] == [0] and receives[0].freed_while_active is False
