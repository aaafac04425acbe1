"""What the benchmarks that start `mpirun` share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOUCH = "import numpy, sys; numpy.empty(int(sys.argv[1]), numpy.uint8)[::4096] = 1"


def launcher(ranks: int) -> list[str]:
    """The command that starts this Python on `ranks` ranks: the mpirun beside it, else the one on the PATH."""
    mpirun = Path(sys.executable).with_name("mpirun")
    return [str(mpirun if mpirun.exists() else shutil.which("mpirun")), "-n", str(ranks), sys.executable]


def without_aslr(ranks: int) -> list[str]:
    """What comes before `mpirun` so that ranks which share cores have identical address space layouts."""
    return ["setarch", "-R"] if ranks > len(os.sched_getaffinity(0)) else []


def one_thread_environment(*paths: Path) -> dict[str, str]:
    """The environment of a Python program that computes with one thread and imports from these folders."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **threads}


def touch_memory(size: int) -> None:
    """Writes to `size` bytes in another process, before something is measured.

    On a virtual machine the first write to a page that the machine has never used takes about 10 us, because its host
    has to find memory for it. Otherwise a time would depend on how much memory earlier programs had used.
    """
    subprocess.run([sys.executable, "-c", TOUCH, str(size)], check=True)
