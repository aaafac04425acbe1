"""The configuration of a run: the dataclasses of a job, how they are read, checked and described."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Names of the module `job`, imported on first use: problems and algorithms use the plain types of this package."""
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(import_module("mpifl.config.job"), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
