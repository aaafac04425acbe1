"""The content of a run file, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py

from mpifl import open_run
from mpifl.errors import ConfigError

ROWS = ("updates", "evaluations", "client_evaluations", "metrics", "aggregations", "logged", "events")


def contents(path: Path) -> dict[str, bytes]:
    """Every column of the tables, the final model and the clients' update counts."""
    with h5py.File(path) as file:
        names = [f"{table}/{column}" for table in ROWS for column in file[table]]
        names += ["model/x", "clients/samples", "clients/rate", "clients/updates"]
        return {name: file[name][()].tobytes() for name in names}


def consumed(path: Path) -> int:
    """The updates in a run's file so far; 0 before its clock has started."""
    try:
        with open_run(path) as run:
            return len(run.updates) if run.attrs["began"] > 0 else 0
    except ConfigError:
        return 0  # not there yet


def attribute(path: Path, name: str) -> Any:
    with h5py.File(path) as file:
        value = file.attrs[name]
        return value.decode() if isinstance(value, bytes) else value


def differing(one: Path, other: Path, *, but: tuple[str, ...] = ()) -> list[str]:
    """The differences between two run files, tables in `but` left out."""
    a, b = contents(one), contents(other)
    return [name for name in a if a[name] != b[name] and not name.startswith(but)]
