"""Measures the overhead of checkpoints, of fault tolerance in MPI and of the validation of updates; paired ratios.

    python benchmarks/faults_cost.py [--repeats 7] [--seconds 31] [--ranks 4] [--dim 1000000]
                                     [--only checkpoint ulfm validation]

    checkpoint  a job in real time without delays, d = 1e6, with `checkpoint.every=10` and without: the updates that the
                server consumed in the same time (31 s: three checkpoints)
    ulfm        `mpirun --with-ft ulfm` and `mpirun`: the updates in 10 s, for d = 1e6 and for small updates (d = 100),
                with which the server is at its limit
    validation  local training with the checks and without, on one client: one gradient, the least amount of work, of
                d = 1e6 and d = 1e5

Each pair runs with and without, in turn the one and the other first; a ratio is the time with by the time without, so
1.02 is a slowdown by 2 %. Prints one JSON line a pair, then the medians, beside what they must stay under.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, launcher

from mpifl import open_run
from mpifl.algorithms.base import Message, Update
from mpifl.algorithms.fedavg import FedAvg
from mpifl.client.worker import Worker
from mpifl.problems import ProblemConfig, load, objective
from mpifl.problems.models import MODELS

BOUNDS = {"checkpoint": 1.05, "ulfm": 1.03, "validation": 1.05}
NUMBERS = 300_000_000  # numbers that one measurement of local training reads


def updates(ranks: int, tolerant: bool, arguments: list[str]) -> int:
    """How many updates a run consumes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        start = launcher(ranks)
        if tolerant:
            start[1:1] = ["--with-ft", "ulfm"]
        command = [*start, "run_mpi.py", *arguments, f"output={path}"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=600)
        with open_run(path) as run:
            return len(run.updates)


def job(folder: Path, dim: int, clients: int, seconds: float) -> list[str]:
    """The arguments that run AREA in real time, at full speed, on quadratics."""
    path = folder / f"{dim}-{seconds}.yaml"
    description = {
        "name": "cost", "seed": 0,
        "problem": {"clients": clients, "model": {"name": "quadratic", "dim": dim}},
        "algorithm": {"name": "area", "step_size": 0.01, "step_weights": "one", "trigger": {"every": clients}},
        "clock": {"mode": "real"}, "stop": {"time": seconds}, "evaluate": {"every": seconds},
    }  # fmt: skip
    path.write_text(json.dumps(description))
    return [str(path)]


class Unchecked(Worker):
    """A worker that does not validate updates; their norm, a column of the run file, is computed all the same."""

    def _refusal(self, i: int, update: Update) -> tuple[str, float]:
        return "", float(sum(float(v @ v) for v in update.vectors)) ** 0.5

    def _snapshot(self, i: int) -> Any:
        return None


def training(worker: Worker, x: np.ndarray) -> float:
    """Seconds of some contacts of one client."""
    begin = time.perf_counter()
    for round in range(NUMBERS // x.size):
        worker.train(0, Message((x,), round=round))
    return time.perf_counter() - begin


def trainings(dim: int) -> dict[bool, Callable[[], float]]:
    """Seconds with validation and without, by whether it is on."""
    config = ProblemConfig(clients=1, model=MODELS["quadratic"](dim=dim))  # type: ignore[arg-type]
    problem = load(config)
    x = problem.initial(0)
    client = objective(config, problem.meta, problem.shard(0), 0, 0)
    algorithm = FedAvg(step_size=0.01)
    made = {on: kind(algorithm, x, {0: client}) for on, kind in ((True, Worker), (False, Unchecked))}
    return {on: lambda worker=worker: training(worker, x) for on, worker in made.items()}


def measures(args: argparse.Namespace, folder: Path) -> dict[tuple[str, str], dict[bool, Callable[[], float]]]:
    """Something proportional to the time with (True) and without (False), by what it is."""

    def rate(ranks: int, tolerant: bool, arguments: list[str]) -> Callable[[], float]:
        return lambda: 1 / updates(ranks, tolerant, arguments)

    large, brief = job(folder, args.dim, 8, args.seconds), job(folder, args.dim, 8, 10)
    small = job(folder, 100, 32, 10)
    found: dict[tuple[str, str], dict[bool, Callable[[], float]]] = {}
    if "checkpoint" in args.only:
        found["checkpoint", f"every 10 s, d = {args.dim:g}"] = {
            on: rate(args.ranks, False, large + ["checkpoint.every=10"] * on) for on in (True, False)
        }
    if "ulfm" in args.only:
        for what, arguments in ((f"d = {args.dim:g}", brief), ("d = 100", small)):
            found["ulfm", what] = {on: rate(args.ranks, on, arguments) for on in (True, False)}
    if "validation" in args.only:
        for dim in (args.dim, args.dim // 10):
            found["validation", f"one gradient, d = {dim:g}"] = trainings(dim)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=31.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--dim", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", default=list(BOUNDS), choices=list(BOUNDS))
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":OVERSUBSCRIBE")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for (kind, what), sides in measures(args, Path(folder)).items():
            ratios = []
            for k in range(args.repeats):
                took = {on: sides[on]() for on in ((True, False) if k % 2 else (False, True))}
                ratios.append(took[True] / took[False])
                print(json.dumps({"what": f"{kind}: {what}", "ratio": round(ratios[-1], 4)}), flush=True)
            spread = [round(value, 3) for value in (min(ratios), max(ratios))]
            row = {"item": 9, "what": f"{kind}: {what}", "pairs": len(ratios)}
            median = round(statistics.median(ratios), 3)
            rows.append({**row, "median ratio": median, "lowest": spread[0], "highest": spread[1],
                         "bound": BOUNDS[kind]})  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    if place := os.environ.get("MPIFL_FAULTS_OUT"):
        Path(place).mkdir(parents=True, exist_ok=True)
        Path(place, "cost.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
