"""What the benchmarks that start `mpirun` share."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def launcher(ranks: int) -> list[str]:
    """The command that starts this Python on `ranks` ranks: the mpirun beside it, else the one on the PATH."""
    mpirun = Path(sys.executable).with_name("mpirun")
    return [str(mpirun if mpirun.exists() else shutil.which("mpirun")), "-n", str(ranks), sys.executable]
