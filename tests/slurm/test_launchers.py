"""Every way to start ranks under SLURM, with every MPI that installs with pip: one run of all ranks, or exit code 2."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

from mpifl import open_run
from tests.mpi.conftest import ROOT
from tests.mpi.test_launchers import INTEL, LAUNCHERS, LIBRARIES, MPICH, OPEN_MPI, need, of, program_of
from tests.mpi.test_launchers import WORKS as WORKS_TOGETHER
from tests.slurm.test_slurm import pytestmark, slurm

__all__ = ["pytestmark", "slurm"]
WORKS = {("pmix", OPEN_MPI), ("pmix", INTEL), ("pmi2", MPICH), ("pmi2", INTEL)}


def attempt(slurm: dict[str, str], folder: Path, library: str, *start: str | Path) -> str:
    """Starts four ranks on two nodes in a new folder; what came of it."""
    folder.mkdir()
    env, words = {**slurm, "PYTHONPATH": str(ROOT), **of(LIBRARIES[library])}, [*start, *program_of(folder)]
    run = subprocess.run(words, env=env, cwd=folder, text=True, capture_output=True, timeout=120)
    ours = [line for line in run.stderr.splitlines() if "mpifl: " in line]
    if run.returncode == 0 and not ours:
        return f"{open_run(folder / 'run.h5').attrs['ranks']} ranks"
    if len(ours) == 1 and "4 processes were started" in ours[0] and not list(folder.iterdir()):
        code = 2 if run.returncode == 255 else run.returncode  # what Intel's mpiexec makes of it on several nodes
        return f"exit code {code}" + (", srun advised" if "srun --mpi=" in ours[0] else "")
    return f"{run.returncode}: {run.stderr}"


def test_srun_starts_one_run_of_all_ranks_or_ends_with_exit_code_2(slurm: dict[str, str], tmp_path: Path) -> None:
    """With each --mpi that this SLURM has, but the numbered ones of PMIx."""
    listed = subprocess.run(["srun", "--mpi=list"], env=slurm, text=True, capture_output=True)
    kinds = {"none", "pmi2", "pmix", "cray_shasta"} & set((listed.stdout + listed.stderr).split())
    assert kinds >= {"none", "pmi2", "pmix"}
    found, expected = {}, {}  # two ranks on each node: SLURM would start none beyond the host's cores
    for kind, library in itertools.product(sorted(kinds), LIBRARIES):
        need(LIBRARIES[library])
        folder = tmp_path / f"{kind}-{library}".replace(" ", "")
        found[kind, library] = attempt(slurm, folder, library, "srun", "-N2", "--ntasks-per-node=2", f"--mpi={kind}")
        expected[kind, library] = "4 ranks" if (kind, library) in WORKS else "exit code 2, srun advised"
    print(found)
    assert found == expected


def test_launchers_in_an_allocation(slurm: dict[str, str], tmp_path: Path) -> None:
    """`mpirun` and `mpiexec` start their ranks on the nodes of the allocation by themselves."""
    found, expected = {}, {}
    for launcher, library in itertools.product(LAUNCHERS, LIBRARIES):
        need(LAUNCHERS[launcher], LIBRARIES[library])
        folder = tmp_path / f"{launcher}-{library}".replace(" ", "")
        words = ("salloc", "--quiet", "-N2", "-n4", LAUNCHERS[launcher], "-n", "4")
        found[launcher, library] = attempt(slurm, folder, library, *words)
        expected[launcher, library] = "4 ranks" if (launcher, library) in WORKS_TOGETHER else "exit code 2"
    print(found)
    assert found == expected
