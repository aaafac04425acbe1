"""Updates a second through the real server loop, beside the same work by hand and beside a bare echo.

    mpirun -n 5 python benchmarks/server_rate.py [--sizes 7850 1000000 10000000] [--repeats 5]

Clients do no work: they answer every message at once with a vector that they keep. Four programs are measured in one
run:

ours     the server loop and both ends of the MPI transport, with AREA (an aggregation every 4 updates)
by_hand  what one would write for this one rule: nonblocking requests, messages answered in any order, waits that sleep
         as ours do, a new array for each model, which is sent without a copy, and the rule's arithmetic in the fewest
         passes over memory. It has no rows, no checks and no checkpoints
echo     every message is answered at once with a fixed one, on both sides: what MPI and the waiting cost

In a repeat the programs take turns, so that a machine whose speed changes does not decide their ratio. A turn has as
many updates as take about 0.1 s, but at least 200, or all of the repeat where these are fewer. A program begins each
turn with new buffers. Ratios are of the rates of one repeat; the figure is the median of the repeats. `server_us` is
CPU time of the server process for each update.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import sys
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients, Update
from mpifl.algorithms.participation import Trigger
from mpifl.runfile.tables import Row
from mpifl.scheduling.clocks import RealClock
from mpifl.scheduling.due_queue import DueQueue
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.server.loop import ServerLoop
from mpifl.transport.backoff import Backoff
from mpifl.transport.client_end import ClientTransport, Delivery
from mpifl.transport.frames import HEADER_BYTES
from mpifl.transport.layout import Layout
from mpifl.transport.mpi import FRAME, MPI, short_sleeps
from mpifl.transport.mpi_client import MPIClientTransport
from mpifl.transport.mpi_server import MPIServerTransport
from mpifl.vector_memory import HOST

EVERY = 4  # updates for an aggregation
TURN_SECONDS, TURN_UPDATES = 0.1, 200  # about how long a turn takes, and how many updates it has at least


class Taken(NamedTuple):
    """The time that a program took on the server (s); zeros on the other ranks."""

    wall: float = 0.0
    cpu: float = 0.0  # of the server's process


class Stopwatch:
    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def taken(self) -> Taken:
        return Taken(time.perf_counter() - self._wall, time.process_time() - self._cpu)


# -- ours --------------------------------------------------------------------------------------------------------------
class Idlers:
    """Clients that send the same vector again and again, as the transport sees those of a rank (`LocalClients`)."""

    link: ClientTransport
    memory, batch_size, computing = HOST, 1, ()

    def __init__(self, x0: np.ndarray) -> None:
        self._x0, self.held = x0, DueQueue[Update]()
        self.last_updates: dict[int, Update] = {}

    def step(self, deliveries: Sequence[Delivery]) -> None:
        for i, message, _ in deliveries:
            self.link.send_update(i, Update((self._x0,), 0, (), message.version, message.round))

    def release(self, now: float) -> float:
        return inf


class Rows:
    """A trace in memory, as the run file's writer takes it before its thread does."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def append(self, row: Row) -> None:
        self.rows.append(row)

    def set_client_state(self, client: int, state: str) -> None: ...


def ours(comm: MPI.Comm, x0: np.ndarray, updates: int) -> Taken:
    algorithm = Area(trigger=Trigger(every=EVERY))
    if comm.rank:
        clients = Idlers(x0)
        for deliveries in MPIClientTransport(comm, clients, 1, x0.size, x0.dtype, 1).messages(1):
            clients.step(deliveries)
        return Taken()
    n = comm.size - 1
    transport = MPIServerTransport(comm, n, x0.size, x0.dtype, 1, lambda i: [], Layout(comm.size))
    plan = LiveSchedule(RealClock(lambda i, round: 0.0), algorithm.trigger, 0, stop_updates=updates)
    plan.clock.start()
    samples = Clients(np.ones(n, int))
    server = algorithm.init_server(x0, samples)
    watch = Stopwatch()
    ServerLoop(algorithm, server, samples, transport, plan, Rows(), lambda *a: False, 0).run()
    taken = watch.taken()
    transport.shut_down()
    return taken


# -- by hand -----------------------------------------------------------------------------------------------------------
HEADER = struct.Struct("qq")  # version; whether the run is over
BLOCK = 1 << 14  # entries that stay in the cache between two operations


def buffers(x0: np.ndarray, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Room for `count` messages: their bytes, and their vectors."""
    messages = [np.zeros(HEADER_BYTES + x0.nbytes, np.uint8) for _ in range(count)]
    return [(whole, whole[HEADER_BYTES:].view(x0.dtype)) for whole in messages]


def client_by_hand(comm: MPI.Comm, x0: np.ndarray) -> None:
    (message, _), (update, y) = buffers(x0, 2)
    y[:] = x0
    receive, send = comm.Recv_init(message, 0, FRAME), comm.Send_init(update, 0, FRAME)
    while True:
        receive.Start()
        backoff = Backoff()
        while not receive.Test():
            backoff.pause()
        version, over = HEADER.unpack_from(message)
        if over:
            break
        while not send.Test():
            backoff.pause()
        HEADER.pack_into(update, 0, version, 0)
        send.Start()
    send.Wait()


def by_hand(comm: MPI.Comm, x0: np.ndarray, updates: int) -> Taken:
    if comm.rank:
        client_by_hand(comm, x0)
        return Taken()
    n, d = comm.size - 1, x0.size
    unused = buffers(x0, 2 * n + 2)  # snapshots that nobody is being sent
    arriving = [unused.pop() for _ in range(n)]
    receives = [comm.Recv_init(whole, r, FRAME) for r, (whole, _) in enumerate(arriving, 1)]
    u, (whole, x) = np.empty_like(x0), unused.pop()
    HEADER.pack_into(whole, 0, 0, 0)
    x[:] = x0
    snapshots = {id(whole): 0}  # how many sends each has under way
    sends: list[tuple[MPI.Request, np.ndarray, np.ndarray] | None] = [None] * n
    version = count = pending = 0
    staleness = 0

    def answer(k: int) -> None:
        """Sends client k the present snapshot; that of its last message is not being sent to it any more."""
        if before := sends[k]:
            before[0].Wait()  # the client has answered it
            snapshots[id(before[1])] -= 1
            if not snapshots[id(before[1])] and before[1] is not whole:
                unused.append(before[1:])
        receives[k].Start()
        sends[k] = comm.Isend((whole, MPI.BYTE), k + 1, FRAME), whole, x
        snapshots[id(whole)] += 1

    watch, backoff = Stopwatch(), Backoff()
    for k in range(n):
        answer(k)
    while count < updates:
        done = MPI.Request.Testsome(receives)
        if not done:
            backoff.pause()
            continue
        backoff.reset()
        for k in done:
            frame, v = arriving[k]
            staleness += version - HEADER.unpack_from(frame)[0]
            np.add(u, v, out=u) if pending else np.copyto(u, v)
            pending, count = pending + 1, count + 1
            answer(k)
            if pending == EVERY:
                new_whole, new = unused.pop()
                for first in range(0, d, BLOCK):
                    part = slice(first, first + BLOCK)
                    np.divide(u[part], n, out=new[part])
                    np.add(x[part], new[part], out=new[part])
                if not snapshots[id(whole)]:
                    unused.append((whole, x))
                whole, x, pending, version = new_whole, new, 0, version + 1
                snapshots.setdefault(id(whole), 0)
                HEADER.pack_into(whole, 0, version, 0)
    taken = watch.taken()
    last = np.zeros(HEADER_BYTES, np.uint8)
    HEADER.pack_into(last, 0, version, 1)
    for send in sends:
        assert send
        send[0].Wait()
    stops = [comm.Isend((last, MPI.BYTE), r, FRAME) for r in range(1, n + 1)]
    MPI.Request.Waitall([*stops, *receives])
    return taken


# -- echo --------------------------------------------------------------------------------------------------------------
def echo(comm: MPI.Comm, x0: np.ndarray, updates: int) -> Taken:
    """Every message is answered at once with a fixed one; the last one of each client is empty."""
    peers = [0] if comm.rank else list(range(1, comm.size))
    count, running = 0, len(peers)
    free = buffers(x0, 2 * len(peers))
    receives = [comm.Recv_init(free.pop()[0], r, FRAME) for r in peers]
    sends = [comm.Send_init(free.pop()[0], r, FRAME) for r in peers]
    taken, status = Taken(), [MPI.Status() for _ in peers]
    watch, backoff = Stopwatch(), Backoff()
    MPI.Prequest.Startall(receives if comm.rank else [*receives, *sends])
    while running:
        done = MPI.Request.Testsome(receives, status)
        if not done:
            backoff.pause()
            continue
        backoff.reset()
        for k, each in zip(done, status):
            sends[k].Wait()  # it was answered
            count += 1
            if count == updates:
                taken = watch.taken()
            if not each.Get_count():
                running -= 1
            elif comm.rank or count < updates:
                sends[k].Start()
                receives[k].Start()
            else:
                comm.Send(b"", peers[k], FRAME)
                running -= 1
    for request in (*receives, *sends):
        request.Free()
    return taken


PROGRAMS: dict[str, Callable[[MPI.Comm, np.ndarray, int], Taken]] = {"ours": ours, "by_hand": by_hand, "echo": echo}


@short_sleeps()  # as in a run
def measure(comm: MPI.Comm, d: int, repeats: int, turns: int, updates: int) -> dict[str, float]:
    """Rates and ratios at one dimension; in a repeat each program has `turns` turns of `updates` updates each."""
    x0 = np.ones(d, np.float32)
    taken = np.zeros((repeats + 1, len(PROGRAMS), 2))  # the first repeat is the warm-up
    for repeat in taken:
        for _ in range(turns):
            for sums, program in zip(repeat, PROGRAMS.values(), strict=True):
                comm.Barrier()
                sums += program(comm, x0, updates)
    row: dict[str, float] = {"d": d, "clients": comm.size - 1, "updates": turns * updates, "turn": updates}
    if comm.rank:
        return row
    walls = {}
    for k, name in enumerate(PROGRAMS):
        walls[name], cpu = (taken[1:, k] / (turns * updates)).T
        key = "" if name == "ours" else f"{name}_"
        row[f"{key}updates_per_s"] = round(1 / float(np.median(walls[name])), 1)
        row[f"{key}server_us"] = round(1e6 * float(np.median(cpu)), 2)
    for key, one, other in (("ratio", "ours", "by_hand"), ("by_hand_to_echo", "by_hand", "echo")):
        ratios = (walls[other] / walls[one]).tolist()
        row |= {key: round(statistics.median(ratios), 3), f"{key}_low": round(min(ratios), 3),
                f"{key}_high": round(max(ratios), 3)}  # fmt: skip
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[7850, 1_000_000, 10_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long each program runs in a repeat")
    parser.add_argument("--updates", type=int, help="updates of each program in a repeat, one turn; not --seconds")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size < 2:
        print("server_rate: run it under mpirun with at least 2 ranks", file=sys.stderr)
        return 2
    for d in args.sizes:
        rate = min(20_000, 4e8 / d)  # updates/s, about
        whole = args.updates or max(40, int(args.seconds * rate))  # of a repeat
        turns = 1 if args.updates else max(1, round(whole / max(TURN_UPDATES, TURN_SECONDS * rate)))
        updates = whole // turns
        row = measure(comm, d, args.repeats, turns, updates)
        if comm.rank == 0:
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
