"""Asynchronous and synchronous federated optimisation over MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpifl.storage import open_run

__all__ = ["__version__", "open_run"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Loads what needs h5py and pandas on first use: a rank that hosts clients imports mpifl and never uses it."""
    if name == "open_run":
        from mpifl.storage import open_run

        return open_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
