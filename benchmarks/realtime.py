"""The real-clock job at 129 ranks: updates a second, memory, start-up, CPU shares; beside a bare program's start-up.

    python benchmarks/realtime.py [--ranks 129] [--job jobs/area/mnist-realtime.yaml] [--repeats 3] [key=value ...]

Each repeat times, one after the other, `mpirun -n RANKS` of a bare program that imports numpy, h5py and mpi4py and does
one barrier, from the launch to the end of that barrier, and of the job, from the launch to the first update that the
server consumed. Memory is the sum of PSS over all ranks, read once in the middle of the run. Prints one JSON line a
repeat, then the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from common import ROOT, launcher

from mpifl import open_run

BARE = "import time, numpy, h5py; from mpi4py import MPI; c = MPI.COMM_WORLD; c.Barrier(); c.rank or print(time.time())"


def bare(ranks: int) -> float:
    """Seconds from the launch to the end of the barrier."""
    begin = time.time()
    out = subprocess.run([*launcher(ranks), "-c", BARE], capture_output=True, text=True, timeout=600, check=True)
    return float(out.stdout.split()[0]) - begin


def ranks_of(process: psutil.Process) -> list[psutil.Process]:
    return [p for p in process.children(recursive=True) if "run_mpi.py" in " ".join(p.cmdline())]


def job(ranks: int, arguments: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        begin = time.time()
        command = [*launcher(ranks), "run_mpi.py", *arguments, f"output={path}"]
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        pss, shares = 0.0, []
        while process.poll() is None:
            time.sleep(0.5)
            if not pss and path.exists():
                began = open_run(path).attrs["began"]
                if began == began and time.time() > began + 4:  # `began` is NaN until the clock starts
                    shares = measure(processes := ranks_of(psutil.Process(process.pid)), 5.0)
                    pss = sum(p.memory_full_info().pss for p in processes)
        run = open_run(path)
        horizon = run.config["stop"]["time"]
        ideal = run.clients["rate"].sum() * horizon
        return {
            "exit_code": process.returncode,
            "updates": len(run.updates),
            "share_of_ideal": round(len(run.updates) / ideal, 3),
            "first_update_s": round(run.attrs["began"] + run.updates["time"][0] - begin, 2),
            "pss_GB": round(pss / 1e9, 2),
            "server_cpu_share": round(run.attrs["server_cpu_share"], 3),
            "client_cpu_share_max": round(max(shares[1:], default=float("nan")), 3),
            "client_cpu_share_mean": round(statistics.mean(shares[1:]), 4) if shares[1:] else float("nan"),
            "accuracy": round(float(run.evaluations["test_accuracy"].iloc[-1]), 4),
            "loss": round(float(run.evaluations["train_loss"].iloc[-1]), 4),
        }


def measure(processes: list[psutil.Process], seconds: float) -> list[float]:
    """Each process's CPU share over the next seconds, the server's first."""
    processes.sort(key=lambda p: int(p.environ().get("OMPI_COMM_WORLD_RANK", p.environ().get("PMI_RANK", "0"))))
    before = [sum(p.cpu_times()[:2]) for p in processes]
    time.sleep(seconds)
    return [(sum(p.cpu_times()[:2]) - b) / seconds for p, b in zip(processes, before, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=129)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--job", default="jobs/area/mnist-realtime.yaml")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    for _ in range(args.repeats):
        start = bare(args.ranks)
        row = job(args.ranks, [args.job, *args.overrides])
        rows.append({"bare_s": round(start, 2), **row, "start_ratio": round(row["first_update_s"] / start, 2)})
        print(json.dumps(rows[-1]), flush=True)
    print(json.dumps({"median": {key: statistics.median(r[key] for r in rows) for key in rows[0]}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
