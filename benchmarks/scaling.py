"""Wall time of a virtual-clock job on 1 and on 2 worker ranks, in turn; the ratio's median, and that the bits agree.

python benchmarks/scaling.py [--job jobs/area/mnist-virtual.yaml] [--ranks 2 3] [--repeats 5] [key=value ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT, launcher

from mpifl import open_run


def run(ranks: int, arguments: list[str], path: Path) -> tuple[float, bytes]:
    """Seconds from the first message to the last event, and the final model's bytes."""
    command = [*launcher(ranks), "run_mpi.py", *arguments, f"output={path}", "overwrite=true"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    result = open_run(path)
    return result.attrs["wall_seconds"], result.model.tobytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="jobs/area/mnist-virtual.yaml")
    parser.add_argument("--ranks", type=int, nargs=2, default=[2, 3])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "overrides", nargs="*", default=["algorithm.local_steps=50", "stop.time=2", "evaluate.every=0.05"]
    )
    args = parser.parse_args()
    ratios, models = [], set()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.repeats):
            seconds = []
            for ranks in args.ranks:
                wall, model = run(ranks, [args.job, *args.overrides], Path(folder) / "run.h5")
                seconds.append(wall)
                models.add(model)
            ratios.append(seconds[1] / seconds[0])
            print(json.dumps({"ranks": args.ranks, "seconds": [round(s, 2) for s in seconds],
                              "ratio": round(ratios[-1], 3)}), flush=True)  # fmt: skip
    print(json.dumps({"median_ratio": round(statistics.median(ratios), 3), "same_bits": len(models) == 1}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
