"""Makes the run file of a resumed run anew, with the rows of the checkpoint, in the place of the old one."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpifl.errors import ConfigError
from mpifl.storage import checksums
from mpifl.storage.checkpoint_rows import Rows
from mpifl.storage.checkpoint_set import folder_of, undo
from mpifl.storage.columns import append_values
from mpifl.storage.create import create_datasets, new_file
from mpifl.storage.durable import sync_folder
from mpifl.storage.reader import UnreadableRun, open_run
from mpifl.storage.tables import TABLES

STALE = 60.0  # s since the last write, after which a temporary file has no owner


def continue_file(
    path: Path,
    *,
    attrs: Mapping[str, Any],
    clients: Mapping[str, Any],
    x: np.ndarray,
    layout: Sequence[tuple[str, tuple[int, ...]]],
    rows: Iterable[Rows],
    states: Sequence[str],
    version: int,
    session: str | None,
    aside: Path | None,
) -> h5py.File:
    """Replaces `path` in one step, durably, and returns the open new file; arguments as of `RunWriter.resumed`.

    Raises ConfigError("run file", ...) if the old file is not the one that was found before, ConfigError("checkpoint",
    ...) if rows cannot be read, ConfigError("output", ...) if the new file cannot be written. The old one then stays.
    """
    with new_file(path, overwrite=True) as file:
        _check_not_resumed(path, session)
        create_datasets(file, attrs, clients, x, layout, version, states)
        file.attrs.modify("began", np.float64(attrs.get("began", np.nan)))
        for block in rows:
            _append(file, block)
        for table in TABLES:
            checksums.append(file, checksums.of_table(file, table))
        file["clients/updates"][...] = _updates_by_client(path, file, len(states))
        file.flush()
        os.fsync(file.id.get_vfd_handle())
        if session is None and aside is not None:
            path.rename(aside)
    with contextlib.suppress(OSError):  # a set that remains has another session
        undo(folder_of(path), int(attrs["resumed_from"]))
    with contextlib.suppress(OSError):  # the next checkpoint syncs the folder again
        _remove_leftovers(path)
        sync_folder(path.parent)
    return file


def _check_not_resumed(path: Path, session: str | None) -> None:
    """Raises ConfigError where the run file is of another session than when it was looked at first."""
    found: str | None = None
    try:
        with open_run(path) as old:
            found = old.attrs.get("session", "")
    except UnreadableRun:
        if session is not None:
            raise
    if found != session:
        raise ConfigError("run file", path, "one that no other process has resumed; this one was resumed meanwhile")


def _append(file: h5py.File, rows: Rows) -> None:
    for table in TABLES:
        for name, values in rows[table].items():
            append_values(file[table][name], values)


def _updates_by_client(path: Path, file: h5py.File, n: int) -> np.ndarray:
    """(n,) updates of each client. Raises ConfigError for a client that does not exist."""
    clients = file["updates/client"][...]
    if clients.size and (clients.min() < 0 or clients.max() >= n):
        raise ConfigError("checkpoint", folder_of(path), f"rows of clients 0 to {n - 1}; this one has those of others")
    return np.bincount(clients, minlength=n)


def _remove_leftovers(path: Path) -> None:
    """Removes temporary files of resumes that were killed; a younger one may belong to a process that is alive."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}")
    for other in path.parent.iterdir():
        if name.fullmatch(other.name) and time.time() - other.stat().st_mtime > STALE:
            other.unlink()
