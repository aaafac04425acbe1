"""Which launcher started a process, by its environment, and whether the MPI library belongs to it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from mpifl.transport import detection
from mpifl.transport.detection import Launch, LaunchError, check_library, check_size, find_launch, mpi_wanted, name_of

OPEN_MPI_5 = "Open MPI v5.0.11, package: Open MPI user@host Distribution"
OPEN_MPI_4 = "Open MPI v4.1.4, package: Debian OpenMPI"
MPICH = "MPICH Version:      5.0.2\nMPICH Release date: unreleased\nMPICH configure: --with-device=ch4:ofi"
MPICH_PMIX = MPICH + " --with-pmix=/usr"
INTEL = "Intel(R) MPI Library 2021.18.1 for Linux* OS\n"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.28.29 (ANL base 3.4a2)\n"

SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2", "PMIX_NAMESPACE": "prterun-a@1"}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "2"}
PMI2 = {**SRUN, "PMI_SIZE": "4", "PMI_RANK": "2"}
PMIX = {**SRUN, "PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.4.0"}
ONE = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
MISSING = {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
PALS = {"PALS_RANKID": "2", "PMI_SIZE": "4", "PMI_RANK": "2"}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, None),
        (MPIRUN, Launch("mpirun of Open MPI", 4, 2)),
        (HYDRA, Launch("mpiexec (PMI)", 4, 2)),
        ({"MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "2"}, Launch("mpiexec of Hydra", 4, 2)),
        ({"MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_RANK": "2"}, Launch("mpirun_rsh of MVAPICH", 4, 2)),
        ({"MVP_COMM_WORLD_SIZE": "4", "MVP_COMM_WORLD_RANK": "2"}, Launch("mpirun_rsh of MVAPICH", 4, 2)),
        ({"JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": "2"}, Launch("jsrun", 4, 2)),
        ({"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "2", "PMI_SIZE": "4", "PMI_RANK": "2"}, Launch("flux run", 4, 2)),
        (PALS, Launch("mpiexec of PALS", 4, 2)),
        ({"PALS_RANKID": "2"}, Launch("mpiexec of PALS", None, 2)),
        (SRUN | {"PALS_RANKID": "2"}, Launch("srun", 4, 2)),  # srun --mpi=cray_shasta
        (SRUN, Launch("srun", 4, 2)),
        (PMI2, Launch("srun", 4, 2)),
        (PMIX, Launch("srun", 4, 2)),
        ({"PMIX_RANK": "2", "PMIX_NAMESPACE": "other"}, Launch("a PMIx launcher", None, 2)),
        # the innermost launcher counts: one process of mpirun in an allocation of four tasks, or in one of its steps
        ({**SRUN, **MPIRUN, **ONE}, Launch("mpirun of Open MPI", 1, 0)),
        ({**SRUN, **HYDRA, "PMI_SIZE": "1", "PMI_RANK": "0"}, Launch("mpiexec (PMI)", 1, 0)),
        # a batch script is no step: SLURM sets the number of tasks of the allocation there, and runs the script once
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, None),
    ],
)  # fmt: skip
def test_the_innermost_launcher_is_found(environ: dict[str, str], launch: Launch | None) -> None:
    assert find_launch(environ) == launch
    assert mpi_wanted(environ) == (launch is not None and launch.size != 1)


@pytest.mark.parametrize(
    ("environ", "library", "refused"),
    [
        (MPIRUN, OPEN_MPI_5, False),
        (MPIRUN, OPEN_MPI_4, False),
        (MPIRUN, MPICH, True),
        (MPIRUN, INTEL, True),
        (HYDRA, OPEN_MPI_5, True),
        (HYDRA, MPICH, False),
        (HYDRA, INTEL, False),
        (SRUN, OPEN_MPI_5, True),
        (PMI2, OPEN_MPI_5, True),
        (PMI2, OPEN_MPI_4, False),  # may have been built for PMI-2: its size decides
        (PMI2, MPICH, False),
        (PMIX, OPEN_MPI_5, False),
        (PMIX, MPICH, True),
        (PMIX, MPICH_PMIX, False),
        (PALS, CRAY, False),
        ({}, OPEN_MPI_5, False),
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "1"}, MPICH, False),  # one process needs no launcher
        ({**MPIRUN, "MPIFL_MPI": "1"}, MPICH, False),
    ],
)
def test_a_library_that_cannot_start_under_the_launcher_is_refused(
    environ: dict[str, str], library: str, refused: bool
) -> None:
    with pytest.raises(LaunchError, match="4 processes were started") if refused else nullcontext():
        check_library(library, environ)


@pytest.mark.parametrize("environ", [MPIRUN, HYDRA, SRUN, PMI2, PMIX, PALS])
def test_a_size_other_than_the_launchers_is_refused(environ: dict[str, str]) -> None:
    check_size(4, MPICH, environ)
    with pytest.raises(LaunchError, match="4 processes were started, and MPI sees 1 of them"):
        check_size(1, MPICH, environ)
    check_size(1, MPICH, {**environ, "MPIFL_MPI": "1"})


def test_of_a_launcher_that_tells_no_size_every_process_but_the_first_is_refused() -> None:
    check_size(1, CRAY, {"PALS_RANKID": "0"})
    with pytest.raises(LaunchError, match="several processes were started"):
        check_size(1, CRAY, {"PALS_RANKID": "1"})
    check_size(4, CRAY, {"PALS_RANKID": "1"})
    check_size(8, MPICH, {"MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "2"})  # two hosts with four processes each


@pytest.mark.parametrize(
    ("library", "name", "srun"),
    [
        (OPEN_MPI_5, "Open MPI 5.0.11", "srun --mpi=pmix -n 4, or the mpirun of Open MPI 5.0.11"),
        (MPICH, "MPICH 5.0.2", "srun --mpi=pmi2 -n 4, or the mpiexec of MPICH 5.0.2"),
        (INTEL, "Intel(R) MPI Library 2021.18.1", "srun --mpi=pmi2 -n 4, or the mpiexec of Intel(R) MPI Library"),
        (CRAY, "MPI VERSION : CRAY MPICH version 8.1.28.29 (ANL base 3.4a2)", "srun --mpi=cray_shasta -n 4"),
    ],
)  # fmt: skip
def test_the_error_names_the_mpi_and_the_command_to_use(library: str, name: str, srun: str) -> None:
    assert name_of(library) == name
    with pytest.raises(LaunchError) as error:
        check_size(1, library, SRUN)
    assert f"use {srun}" in str(error.value)


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"MPIFL_MPI": "yes"}, "MPIFL_MPI=yes: no such value; expected 0 (never use MPI), 1 (always), or unset"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0", "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}, "MPI=cannot load MPI library"),
        (MISSING, ""),
        ({**MISSING, "MPI_LOCALRANKID": "1"}, ""),
        ({**MISSING, "MPI_LOCALRANKID": "0"}, "MPI=cannot load MPI library"),  # the first one's host may have it
        ({**MISSING, "OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, ""),
        ({**SRUN, "SLURM_PROCID": "3", "SLURM_LOCALID": "0", "MPIFL_MPI": "yes"}, ""),
    ],
)
def test_without_mpi_the_first_process_of_a_host_says_so_and_all_exit(environ: dict[str, str], line: str) -> None:
    words = [sys.executable, "-c", "import mpifl.cli as cli; cli.REPORT_TIME = 0.1; exit(cli.main(['--version']))"]
    run = subprocess.run(words, env={**os.environ, **environ}, text=True, capture_output=True, timeout=60)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"mpifl: {line}") if line else not run.stderr
    assert run.stderr.count("\n") == bool(line)


def test_an_mpi4py_that_was_built_for_one_mpi_is_told_from_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel has a module for each ABI, such as MPI.openmpi.cpython-311-x86_64-linux-gnu.so, a build a single one."""
    monkeypatch.setattr("mpi4py.__path__", [str(tmp_path)])
    (tmp_path / "MPI.mpich.cpython-311-x86_64-linux-gnu.so").touch()
    assert detection.build().endswith("(any MPI of the standard ABI)")
    (tmp_path / "MPI.cpython-311-x86_64-linux-gnu.so").touch()
    assert detection.build().endswith("(built for one MPI)")
