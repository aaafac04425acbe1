"""How long the rows of all clients take from rank 0 to the other ranks, beside a scatter by hand.

    mpirun -n 9 python benchmarks/scatter.py [--gigabytes 4] [--clients 64] [--repeats 3]

Both send views of one array of float32 rows, and of int64 labels. Ours is the handshake of a run: the arrays'
shapes as JSON, then every array of every client, until each rank has reported. By hand each rank is sent the rows and
the labels of all its clients at once. They are measured in turn. Prints a table in Markdown: GB/s,
the ratio of the times, and by how much the memory of rank 0 grew meanwhile.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time

import numpy as np

from mpifl.safe_input import available_memory
from mpifl.transport.handshake import Handshake, receive_setup, report_ready, send_hello
from mpifl.transport.layout import Layout
from mpifl.transport.mpi import MPI

FEATURES = 784


class Rows:
    """The rows of `clients` clients, sorted by client."""

    def __init__(self, gigabytes: float, clients: int, ranks: int) -> None:
        self.each = int(gigabytes * 1e9 / (4 * FEATURES) / clients)  # of a client
        self.clients, self.ranks = clients, ranks
        self.x = np.ones((self.each * clients, FEATURES), np.float32)
        self.y = np.ones(self.each * clients, np.int64)

    def shard(self, i: int) -> list[np.ndarray]:
        mine = slice(i * self.each, (i + 1) * self.each)
        return [self.x[mine], self.y[mine]]


def ours(comm: MPI.Comm, rows: Rows | None, clients: int) -> None:
    if rows:
        Handshake(comm).scatter_clients({}, np.zeros(1), clients, rows.shard, Layout(comm.size))
    else:
        send_hello(comm)
        receive_setup(comm)
        report_ready(comm, {})


def by_hand(comm: MPI.Comm, rows: Rows | None, clients: int, size: int) -> None:
    """A rank has clients that follow one another, so that its rows are one block."""
    if rows:
        per_rank = len(rows.y) // (comm.size - 1)
        sends = []
        for rank in range(1, comm.size):
            mine = slice((rank - 1) * per_rank, rank * per_rank)
            sends += [comm.Isend(rows.x[mine], rank, 0), comm.Isend(rows.y[mine], rank, 1)]
        MPI.Request.Waitall(sends)
    else:
        comm.Recv(np.empty((size, FEATURES), np.float32), 0, 0)
        comm.Recv(np.empty(size, np.int64), 0, 1)
    comm.Barrier()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size < 2 or args.clients % (comm.size - 1):
        print("scatter: run it under mpirun on ranks whose number less one divides --clients", file=sys.stderr)
        return 2
    if comm.rank == 0 and 2.5e9 * args.gigabytes > available_memory():
        print(f"scatter: {2.5 * args.gigabytes:g} GB of memory are not available", file=sys.stderr)
        comm.Abort(2)
    rows = Rows(args.gigabytes, args.clients, comm.size) if comm.rank == 0 else None
    size = comm.bcast(len(rows.y) if rows else 0) // (comm.size - 1)
    before, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(args.repeats + 1):  # the first is the warm-up
        times = []
        for program in (lambda: by_hand(comm, rows, args.clients, size), lambda: ours(comm, rows, args.clients)):
            comm.Barrier()
            begin = time.perf_counter()
            program()
            times.append(time.perf_counter() - begin)
        found.append(times)
    if rows:
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
        gigabytes = (rows.x.nbytes + rows.y.nbytes) / 1e9
        hand, own = (statistics.median(column) for column in zip(*found[1:], strict=True))
        ratios = [b / a for a, b in found[1:]]
        print("| ranks | rows | by hand | mpifl | ratio | lowest to highest | rank 0 grew by |")
        print("|--:|--:|--:|--:|--:|--:|--:|")
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        cells = [f"{gigabytes:.2f} GB", f"{gigabytes / hand:.2f} GB/s", f"{gigabytes / own:.2f} GB/s"]
        median = statistics.median(ratios)
        print(f"| {comm.size - 1} | {' | '.join(cells)} | {median:.2f} | {spread} | {grown:.2f} GB |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
