"""Which launcher started this process, and whether the MPI library in use belongs to it.

A launcher of another MPI than the library's starts N processes of which each believes that it is alone: N runs of one
job. The number of processes that the launcher's environment variables give is therefore compared with MPI's size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mpifl.errors import ConfigError

OVERRIDE = "MPIFL_MPI"  # 1: always use MPI, without comparing; 0: never
TUNE = "MPIFL_TUNE"  # 0: change no setting of MPI and of the process
VARIABLES = {  # what each environment variable may be
    OVERRIDE: "0 (never use MPI), 1 (always), or unset (as the launcher says)",
    TUNE: "0 (keep the settings of MPI and of the process), 1 or unset (those of mpifl)",
}
MPIRUN = "mpirun of Open MPI"
INNER = frozenset({"OMPI_COMM_WORLD_SIZE", "PMI_RANK"})  # variables of launchers that run inside a step
OPEN_MPI = "Open MPI|Spectrum MPI"  # Open MPI and what is built on it


class Launch(NamedTuple):
    """What the environment says about the launcher of this process; None: it does not say."""

    launcher: str
    size: int | None
    rank: int | None


class LaunchError(ConfigError):
    """MPI cannot be used as this process was started. Every process raises it; the first of them reports it.

    MPI may be missing on one host alone, where the first process is not: the first one of that host reports it as well.
    """

    @property
    def is_first(self) -> bool:
        """Whether this process has rank 0 in the launcher's count."""
        launch = find_launch()
        return launch is None or not launch.rank

    @property
    def is_first_of_host(self) -> bool:
        """Whether this process has rank 0 among those of its host."""
        return next((os.environ[name] for name in LOCAL_RANKS if name in os.environ), None) == "0"


# Name, variable with the number of processes, variable with the rank. An inner launcher comes before those that it can
# run inside of: mpirun in a SLURM step, SLURM's own step last.
LAUNCHERS = (
    (MPIRUN, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpirun_rsh of MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("mpirun_rsh of MVAPICH", "MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_RANK"),
    ("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("mpiexec of PALS", "PMI_SIZE", "PALS_RANKID"),
    ("mpiexec (PMI)", "PMI_SIZE", "PMI_RANK"),
    ("mpiexec of Hydra", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
LOCAL_RANKS = (  # variables with the rank among the processes of a host; inner launchers first
    "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_RANK",
    "FLUX_TASK_LOCAL_ID", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID", "SLURM_LOCALID",
)  # fmt: skip


def find_launch(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """The innermost launcher that started this process; None where the environment names none."""
    step = environ.get("SLURM_STEP_NUM_TASKS")
    if "PALS_RANKID" in environ and "SLURM_STEP_ID" in environ and INNER.isdisjoint(environ):
        return Launch("srun", _number(step), _number(environ.get("SLURM_PROCID")))  # srun --mpi=cray_shasta
    if "PMIX_RANK" in environ and "OMPI_COMM_WORLD_SIZE" not in environ:
        by_slurm = environ.get("PMIX_NAMESPACE", "").startswith("slurm")
        return Launch("srun" if by_slurm else "a PMIx launcher", _number(step), _number(environ["PMIX_RANK"]))
    for name, size, rank in LAUNCHERS:
        if rank in environ and (size in environ or size == "PMI_SIZE"):
            by_slurm = rank == "PMI_RANK" and "SLURM_STEP_ID" in environ and environ.get("PMI_SIZE") == step
            return Launch("srun" if by_slurm else name, _number(environ.get(size)), _number(environ[rank]))
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def mpi_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of several ranks, as far as the environment says.

    Raises LaunchError for an environment variable that is neither 0, 1 nor unset.
    """
    for name, expected in VARIABLES.items():
        if (value := environ.get(name, "")) not in ("", "0", "1"):
            raise LaunchError(name, value, "no such value", expected)
    if override := environ.get(OVERRIDE):
        return override == "1"
    launch = find_launch(environ)
    return launch is not None and launch.size != 1


def is_fault_tolerant() -> bool:
    """Whether this job's MPI keeps running when ranks die (Open MPI started with ULFM)."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") in ("1", "true")  # noqa: SIM112 - as Open MPI spells it


def check_library(library: str, environ: Mapping[str, str] = os.environ) -> None:
    """Checks before MPI starts that this library can start under the launcher: one that cannot may end the process.

    Args:
        library: What MPI_Get_library_version returns.

    Raises:
        LaunchError: It cannot.
    """
    launch = find_launch(environ)
    if launch is None or launch.size == 1 or environ.get(OVERRIDE) == "1":
        return
    open_mpi, by_pmix = re.search(OPEN_MPI, library), "PMIX_RANK" in environ
    if launch.launcher == MPIRUN and not open_mpi:
        raise _mismatch(launch, library, "they cannot connect to one another")
    if by_pmix and library.startswith("MPICH") and "pmix" not in library:
        raise _mismatch(launch, library, "this MPI was built without PMIx")
    if re.match(r"Open MPI v([5-9]|\d\d)", library) and not by_pmix:
        raise _mismatch(launch, library, "this MPI needs PMIx, which the launcher does not offer")


def check_size(size: int, library: str, environ: Mapping[str, str] = os.environ) -> None:
    """Compares MPI's number of ranks with the number of processes that the launcher started.

    Raises:
        LaunchError: They differ.
    """
    launch = find_launch(environ)
    if launch is None or environ.get(OVERRIDE) == "1":
        return
    if launch.launcher == "mpiexec of Hydra":  # only the number of its processes on this host is known
        alone = size == 1 and (launch.size or 1) > 1
    elif launch.size is None:
        alone = size == 1 and (launch.rank or 0) > 0
    else:
        alone = launch.size != size
    if alone:
        raise _mismatch(launch, library, f"MPI sees {size} of them")


def _mismatch(launch: Launch, library: str, found: str) -> LaunchError:
    size = "several" if launch.size is None else launch.size
    wrong, expected = f"{size} processes were started, and {found}", f"one that {name_of(library)} works with"
    remedy = f"use {advice(launch, library)}; {OVERRIDE}=0 lets each process run alone"
    return LaunchError("launcher", launch.launcher, wrong, expected, remedy)


def name_of(library: str) -> str:
    """The name and version of an MPI library, from the text of MPI_Get_library_version."""
    text = " ".join(library.split())
    found = re.match(r"(Open MPI) v([\w.]+)|(MPICH) Version: *([\w.]+)|(Intel\(R\) MPI Library) ([\w.]+)", text)
    if found:
        return " ".join(part for part in found.groups() if part)
    return text.split(",")[0][:60] or "this MPI"


def advice(launch: Launch, library: str) -> str:
    """The commands that start several ranks of this MPI library."""
    count = f"-n {launch.size}" if launch.size else "-n RANKS"
    if re.search(OPEN_MPI, library):
        kind, own = "pmix", "mpirun"
    elif "CRAY" in library.upper():
        kind, own = "cray_shasta", "mpiexec of PALS"
    else:
        kind, own = "pmi2", "mpiexec"
    of_this = f"the {own} of {name_of(library)}, with {count}"
    return f"srun --mpi={kind} {count}, or {of_this}" if launch.launcher == "srun" else of_this


def build() -> str:
    """The version of mpi4py, and whether it was built for one MPI or, as a wheel, loads the one that it finds."""
    import mpi4py

    own = any(any(Path(folder).glob("MPI.cpython-*.so")) for folder in mpi4py.__path__)
    return f"mpi4py {mpi4py.__version__} ({'built for one MPI' if own else 'any MPI of the standard ABI'})"
