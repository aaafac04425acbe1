"""The run file: written while the run goes on (`RunWriter`), read at any instant (`open_run`). And checkpoints.

The names are looked up when they are first used: whoever writes or reads a checkpoint alone needs no h5py.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpifl.storage.reader import Run, open_run
    from mpifl.storage.writer import RunWriter

__all__ = ["Run", "RunWriter", "open_run"]

HOMES = {"Run": "reader", "RunWriter": "writer", "open_run": "reader"}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
