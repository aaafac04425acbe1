"""Replaces the run file of a resumed run by a new one with the rows up to the checkpoint."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpifl.errors import ConfigError
from mpifl.storage import checksums
from mpifl.storage.checkpoint_set import folder_of, undo
from mpifl.storage.create import create_datasets, new_file
from mpifl.storage.durable import sync_folder
from mpifl.storage.reader import Run, open_run
from mpifl.storage.tables import TABLES

ROWS_AT_ONCE = 1 << 16  # rows copied at once
STALE = 60.0  # s since the last write, after which a temporary file has no owner


def continue_file(
    path: Path,
    *,
    attrs: Mapping[str, Any],
    clients: Mapping[str, Any],
    x: np.ndarray,
    layout: Sequence[tuple[str, tuple[int, ...]]],
    session: str | None,
    number: int,
    counts: Mapping[str, int],
    states: Sequence[str],
    version: int,
) -> h5py.File:
    """Replaces `path` in one step, durably, and returns the open new file; arguments as of `RunWriter.resumed`.

    Raises ConfigError("run file", ...) if the old file cannot be read, has too few rows or another
    `session`, ConfigError("output", ...) if the new one cannot be written. The old one then stays as it was.
    """
    with open_run(path) as old, new_file(path, overwrite=True) as file:
        if session is not None and old.attrs.get("session") != session:
            raise ConfigError("run file", path, "one that no other process has resumed; this one was resumed meanwhile")
        _check_enough_rows(old, counts, len(states))
        if wrong := old.checksums().wrong:  # the new file would have right checksums of wrong rows
            raise ConfigError("run file", path, f"an undamaged run file; {wrong}")
        kept = {name: old.attrs[name] for name in ("started", "id") if old.attrs.get(name)}
        create_datasets(file, {**attrs, **kept, "resumed_from": number}, clients, x, layout, version, states)
        file.attrs.modify("began", np.float64(old.attrs.get("began", np.nan)))
        for table in TABLES:
            _copy(old, file, table, counts[table])
            checksums.append(file, checksums.of_table(file, table))
        file["clients/updates"][...] = _updates_by_client(path, file, len(states))
        file.flush()
        os.fsync(file.id.get_vfd_handle())
    with contextlib.suppress(OSError):  # a set that remains has another session
        undo(folder_of(path), number)
    with contextlib.suppress(OSError):  # `durable` syncs the folder again
        _remove_leftovers(path)
        sync_folder(path.parent)
    return file


def _check_enough_rows(old: Run, counts: Mapping[str, int], n: int) -> None:
    """Raises ConfigError where the old file has fewer rows than the checkpoint, or not n clients."""
    for table in TABLES:
        if old.count(table) < counts[table]:
            found = f"this one has {old.count(table)}"
            raise ConfigError("run file", old.path, f"at least {counts[table]} {table}, as at the checkpoint; {found}")
    if len(old.clients) != n:
        raise ConfigError("run file", old.path, f"one of {n} clients; this one has {len(old.clients)}")


def _copy(old: Run, file: h5py.File, table: str, count: int) -> None:
    """Copies the first `count` rows of a table."""
    for name in TABLES[table].columns:
        column = file[table][name]
        for first in range(0, count, ROWS_AT_ONCE):
            stop = min(first + ROWS_AT_ONCE, count)
            values = old.rows(table, name, first, stop)
            if column.dtype.kind == "i" and values.dtype.kind == "f":  # NaN: an older version had no such column
                values = np.zeros(len(values), column.dtype)
            if values.dtype.kind != column.dtype.kind:
                raise ConfigError("run file", old.path, f"a run file; in this one {table}/{name} is {values.dtype}")
            column.resize((stop,))
            column[first:stop] = values


def _updates_by_client(path: Path, file: h5py.File, n: int) -> np.ndarray:
    """(n,) updates of each client. Raises ConfigError for a client that does not exist."""
    sums = np.zeros(n, np.int64)
    column = file["updates/client"]
    for first in range(0, len(column), ROWS_AT_ONCE):
        clients = column[first : first + ROWS_AT_ONCE]
        if clients.min() < 0 or clients.max() >= n:
            raise ConfigError("run file", path, f"one of clients 0 to {n - 1}; this one has updates of others")
        sums += np.bincount(clients, minlength=n)
    return sums


def _remove_leftovers(path: Path) -> None:
    """Removes temporary files of resumes that were killed; a younger one may belong to a process that is alive."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}")
    for other in path.parent.iterdir():
        if name.fullmatch(other.name) and time.time() - other.stat().st_mtime > STALE:
            other.unlink()
