"""Counts the bytecodes that an update takes on the server and on the client's rank; prints them as JSON.

    mpirun -n 2 python -m tests.mpi.hot_path [share]

share: by which share of the server's count the server's rule is slowed down on purpose (a test of the test).

Clients are AREA's on quadratics, in real time, with an aggregation every 4 updates. Each rank looks for a frame only
once it has come, so the code that is counted never waits, however fast the other rank is. What is left to chance is
whether MPI has completed a send when it is tested: at most 6 % more on the server. Counted are 4 updates in a row; the
smallest such count has nothing in it that is done at intervals.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.participation import Trigger
from mpifl.client.worker import Worker, serve_clients
from mpifl.scheduling.live import LiveSchedule, RealClock
from mpifl.server.loop import ServerLoop
from mpifl.storage.tables import Row, UpdateRow
from mpifl.transport.mpi import MPI
from mpifl.transport.mpi_client import MPIClientTransport
from mpifl.transport.mpi_server import MPIServerTransport
from tests.quadratic_runs import Quadratic

D, CLIENTS, EVERY, UPDATES = 100, 4, 4, 800
LOOP = 2.75  # bytecodes of a loop's iteration
AFTER_FRAME = 8  # tag of the empty messages that follow an update or a message


class Counter:
    """Bytecodes executed, those of this file excepted; `mark` is called once an update."""

    def __init__(self) -> None:
        self.count = 0
        self.marks: list[int] = []

    def mark(self) -> None:
        self.marks.append(self.count)

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename == __file__ and frame.f_code.co_name != "burn":
            return None  # the test's own
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.count += event == "opcode"
        return self._opcode

    def per_update(self) -> float:
        marks = np.array(self.marks)
        return float((marks[EVERY:] - marks[:-EVERY]).min() / EVERY)


@dataclass(frozen=True)
class Slowed(Area):
    """AREA whose server executes more bytecodes for each update."""

    more: int = 0
    """how many"""

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        super().receive(server, i, update, staleness)
        burn(int(self.more / LOOP))


def burn(iterations: int) -> None:
    for _ in range(iterations):
        pass


class Rows:
    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def append(self, row: Row) -> None:
        if isinstance(row, UpdateRow):
            self._counter.mark()

    def set_client_state(self, client: int, state: str) -> None: ...


class Marked(Worker):
    counter: Counter

    def train(self, i: int, message: Any) -> Any:
        self.counter.mark()
        return super().train(i, message)


class FrameSignal:
    """Sends an empty message after each frame, which the other rank receives before it looks for the frame.

    MPI keeps the order of messages between two ranks, so the frame has come by then.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm, self._other = comm, 1 - comm.rank

    def send(self) -> None:
        self._comm.Send(np.empty(0), self._other, AFTER_FRAME)

    def await_frame(self) -> None:
        while not self._comm.Iprobe(self._other, AFTER_FRAME):
            time.sleep(1e-5)
        self._comm.Recv(np.empty(0), self._other, AFTER_FRAME)

    def drain(self) -> None:
        """Receives what is left once the other rank has sent its last frame."""
        while self._comm.Iprobe(self._other, AFTER_FRAME):
            self._comm.Recv(np.empty(0), self._other, AFTER_FRAME)
        self._comm.Barrier()  # what follows belongs to another run


class SignallingServer(MPIServerTransport):
    sent: FrameSignal

    def send(self, i: int, message: Message, delay: float) -> None:
        super().send(i, message, delay)
        self.sent.send()

    def receive_any(self, timeout: float) -> tuple[int, Update] | None:
        self.sent.await_frame()
        return super().receive_any(timeout)


class SignallingClients(MPIClientTransport):
    sent: FrameSignal

    def send_update(self, i: int, update: Update, delay: float) -> None:
        super().send_update(i, update, delay)
        self.sent.send()

    def messages(self, most: int) -> Iterator[list[tuple[int, Message, float]]]:
        batches = super().messages(most)
        while True:
            self.sent.await_frame()
            if not (batch := next(batches, None)):
                return
            yield batch


def run(comm: MPI.Comm, traced: int, more: int) -> float:
    """Bytecodes for each update on the traced rank, which alone is slowed down by counting; 0 on the other."""
    x0, counter, sent = np.ones(D, np.float32), Counter(), FrameSignal(comm)
    algorithm = Slowed(trigger=Trigger(every=EVERY), more=more)
    if comm.rank:
        one, zero = np.ones(D, np.float32), np.zeros(D, np.float32)
        worker = Marked(algorithm, x0, {i: Quadratic(one, zero, clients=CLIENTS) for i in range(CLIENTS)})
        worker.counter = counter
        transport = SignallingClients(comm, CLIENTS, D, x0.dtype, 1)
        transport.sent = sent
        sys.settrace(counter if traced else None)
        serve_clients(worker, transport)
    else:
        server_transport = SignallingServer(comm, CLIENTS, D, x0.dtype, 1)
        server_transport.sent = sent
        schedule = LiveSchedule(RealClock(lambda i, round: 0.0), algorithm.trigger, 0, stop_updates=UPDATES)
        schedule.clock.start()
        clients = Clients(np.ones(CLIENTS, int))
        server = algorithm.init_server(x0, clients)
        loop = ServerLoop(algorithm, server, clients, server_transport, schedule, Rows(counter), lambda *a: False, 0)
        sys.settrace(None if traced else counter)
        loop.run()
        sys.settrace(None)
        sent.send()  # that the run ends
        server_transport.shut_down(0)
    sys.settrace(None)
    sent.drain()
    return counter.per_update() if comm.rank == traced else 0.0


def main() -> None:
    share = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    comm = MPI.COMM_WORLD
    server = comm.bcast(run(comm, 0, 0))
    if share:
        server = run(comm, 0, int(share * server))
    client = comm.bcast(run(comm, 1, 0), root=1)
    if comm.rank == 0:
        print(json.dumps({"server": server, "client": client}))


if __name__ == "__main__":
    main()
