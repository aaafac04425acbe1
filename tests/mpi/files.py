"""The content of a run file, byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
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


def folder_contents(folder: Path) -> dict[Path, bytes]:
    """What the files below a folder hold, by their path in it."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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


def all_differences(one: Path, other: Path, names: Iterable[str], **options: Any) -> dict[str, list[str]]:
    """The differences between NAME.h5 of two folders, for each name that has any."""
    found = {name: differing(one / f"{name}.h5", other / f"{name}.h5", **options) for name in names}
    return {name: what for name, what in found.items() if what}


def differing(one: Path, other: Path, *, but: tuple[str, ...] = ()) -> list[str]:
    """The differences between two run files, tables in `but` left out."""
    a, b = contents(one), contents(other)
    return [name for name in a if a[name] != b[name] and not name.startswith(but)]
