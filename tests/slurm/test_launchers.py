"""srun with every --mpi, with every MPI library that installs with pip: one run of all ranks, or exit code 2."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from mpifl import open_run
from tests.mpi.conftest import ROOT
from tests.mpi.test_launchers import INTEL, LIBRARIES, MPICH, OPEN_MPI
from tests.slurm.test_slurm import pytestmark, slurm  # noqa: F401 - a fixture

JOB = str(ROOT / "jobs" / "quickstart.yaml")
WORKS = {("pmix", OPEN_MPI), ("pmix", INTEL), ("pmi2", MPICH), ("pmi2", INTEL)}


def test_srun_starts_one_run_of_all_ranks_or_exits_with_2(slurm: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    wrong = []
    for kind, (library, path) in itertools.product(("none", "pmi2", "pmix"), LIBRARIES.items()):
        if path is not None and not path.exists():
            pytest.skip(f"{path.relative_to(ROOT)} is not there: make {path.relative_to(ROOT).parts[0]}/.done")
        folder = tmp_path / f"{kind}-{library}".replace(" ", "")
        folder.mkdir()
        env = {**slurm, "PYTHONPATH": str(ROOT)}
        if path is not None:
            env |= {"MPI4PY_LIBMPI": str(path), "LD_LIBRARY_PATH": str(path.parent)}
        words = ["srun", "-n", "2", f"--mpi={kind}", sys.executable, "-m", "mpifl", "run", JOB]
        job = ["problem.clients=4", "stop.time=0.2", "clock.mode=virtual", f"output={folder / 'run.h5'}"]
        run = subprocess.run([*words, *job], env=env, cwd=folder, text=True, capture_output=True, timeout=90)
        ours = [line for line in run.stderr.splitlines() if "mpifl: " in line]
        if (kind, library) in WORKS:
            good = run.returncode == 0 and not ours and open_run(folder / "run.h5").attrs["ranks"] == 2
        else:
            advice = f"srun --mpi={'pmix' if library == OPEN_MPI else 'pmi2'}"
            good = run.returncode == 2 and len(ours) == 1 and advice in ours[0] and not list(folder.iterdir())
        if not good:
            wrong.append((kind, library, run.returncode, run.stdout, run.stderr))
    assert not wrong
