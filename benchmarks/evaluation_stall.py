"""Whether evaluation stalls aggregation: the server's longest pauses with and without evaluations, in turn.

    python benchmarks/evaluation_stall.py [--ranks 5] [--repeats 5] [key=value ...]

Runs the real-clock MNIST job for 5 s with an evaluation of all 70,000 rows every 0.1 s, and with one at the end alone.
A pause is the time between two consecutive updates that the server consumed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import ROOT, launcher

from mpifl import open_run


def pauses(ranks: int, arguments: list[str], path: Path) -> dict[str, float]:
    command = [*launcher(ranks), "run_mpi.py", "jobs/area/mnist-realtime.yaml", "stop.time=5", *arguments]
    command += [f"output={path}", "overwrite=true"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    run = open_run(path)
    gaps = np.diff(run.updates["time"])
    return {"updates": len(gaps) + 1, "evaluations": len(run.evaluations),
            "p99_ms": 1e3 * float(np.quantile(gaps, 0.99)), "max_ms": 1e3 * float(gaps.max())}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {"evaluate.every=0.1": [], "evaluate.every=1000": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.repeats):
            for override, found in rows.items():
                found.append(pauses(args.ranks, [override, *args.overrides], Path(folder) / "run.h5"))
    for override, found in rows.items():
        print(json.dumps({override: {key: round(statistics.median(f[key] for f in found), 2) for key in found[0]}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
