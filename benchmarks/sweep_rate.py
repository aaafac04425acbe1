"""How many runs a minute `mpifl sweep` does on two cores, beside bare Python loops over the same jobs.

    python benchmarks/sweep_rate.py [--seconds 1] [--runs 16] [--repeats 3]

Each repeat computes the runs of a study three times into new folders: in one process and in two processes that call
`mpifl.run` in a loop, with the data loaded once (`keep_problem`), and by `mpifl sweep --processes 2`. The times are
those of the whole commands, imports and process starts included. Prints the medians, and the medians of each repeat's
ratios. Where other programs use the machine, the ratio of the CPU times tells more than those of the rates.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mpifl
from mpifl.config.read import job_to_dict
from mpifl.tools.studies.study import load_study

BASE = {
    "name": "base", "seed": 0,
    "problem": {"data": "digits", "clients": 16, "partition": {"name": "dirichlet", "alpha": 0.5}},
    "algorithm": {"name": "area", "step_size": 10},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}},
    "stop": {"time": 1}, "evaluate": {"every": 0.5},
}  # fmt: skip
PR_SET_CHILD_SUBREAPER = 36
LOOP = """
import json, sys, mpifl
with mpifl.keep_problem():
    for job in json.load(open(sys.argv[1])):
        mpifl.run(job).close()
"""


def virtual_seconds(seconds: float, folder: Path) -> float:
    """The virtual time of a run that takes `seconds` of wall time on a core of this machine."""
    with mpifl.keep_problem():
        mpifl.run(BASE, output=folder / "first.h5").close()
        begin = time.perf_counter()
        mpifl.run(BASE, output=folder / "short.h5").close()
        short = time.perf_counter() - begin
        begin = time.perf_counter()
        mpifl.run(BASE, "stop.time=11", output=folder / "long.h5").close()
        each = (time.perf_counter() - begin - short) / 10
    return max(0.5, 1 + (seconds - short) / each)


def seconds_of(*commands: list[str]) -> tuple[float, float]:
    """The wall time of commands that are started together, and the CPU time of all their processes (s)."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    processes = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for words in commands]
    codes = [process.wait(600) for process in processes]
    if any(codes):
        raise SystemExit(f"failed: {commands}")
    wall = time.perf_counter() - begin
    with contextlib.suppress(ChildProcessError):  # this process inherits what the commands have left running
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bare(study: Path, folder: Path, count: int) -> tuple[float, float]:
    """The wall and the CPU time of `count` processes that share the study's runs (s)."""
    runs = load_study(study, [f"output={folder}"]).runs
    commands = []
    folder.mkdir()
    for k in range(count):
        jobs = folder / f"{k}.json"
        jobs.write_text(json.dumps([job_to_dict(run.job) for run in runs[k::count]]))
        commands.append([sys.executable, "-c", LOOP, str(jobs)])
    return seconds_of(*commands)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="wall time of a run on one core")
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    found: list[tuple[float, ...]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = {**BASE, "stop": {"time": virtual_seconds(args.seconds, folder)}}
        (folder / "base.yaml").write_text(json.dumps(base))
        study = folder / "study.yaml"
        study.write_text(json.dumps({"name": "rate", "job": "base.yaml", "axes": {}, "trials": args.runs}))
        for k in range(args.repeats):
            sweep = [sys.executable, "-m", "mpifl", "sweep", str(study), "--processes", "2", f"output={folder}/{k}"]
            one, two = bare(study, folder / f"{k}-1", 1), bare(study, folder / f"{k}-2", 2)
            found.append((one[0], two[0], *(own := seconds_of(sweep)), two[1]))
            print(json.dumps({"one_s": one[0], "two_s": two[0], "sweep_s": own[0], "two_cpu_s": two[1],
                              "sweep_cpu_s": own[1]}), flush=True)  # fmt: skip

    def median(ratio: Callable[[float, float, float, float, float], float]) -> float:
        return round(statistics.median(ratio(*each) for each in found), 3)

    print(json.dumps({
        "runs": args.runs, "seconds": args.seconds,
        "one_process_a_minute": median(lambda one, two, sweep, cpu, cpu2: 60 * args.runs / one),
        "two_processes_a_minute": median(lambda one, two, sweep, cpu, cpu2: 60 * args.runs / two),
        "sweep_a_minute": median(lambda one, two, sweep, cpu, cpu2: 60 * args.runs / sweep),
        "sweep_to_one": median(lambda one, two, sweep, cpu, cpu2: one / sweep),
        "sweep_to_two": median(lambda one, two, sweep, cpu, cpu2: two / sweep),
        "two_to_one": median(lambda one, two, sweep, cpu, cpu2: one / two),
        "cpu_of_two_to_sweep": median(lambda one, two, sweep, cpu, cpu2: cpu2 / cpu),
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
