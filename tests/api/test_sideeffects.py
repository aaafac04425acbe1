"""What a program that imports mpifl and calls it finds changed in its process afterwards: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mpifl.execution import THREAD_VARIABLES

ROOT = Path(__file__).parents[2]


def test_an_import_and_a_run_change_nothing_of_the_process() -> None:
    """Timer slack, environment, memory, garbage collector, signals, threads, generators and more."""
    environment = {key: value for key, value in os.environ.items() if key not in THREAD_VARIABLES}
    command = [sys.executable, str(ROOT / "benchmarks" / "sideeffects.py")]
    done = subprocess.run(
        command, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
