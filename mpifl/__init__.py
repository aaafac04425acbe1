"""Asynchronous and synchronous federated optimisation over MPI: `run` a job, `open_run` what it wrote."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if os.environ.get("OMPI_MCA_mpi_ft_enable") in ("1", "true"):  # noqa: SIM112 - as Open MPI spells it
    # Open MPI's MPI_Finalize waits for all ranks, at times for dead ones too (its issue 11404); ours have sent their
    # last message by then. It reads this when it starts, which may be before a run.
    os.environ.setdefault("OMPI_MCA_async_mpi_finalize", "1")
if os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "") == os.environ.get("OMPI_COMM_WORLD_SIZE"):
    # All ranks are on one host, and need no component for libfabric's networks. Open MPI 5 sleeps for a second when it
    # closes this one, which is during its start where there is no such network.
    os.environ.setdefault("OMPI_MCA_btl", "^ofi")
if "mpi4py.MPI" not in sys.modules:
    # On one host Open MPI 5 sends messages up to this size (bytes) through memory that both ranks map; the receiver
    # reads longer ones from the sender's memory, by system calls. Its default is 4,096. 32 KiB of vectors fit in this.
    os.environ.setdefault("OMPI_MCA_btl_sm_eager_limit", "33792")

if TYPE_CHECKING:
    from mpifl.analysis.run import Run, Runs
    from mpifl.api import (
        export_run,
        load_job,
        load_problem,
        load_study,
        open_run,
        open_runs,
        replay,
        resume,
        run,
        sweep,
    )  # fmt: skip
    from mpifl.config.job import Job
    from mpifl.errors import ConfigError, RunFailed
    from mpifl.execution import keep_problem
    from mpifl.studies.study import Study
    from mpifl.version import __version__

__all__ = [
    "ConfigError",
    "Job",
    "Run",
    "RunFailed",
    "Runs",
    "Study",
    "__version__",
    "export_run",
    "keep_problem",
    "load_job",
    "load_problem",
    "load_study",
    "open_run",
    "open_runs",
    "replay",
    "resume",
    "run",
    "sweep",
]

_MODULES = {
    "ConfigError": "mpifl.errors",
    "Job": "mpifl.config.job",
    "Run": "mpifl.analysis.run",
    "RunFailed": "mpifl.errors",
    "Runs": "mpifl.analysis.run",
    "Study": "mpifl.studies.study",
    "__version__": "mpifl.version",
    "keep_problem": "mpifl.execution",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on first use: importing mpifl costs nothing, and a client rank needs no h5py or pandas."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES.get(name, "mpifl.api")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
