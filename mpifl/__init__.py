"""Asynchronous and synchronous federated optimisation over MPI: `run` a job, `open_run` what it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpifl.api import (
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
    from mpifl.tools.analysis.run import Run, Runs
    from mpifl.tools.export.files import export_run
    from mpifl.tools.studies.study import Study
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
    "Run": "mpifl.tools.analysis.run",
    "RunFailed": "mpifl.errors",
    "Runs": "mpifl.tools.analysis.run",
    "Study": "mpifl.tools.studies.study",
    "__version__": "mpifl.version",
    "export_run": "mpifl.tools.export.files",
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
