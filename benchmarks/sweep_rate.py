"""How many runs a minute `mpifl sweep` does on two cores, beside bare Python loops over the same jobs.

    python benchmarks/sweep_rate.py [--seconds 1] [--runs 16] [--repeats 3]

Each repeat computes the runs of a study three times into new folders: in one process and in two processes that call
`mpifl.run` in a loop, with the data loaded once (`keep_problem`), and by `mpifl sweep --processes 2`. The times are
those of the whole commands, imports and process starts included. Prints the medians, and the medians of each repeat's
ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mpifl
from mpifl.config.read import job_to_dict
from mpifl.studies.study import load_study

BASE = {
    "name": "base", "seed": 0,
    "problem": {"data": "digits", "clients": 16, "partition": {"name": "dirichlet", "alpha": 0.5}},
    "algorithm": {"name": "area", "step_size": 10},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}},
    "stop": {"time": 1}, "evaluate": {"every": 0.5},
}  # fmt: skip
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


def seconds_of(*commands: list[str]) -> float:
    """The wall time of commands that are started together (s)."""
    begin = time.perf_counter()
    processes = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for words in commands]
    codes = [process.wait(600) for process in processes]
    if any(codes):
        raise SystemExit(f"failed: {commands}")
    return time.perf_counter() - begin


def bare(study: Path, folder: Path, count: int) -> float:
    """The wall time of `count` processes that share the study's runs (s)."""
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
    found: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = {**BASE, "stop": {"time": virtual_seconds(args.seconds, folder)}}
        (folder / "base.yaml").write_text(json.dumps(base))
        study = folder / "study.yaml"
        study.write_text(json.dumps({"name": "rate", "job": "base.yaml", "axes": {}, "trials": args.runs}))
        for k in range(args.repeats):
            sweep = [sys.executable, "-m", "mpifl", "sweep", str(study), "--processes", "2", f"output={folder}/{k}"]
            found.append((bare(study, folder / f"{k}-1", 1), bare(study, folder / f"{k}-2", 2), seconds_of(sweep)))
            print(json.dumps({"one_s": found[-1][0], "two_s": found[-1][1], "sweep_s": found[-1][2]}), flush=True)
    one, two, sweep_ = (statistics.median(60 * args.runs / each for each in column) for column in zip(*found))
    print(json.dumps({
        "runs": args.runs, "seconds": args.seconds,
        "one_process_a_minute": round(one, 1), "two_processes_a_minute": round(two, 1),
        "sweep_a_minute": round(sweep_, 1),
        "sweep_to_one": round(statistics.median(a / c for a, _, c in found), 3),
        "sweep_to_two": round(statistics.median(b / c for _, b, c in found), 3),
        "two_to_one": round(statistics.median(a / b for a, b, _ in found), 3),
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
