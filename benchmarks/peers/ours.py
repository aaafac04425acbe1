"""mpifl on the same work as the drivers beside it; prints a JSON line.

    mpirun -n 5 python ours.py mpi --model torch-logistic --updates 5000 [--d 1000000]
    python ours.py rounds --model logistic --updates 4000
    python ours.py virtual --model torch-logistic --updates 4000

mpi      FedAsync in real time, a client on every other rank: updates a second
rounds   FedAvg with 10 clients in one process: ms a round
virtual  FedAsync with 10 clients in one process under the virtual clock: updates a second

The first fifth of a run is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from data import STEP, rows

import mpifl

IN_PROCESS = 10  # clients of the parts that run in one process


def problem(model: str, d: int, batch: int, clients: int, folder: Path) -> dict[str, Any]:
    """The section `problem` of the job; the clients' rows are written into the folder."""
    if d:
        return {"clients": clients, "model": {"name": "quadratic", "dim": d, "condition": 1.0}}
    for k in range(clients):
        x, y = rows(k)
        np.savez(folder / f"{k:03}.npz", x=x, y=y)
    return {
        "data": {"name": "folder", "path": str(folder)}, "partition": "natural", "batch_size": batch,
        "model": {"name": model, "bias": True}, **({"torch": {"threads": 1}} if model.startswith("torch") else {}),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["mpi", "rounds", "virtual"])
    parser.add_argument("--model", default="torch-logistic")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--d", type=int, default=0)
    args = parser.parse_args()
    rank, ranks = (int(os.environ.get(f"OMPI_COMM_WORLD_{key}", one)) for key, one in (("RANK", "0"), ("SIZE", "1")))
    clients = ranks - 1 if args.part == "mpi" else IN_PROCESS
    virtual = {"mode": "virtual", "delay": {"name": "exponential"}}
    fedasync = {"name": "fedasync", "step_size": STEP, "proximal": 0.0}
    with tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory() as folder:
        job = {
            "name": "peers", "seed": 0, "problem": problem(args.model, args.d, args.batch, clients, Path(data)),
            "algorithm": {"name": "fedavg", "step_size": STEP} if args.part == "rounds" else fedasync,
            "clock": virtual if args.part == "virtual" else {"mode": "real"},
            "stop": {"updates": args.updates}, "evaluate": {"updates": 10**9},
        }  # fmt: skip
        if args.part == "virtual":
            seconds = []
            for k, count in enumerate((IN_PROCESS, args.updates // 5, args.updates)):  # the first one imports
                begin = time.perf_counter()
                mpifl.run({**job, "stop": {"updates": count}}, output=f"{folder}/{k}.h5")
                seconds.append(time.perf_counter() - begin)
            figure = {"updates_per_s": (args.updates - args.updates // 5) / (seconds[2] - seconds[1])}
        else:
            run = mpifl.run(job, output=f"{folder}/run.h5")
            if rank:
                return 0
            times = run.updates["time"].to_numpy()
            warm = len(times) // 5 // clients * clients
            rate = (len(times) - 1 - warm) / (times[-1] - times[warm])
            figure = {"updates_per_s": rate} if args.part == "mpi" else {"ms_a_round": 1e3 * clients / rate}
    print(json.dumps({**figure, "updates": args.updates}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
