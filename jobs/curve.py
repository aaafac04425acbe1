"""Draws the curve of a job's run beside its file, and prints what to do next.

    python jobs/curve.py [JOB.yaml] [key=value ...]

as the job was run: `make run` calls it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

import mpifl


def main(job: str = "jobs/quickstart.yaml", *overrides: str) -> int:
    path = Path(mpifl.load_job(job, *overrides).output)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    with mpifl.open_run(path) as run:
        accuracy = run.evaluations.test_accuracy.notna().any()
        run.plot("test_accuracy" if accuracy else "train_loss", ax=figure.subplots())
    figure.savefig(path.with_suffix(".png"), dpi=120)
    folder = Path(sys.executable).parent
    python = Path(".venv/bin") if folder == Path(".venv/bin").absolute() else folder
    print(f"{path.with_suffix('.png')}: the curve. Next:")
    print(f"  {python / 'mpifl'} show {path}")
    print(f"  {python / 'mpifl'} run {job} clock.mode=virtual stop.time=3 name=virtual")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
