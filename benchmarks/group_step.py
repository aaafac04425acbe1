"""A local step that the ranks of a group share, beside the same loop written by hand with mpi4py.

    mpirun -n 2 python benchmarks/group_step.py [--hidden 14000] [--batch 256] [--micro-batches 4] [--repeats 20]

All ranks of the job are one group; there is no server. Four loops take the same steps y <- y - 0.01 g in turns:

ours       `MicroBatched.gradient` on the leader, followed by the other ranks
by_hand    blocking calls: MPI_Bcast of the model, each rank's gradients, and their sum along the same tree by MPI_Send
           and MPI_Recv
allreduce  likewise, but each rank adds its gradients in order, and MPI_Allreduce adds the sums of the ranks
alone      all micro-batches on the leader; the other ranks wait

The ratios are medians of the ratios of one turn. The model has about a million entries by default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mpifl.problems import ProblemConfig, load, objective
from mpifl.problems.data import Synthetic
from mpifl.problems.micro_batches import MicroBatched
from mpifl.problems.models import Mlp
from mpifl.transport.mpi import MPI, short_sleeps
from mpifl.transport.rank_group import RankGroup

STEPS = 5  # in a turn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=14_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    config = ProblemConfig(data=Synthetic(), clients=1, model=Mlp(hidden=options.hidden))
    problem = load(config)
    f, m = objective(config, problem.meta, problem.shard(0), 0, 0), options.micro_batches
    group = RankGroup(comm, range(comm.size), problem.d, np.dtype(np.float32), [])
    shared, alone = MicroBatched(f, 0, m, group), MicroBatched(f, 0, m, None)
    rows = np.arange(options.batch) % f.samples
    each, scale = m // comm.size, np.float32(1 / m)
    pieces = np.array_split(rows, m)
    buffer = np.empty(problem.d, np.float32)

    def part(k: int, x: np.ndarray) -> np.ndarray:
        found: np.ndarray = f.gradient(x, pieces[k])
        found *= scale
        return found

    def tree(x: np.ndarray, first: int, last: int) -> Any:
        owner = first // each
        if last - first == 1:
            return part(first, x) if owner == comm.rank else None
        middle = first + (1 << (last - first - 1).bit_length() - 1)
        left, right, source = tree(x, first, middle), tree(x, middle, last), middle // each
        if source != owner and comm.rank == source:
            comm.Send(right, owner)
        if comm.rank != owner:
            return None
        if source != owner:
            comm.Recv(buffer, source)
            right = buffer
        left += right
        return left

    def ours(x: np.ndarray) -> None:
        if comm.rank == 0:
            for _ in range(STEPS):
                x -= 0.01 * shared.gradient(x, rows)
            group.stop()
        else:
            for request in group.requests():
                shared.follow_gradient(*request.arrays, **request.arguments)
                group.finish()

    def by_hand(x: np.ndarray) -> None:
        for _ in range(STEPS):
            comm.Bcast(x, 0)
            found = tree(x, 0, m)
            if comm.rank == 0:
                x -= 0.01 * found

    def allreduce(x: np.ndarray) -> None:
        for _ in range(STEPS):
            total = part(comm.rank * each, x)
            for k in range(comm.rank * each + 1, (comm.rank + 1) * each):
                total += part(k, x)
            comm.Allreduce(MPI.IN_PLACE, total)
            x -= 0.01 * total

    def on_one(x: np.ndarray) -> None:
        for _ in range(STEPS if comm.rank == 0 else 0):
            x -= 0.01 * alone.gradient(x, rows)

    loops: dict[str, Callable[[np.ndarray], None]] = {
        "ours": ours, "by_hand": by_hand, "allreduce": allreduce, "alone": on_one,
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    models = {}
    for turn in range(1 + options.repeats):
        for name, loop in loops.items():
            x = problem.initial(0)
            comm.Barrier()
            begin = time.perf_counter()
            loop(x)
            if turn:  # the first one warms up
                seconds[name].append((time.perf_counter() - begin) / STEPS)
            models[name] = x
    if comm.rank == 0:
        ratios = {
            f"ours / {name}": statistics.median(a / b for a, b in zip(seconds["ours"], seconds[name], strict=True))
            for name in loops
            if name != "ours"
        }
        same = {name: bool(np.array_equal(x, models["ours"])) for name, x in models.items()}
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        row = {"d": problem.d, "ranks": comm.size, "seconds": medians, "ratios": ratios, "same bits": same}
        print(json.dumps(row, indent=1))


if __name__ == "__main__":
    with short_sleeps():
        main()
