"""Updates a second through the real server loop, beside a hand-written mpi4py loop of the same messages.

    mpirun -n 5 python benchmarks/server_rate.py [--sizes 7850 1000000 10000000] [--repeats 5]

Clients do no work: they answer every message at once with a vector that they keep. Both loops exchange the same
messages in the same run, taken in turn; the figure is the median of the repeats' ratios. The hand-written loop has no
rule, no trace and no bookkeeping: blocking named receives of frame and vector, round robin, and blocking replies. So
that both sides share what the machine gives, its waits sleep no more than MPI's own do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, Message, Objective, State, Update
from mpifl.algorithms.participation import Trigger
from mpifl.client.worker import serve_clients
from mpifl.scheduling.live import LiveSchedule, RealClock
from mpifl.server.loop import ServerLoop
from mpifl.storage.tables import Row
from mpifl.transport.frames import FrameFormat, Header, Kind
from mpifl.transport.mpi import DATA, FRAME, MPI
from mpifl.transport.mpi_client import MPIClientTransport
from mpifl.transport.mpi_server import MPIServerTransport


@dataclass(frozen=True)
class Idle(Area):
    """AREA whose clients send the same vector again and again."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        return Update((client.y,), 0)


class Idlers:
    """Clients without an objective."""

    batch_size = 1

    def __init__(self, algorithm: Idle, x0: np.ndarray) -> None:
        self._algorithm, self._state = algorithm, State(y=x0)

    def train_all(self, messages: list[tuple[int, Message]]) -> list[Update]:
        ((_, message),) = messages
        update = self._algorithm.train(self._state, message, None)  # type: ignore[arg-type]
        return [update._replace(version=message.version, round=message.round)]


class Rows:
    """A trace in memory, as the run file's writer takes it before its thread does."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def append(self, row: Row) -> None:
        self.rows.append(row)

    def set_client_state(self, client: int, state: str) -> None: ...


def ours(comm: MPI.Comm, x0: np.ndarray, updates: int) -> float:
    """Updates a second of the server loop (rank 0), 0 elsewhere."""
    algorithm = Idle(trigger=Trigger(every=4))
    if comm.rank:
        transport = MPIClientTransport(comm, comm.size - 1, x0.size, x0.dtype, 1)
        serve_clients(Idlers(algorithm, x0), transport)  # type: ignore[arg-type]
        return 0.0
    n = comm.size - 1
    transport = MPIServerTransport(comm, n, x0.size, x0.dtype, 1)
    plan = LiveSchedule(RealClock(lambda i, round: 0.0), algorithm.trigger, 0, stop_updates=updates)
    plan.clock.start()
    begin = time.perf_counter()
    clients = Clients(np.ones(n, int))
    ServerLoop(
        algorithm, algorithm.init_server(x0, clients), clients, transport, plan, Rows(), lambda *a: False, 0
    ).run()
    seconds = time.perf_counter() - begin
    transport.shut_down(0)
    return updates / seconds


def by_hand(comm: MPI.Comm, x0: np.ndarray, updates: int) -> float:
    """The same messages without a server."""
    frames = FrameFormat(x0.size, x0.dtype, 1)
    buffers = frames.pack(Header(Kind.UPDATE), (x0,))
    tags = [FRAME, DATA][: len(buffers)]
    rounds = updates // (comm.size - 1)
    if comm.rank:
        for _ in range(rounds):
            for b, tag in zip(buffers, tags, strict=True):
                comm.Recv(b, 0, tag)
            for b, tag in zip(buffers, tags, strict=True):
                comm.Send(b, 0, tag)
        return 0.0
    workers = range(1, comm.size)
    arriving = [np.empty_like(b) for b in buffers]
    begin = time.perf_counter()
    for _ in range(rounds):
        requests = [comm.Isend(b, r, tag) for r in workers for b, tag in zip(buffers, tags, strict=True)]
        for r in workers:
            for b, tag in zip(arriving, tags, strict=True):
                comm.Recv(b, r, tag)
        MPI.Request.Waitall(requests)
    return rounds * len(workers) / (time.perf_counter() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[7850, 1_000_000, 10_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size < 2:
        print("server_rate: run it under mpirun with at least 2 ranks", file=sys.stderr)
        return 2
    for d in args.sizes:
        x0 = np.ones(d, np.float32)
        updates = max(40, min(20_000, 2_000_000_000 // (4 * d))) // (comm.size - 1) * (comm.size - 1)
        pairs = []
        for _ in range(args.repeats + 1):  # the first is the warm-up
            comm.Barrier()
            hand = by_hand(comm, x0, updates)
            comm.Barrier()
            pairs.append((ours(comm, x0, updates), hand))
        if comm.rank == 0:
            rate, hand = (statistics.median(p[k] for p in pairs[1:]) for k in (0, 1))
            ratio = statistics.median(a / b for a, b in pairs[1:])
            row = {"d": d, "clients": comm.size - 1, "updates": updates, "updates_per_s": round(rate, 1),
                   "by_hand_per_s": round(hand, 1), "ratio": round(ratio, 3),
                   "GB_per_s_in": round(rate * d * 4 / 1e9, 2)}  # fmt: skip
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
