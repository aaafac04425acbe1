"""The run file, written during the run (`RunWriter`) and readable at any instant (`open_run`).

Names are imported at their first use: to import this package does not import h5py.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpifl.runfile.reader import Run, open_run
    from mpifl.runfile.writer import RunWriter

__all__ = ["Run", "RunWriter", "open_run"]

_MODULES = {"Run": "reader", "RunWriter": "writer", "open_run": "reader"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
