"""Runs a job: `[mpirun -n R] python run_mpi.py [JOB.yaml] [key=value ...]`; without a JOB, jobs/quickstart.yaml."""

from __future__ import annotations

import os
import sys

from mpifl.__main__ import main

if __name__ == "__main__":
    sys.exit(main(default_job=os.path.join(os.path.dirname(__file__), "jobs", "quickstart.yaml")))
