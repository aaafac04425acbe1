"""Creates a new run file under a temporary name, then renames it in one step."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5f, h5p

from mpifl.errors import ConfigError, error_text
from mpifl.objective import NO_STATE, ModuleState
from mpifl.runfile import checksums
from mpifl.runfile.checkpoint_folder import folder_of, sets
from mpifl.runfile.durable import temporary_name
from mpifl.runfile.reader import open_run
from mpifl.runfile.run_lock import check_not_written, is_locked, with_locks_if_any
from mpifl.runfile.tables import CHANGING, CHECKSUMS, CLIENTS, SCHEMA, TABLES

PAGE = 4096  # bytes: the kernel ends a write of a killed process only between two pages
MAX_ATTRIBUTES = 1024  # attributes kept in the object header, where one can be changed while others read


def now() -> str:
    """The time, ISO 8601 with microseconds and the offset from UTC."""
    return datetime.datetime.now().astimezone().isoformat(timespec="microseconds")


@contextlib.contextmanager
def new_file(path: Path, overwrite: bool, aside: Path | None = None) -> Iterator[h5py.File]:
    """An empty HDF5 file that gets the name `path` when the block succeeds, and is removed when it fails.

    aside: the name that the file of this path then gets.
    Raises ConfigError("output", ...) where `path` cannot be written, or exists and `overwrite` is false.
    """
    temporary = temporary_name(path)
    file = None
    try:
        refuse_existing(path, overwrite or aside is not None)
        make_folder(path)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # clearer errors than HDF5's
        file = _create(temporary)
        yield file
        if aside:
            _keep(path, aside)
        rename(temporary, path, overwrite or aside is not None)
    except OSError as error:
        _discard(file, temporary)
        raise _unwritable(path, error) from error
    except BaseException:
        _discard(file, temporary)
        raise


def _keep(path: Path, aside: Path) -> None:
    """Gives a file a second name, under which it stays when another one takes its place; renames it without links."""
    try:
        os.link(path, aside)
    except OSError:
        path.rename(aside)


def make_folder(path: Path) -> None:
    """Makes the folder of a run file where there is none. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError("output", path, f"cannot be written: {error_text(error)}", "a file that can be written")


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raises ConfigError if `path` is a directory, or it or checkpoints beside it exist and `overwrite` is false."""
    if path.is_dir():
        raise ConfigError("output", path, "this is a directory", "the name of a file")
    if not overwrite and os.path.lexists(path):
        raise ConfigError("output", path, "the file exists", remedy="choose another name, or overwrite=true")
    folder = folder_of(path)
    try:
        found = sets(folder)
    except OSError as error:
        raise ConfigError(
            "output", path, f"{folder.name} cannot be read: {error_text(error)}", "a readable folder"
        ) from error
    if found and not overwrite:
        wrong = f"{folder.name} holds checkpoints of a run whose file is missing"
        remedy = f"continue that run by mpifl resume {path}, choose another name, or overwrite=true"
        raise ConfigError("output", path, wrong, remedy=remedy)


def refuse_live(path: Path) -> None:
    """Raises ConfigError where a live run writes to this file, or its checkpoints beside it; may take seconds."""
    folder = folder_of(path)
    try:
        with open_run(path) as run:
            running, host = run.status == "running", run.host
    except ConfigError:  # the file may be anything
        running, host = False, None
        if is_locked(path):
            raise ConfigError(
                "output",
                path,
                "another process has locked the file",
                remedy="choose another name, or wait for that process",
            ) from None
    if running:
        check_not_written(path, "output", host)
    if not folder.is_symlink() and is_locked(folder):
        raise ConfigError("output", path, f"{folder.name} is still being written", "a run that has ended")


def rename(temporary: Path, path: Path, overwrite: bool) -> None:
    """Renames the file to `path` in one step; replaces another file only where `overwrite` is true."""
    if overwrite:
        os.replace(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        refuse_existing(path, overwrite)
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))  # no hard links here: claim the name, then take it
        os.replace(temporary, path)
        return
    temporary.unlink()


def spare_name(path: Path, why: str) -> Path:
    """A name that no file has, under which a run file is kept when another one takes its place."""
    names = (path.with_name(f"{path.name}.{why}{k or ''}") for k in count())
    return next(name for name in names if not os.path.lexists(name))


def _create(path: Path) -> h5py.File:
    shape = h5p.create(h5p.FILE_CREATE)
    shape.set_attr_phase_change(MAX_ATTRIBUTES, 0)
    # No header of a dataset lies across two pages: a kill would leave the half of a new header, with a wrong checksum.
    shape.set_file_space_strategy(h5f.FSPACE_STRATEGY_PAGE, False, 1)
    shape.set_file_space_page_size(PAGE)
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_LATEST, h5f.LIBVER_LATEST)
    access.set_cache(0, 0, 0, 0.0)  # no chunk cache: rows are in the file before the extent that covers them

    def create(lock: bool) -> h5py.File:
        access.set_file_locking(lock, True)
        return h5py.File(h5f.create(os.fsencode(path), h5f.ACC_TRUNC, fcpl=shape, fapl=access))

    return with_locks_if_any(create)


def _discard(file: h5py.File | None, temporary: Path) -> None:
    with contextlib.suppress(Exception):
        if file is not None:
            file.close()
    with contextlib.suppress(OSError):
        temporary.unlink()


class Start(NamedTuple):
    """What a run file holds from its start, or from the checkpoint that its run continues from."""

    attrs: Mapping[str, Any]  # root attributes (`tables.ATTRIBUTES`); `schema`, `started`, `id`, `session` are added
    clients: Mapping[str, Any]  # samples (n,), rank (n,), and rate (n,) where clients have one
    x: np.ndarray  # (d,) the model of `version`, stored until the final one replaces it
    layout: Sequence[tuple[str, tuple[int, ...]]]  # names and shapes of the parts of x
    version: int = 0
    states: Sequence[str] | None = None  # (n,) of the clients; None: all live
    module: ModuleState = NO_STATE  # what the model's `state_dict` has besides x
    best: bool = False  # whether the file keeps the best model as well


def create_datasets(file: h5py.File, start: Start) -> None:
    """Creates every attribute and dataset of the run file, and switches to SWMR mode."""
    clients = start.clients
    own = {"schema": SCHEMA, "started": now(), "id": secrets.token_hex(8), "session": secrets.token_hex(8)}
    for name, value in {**own, "resumed_from": 0, **start.attrs}.items():
        if name not in CHANGING:
            file.attrs[name] = "" if value is None else value
    for name, kind in CHANGING.items():
        first: Any = {"status": b"running", "finished": b""}.get(name, np.nan)
        file.attrs.create(name, first, dtype=h5_type(kind))
    for group, table in (*TABLES.items(), ("checksums", CHECKSUMS)):
        for name, column in table.columns.items():
            dtype = h5_type(column.dtype)
            file.create_dataset(f"{group}/{name}", (0,), dtype, chunks=(table.chunk,), maxshape=(None,))
    n = len(clients["samples"])
    rates = clients.get("rate")
    first_values = {
        "samples": clients["samples"],
        "rate": np.full(n, np.nan) if rates is None else rates,
        "rank": clients["rank"],
        "updates": np.zeros(n),
        "state": start.states or ["live"] * n,
        "on": np.full(n, np.nan),
    }
    for name, column in CLIENTS.columns.items():
        dtype = h5_type(column.dtype)
        file.create_dataset(f"clients/{name}", data=column.array(first_values[name]).astype(dtype), dtype=dtype)
    model = file.create_dataset("model/x", data=start.x)
    model.attrs["layout"] = json.dumps([[name, list(shape)] for name, shape in start.layout])
    model.attrs["version"] = np.int64(start.version)
    if start.best:
        file.create_dataset("model/best", data=start.x).attrs["evaluation"] = np.int64(-1)
    entries, constants = start.module
    file.create_dataset("model/constants", data=constants).attrs["entries"] = json.dumps(entries)
    checksums.append(file, checksums.of_start(file))
    file.swmr_mode = True
    file.flush()


def h5_type(dtype: str) -> Any:
    """The HDF5 type of a column: UTF-8 for strings."""
    return h5py.string_dtype("utf-8", int(dtype[1:])) if dtype.startswith("S") else np.dtype(dtype)


def abandon(file: h5py.File, descriptor: int) -> None:
    """Closes a file without writing to it, as a kill would: a regular close would mark it as complete."""
    with contextlib.suppress(Exception):
        if file:  # HDF5 writes to a substitute
            substitute = os.memfd_create("abandoned")
            os.dup2(substitute, descriptor)
            os.close(substitute)
        file.close()
