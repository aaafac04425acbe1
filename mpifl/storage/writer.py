"""Writes the run file during the run.

The server loop only appends rows to buffers; a thread writes them twice a second, in an order that leaves the file
readable at every instant, a kill included. `check` raises the thread's errors to the loop.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpifl.errors import RunFailed
from mpifl.interpreter_turns import InterpreterTurns
from mpifl.storage import checksums
from mpifl.storage.checkpoint_rows import Rows
from mpifl.storage.checkpoint_set import folder_of, remove
from mpifl.storage.columns import append_values
from mpifl.storage.continuation import continue_file
from mpifl.storage.create import create_datasets, error_reason, new_file, now
from mpifl.storage.durable import sync_folder
from mpifl.storage.live import Lock, with_locks_if_any
from mpifl.storage.row_buffer import RowBuffer
from mpifl.storage.tables import CHANGING, CLIENTS, STATUSES, TABLES, ChecksumRow, Row, encode

WRITE_INTERVAL = 0.5  # s of wall time; also the heartbeat (the file's mtime) of a run that has no rows to write
ROWS_READ = 1 << 14  # rows read while the file is locked


class RunWriter:
    """The run file at `path`, with status "running" until `close`.

    attrs    root attributes (`tables.ATTRIBUTES`); `schema`, `started`, `id`, `session` are added
    clients  samples (n,), rank (n,), and rate (n,) where clients have one
    x0       (d,) first model, stored until the final one replaces it
    layout   names and shapes of the parts of x

    Raises ConfigError("output", ...) if the file cannot be made, or it or checkpoints beside it are there already and
    `overwrite` is false. With `overwrite` they are removed.

    id       of the run, the same after it was resumed
    session  of this writer, until the run is resumed again
    resumed_from  number of the checkpoint that it continues from; 0: none
    started, began, config   as in the file
    """

    id: str
    session: str
    resumed_from: int
    started: str
    began: float
    config: str
    client_on: Sequence[float] | None = None
    """(n,) fraction of the run that each client was on, set at the end"""
    on_rows: Sequence[Callable[[dict[str, dict[str, np.ndarray]]], None]] = ()
    """called by the thread, twice a second and at the end, with the new rows by table and column"""

    def __init__(
        self,
        path: str | Path,
        *,
        attrs: Mapping[str, Any],
        clients: Mapping[str, Any],
        x0: np.ndarray,
        layout: Sequence[tuple[str, tuple[int, ...]]],
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        with new_file(self.path, overwrite) as file:
            create_datasets(file, attrs, clients, np.asarray(x0), layout)
            remove(folder_of(self.path))  # a resume would take a set that remains if it found no run file
        self._begin(file)

    @classmethod
    def resumed(
        cls,
        path: str | Path,
        *,
        attrs: Mapping[str, Any],
        clients: Mapping[str, Any],
        rows: Iterable[Rows],
        states: Sequence[str],
        x: np.ndarray,
        version: int,
        layout: Sequence[tuple[str, tuple[int, ...]]],
        session: str | None,
        aside: Path | None = None,
    ) -> RunWriter:
        """Continues a run from a checkpoint in a new file at `path`.

        attrs    of the resuming process, and `id`, `started`, `began` and `resumed_from` of the run: the number of the
                 checkpoint; later ones are removed
        rows     blocks of rows that follow one another: all up to the checkpoint
        states   (n,) of the clients
        x        (d,) the model of `version`
        session  of the old file; None: it is missing or cannot be read
        aside    the name that an old file gets which cannot be read

        The new file replaces the old one in one step, durably. Raises ConfigError("run file", ...) if the old one
        has another session, ConfigError("checkpoint", ...) if rows cannot be read, ConfigError("output", ...) if the
        new one cannot be written; the old one then stays.
        """
        writer = cls.__new__(cls)
        writer.path = Path(path)
        new: dict[str, Any] = {"attrs": attrs, "clients": clients, "x": np.asarray(x), "layout": layout}
        checkpoint: dict[str, Any] = {"rows": rows, "states": states, "version": version}
        writer._begin(continue_file(writer.path, **new, **checkpoint, session=session, aside=aside))
        return writer

    def _begin(self, file: h5py.File) -> None:
        """Opens the columns of a new or continued file, and starts the thread."""
        self.id, self.session = str(file.attrs["id"]), str(file.attrs["session"])
        self.resumed_from = int(file.attrs["resumed_from"])
        self.started, self.config = str(file.attrs["started"]), str(file.attrs.get("config", ""))
        self.began = float(file.attrs["began"])
        self._file: h5py.File = file
        self._descriptor: int = file.id.get_vfd_handle()
        self._alive = Lock(self.path)
        self._columns = {name: [file[name][column] for column in table.columns] for name, table in TABLES.items()}
        self._written = {table: len(columns[0]) for table, columns in self._columns.items()}
        self._crc = checksums.running(file)
        # Rows that the thread has not taken, by table, and by type of the row.
        self._rows = {
            name: RowBuffer({name: column.dtype for name, column in table.columns.items()})
            for name, table in TABLES.items()
        }
        self._rows_of = {table.row: self._rows[name] for name, table in TABLES.items()}
        self._taken = dict(self._written)  # rows of each table that the thread has taken
        self._taking = threading.Lock()  # of `_rows` and `_taken`; never held while the file is written
        self._counts: np.ndarray = file["clients/updates"][...]
        self._states: list[tuple[int, str]] = []
        self._attrs: dict[str, float] = {}
        self._error: Exception | None = None
        self._turns = InterpreterTurns()
        self._closed = False
        self._lock = threading.Lock()  # the file's: the loop never waits for it
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="run file", daemon=True)
        self._thread.start()
        atexit.register(self._stop_thread)  # else a thread inside HDF5 blocks HDF5's own exit handler

    # -- called from the server loop: nothing here touches the file ----------------------------------------------------
    def append(self, row: Row) -> None:
        """Adds a row to its table. Called tens of thousands of times a second."""
        self._rows_of[type(row)].append(row)

    def extend(self, rows: Sequence[Row]) -> None:
        """Adds rows to the table of the first one, in one step: readers of a live file see all or none of them."""
        if rows:
            self._rows_of[type(rows[0])].extend(rows)

    def set_client_state(self, client: int, state: str) -> None:
        """Client `client` is now "live", "lost", ... (16 bytes)."""
        self._states.append((client, state))

    def set_attr(self, name: str, value: float) -> None:
        """Sets a numeric root attribute that changes after the start; KeyError for any other."""
        if CHANGING[name] != "f8":
            raise KeyError(name)
        self._attrs[name] = float(value)
        if name == "began":
            self.began = float(value)

    def counts(self) -> dict[str, int]:
        """Rows appended so far, by table, including those of the file that was resumed."""
        with self._taking:
            return {table: self._taken[table] + len(rows) for table, rows in self._rows.items()}

    def check(self) -> None:
        """Raises RunFailed if rows could not be written (disk full, file system gone). Called after every event."""
        if self._error is not None:
            raise RunFailed(f"writing {self.path} failed: {error_reason(self._error)}") from self._error
        self._turns.give()

    # -- the file ------------------------------------------------------------------------------------------------------
    def flush(self) -> None:
        """Writes all rows appended so far; returns when readers see them. Raises RunFailed."""
        self._try(self._write)
        self.check()

    def read(self, table: str, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows `start` to `stop` of a table, an array for each column; all were appended. Raises RunFailed.

        May be called from another thread than the loop's, and after `close`.
        """
        columns = TABLES[table].columns
        arrays = {name: np.empty(stop - start, column.dtype) for name, column in columns.items()}
        for first in range(start, stop, ROWS_READ):  # the lock is held briefly
            last = min(first + ROWS_READ, stop)
            block = self._try(partial(self._read, table, first, last))
            self.check()
            for name, array in arrays.items():
                array[first - start : last - start] = block[name]
        return arrays

    def check_not_replaced(self) -> None:
        """Raises RunFailed where the file was deleted, moved or replaced: another process resumed the run."""
        self._try(self._check_not_replaced)
        self.check()

    def close(self, status: str, x: np.ndarray | None = None, version: int | None = None) -> None:
        """Writes the remaining rows, the final model `x` (d,) (None: x0 stays), `finished` and `status`; closes.

        version  of x; None: the number of aggregations
        Raises RunFailed if the file is incomplete. A second call does nothing.
        """
        if self._closed:
            return
        if status not in STATUSES[1:]:
            raise ValueError(f"status={status}: one of {', '.join(STATUSES[1:])}")
        self._closed = True
        self._stop_thread()
        atexit.unregister(self._stop_thread)
        self._try(lambda: self._finish(status, x, version))
        if self._error is not None:
            self._abandon()
        self._alive.release()
        self.check()

    def _stop_thread(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while self._error is None and not self._stop.wait(WRITE_INTERVAL):
            with self._turns.working():
                self._try(self._write)

    def _try(self, what: Callable[[], Any]) -> Any:
        """Calls `what` with the file locked, unless an earlier call failed; keeps its error for `check`."""
        with self._lock:
            if self._error is None:
                try:
                    return what()
                except Exception as error:
                    self._error = error
        return None

    def _write(self) -> None:
        """Writes all rows, client states and attributes; what a row refers to is in the file before the row."""
        # Counted in this order and written in reverse, because the loop appends meanwhile.
        ready = {table: len(self._rows[table]) for table in reversed(TABLES)}
        blocks = []
        new: dict[str, dict[str, np.ndarray]] = {}
        for table in TABLES:
            if ready[table]:
                block, new[table] = self._write_rows(table, ready[table])
                blocks.append(block)
                self._file.flush()
        while self._states:
            client, state = self._states.pop(0)
            self._file["clients/state"][client] = encode(state, int(CLIENTS.columns["state"].dtype[1:]))
        while self._attrs:
            self._set(*self._attrs.popitem())
        checksums.append(self._file, blocks)  # last: a kill before it leaves rows without a checksum, which is no error
        self._file.flush()
        with contextlib.suppress(OSError):
            os.utime(self._descriptor)
        for call in self.on_rows:
            call(new)

    def _read(self, table: str, start: int, stop: int) -> dict[str, np.ndarray]:
        self._check_not_replaced()
        if self._file and self._written[table] < stop:
            self._write()
        if self._written[table] < stop:
            raise ValueError(f"{stop} rows of {table} were not appended")
        with contextlib.ExitStack() as stack:
            group = (self._file or stack.enter_context(open_closed(self.path, "r")))[table]
            return {name: group[name][start:stop] for name in TABLES[table].columns}

    def _check_not_replaced(self) -> None:
        check_not_replaced(self.path, os.fstat(self._descriptor) if self._file else self._closed_file)

    def _write_rows(self, table: str, count: int) -> tuple[ChecksumRow, dict[str, np.ndarray]]:
        """Writes the first `count` rows that were appended to a table; their checksum, and the rows by column."""
        with self._taking:  # the loop only appends: the rows that were counted are the first
            columns = self._rows[table].take(count)
            self._taken[table] += count
        start, arrays = self._written[table], list(columns.values())
        for column, array in zip(self._columns[table], arrays, strict=True):
            append_values(column, array)
        self._written[table] = start + count
        if table == "updates":
            self._counts += np.bincount(columns["client"], minlength=len(self._counts))
            self._file["clients/updates"][...] = self._counts
        self._crc[table] = checksums.crc(arrays, self._crc[table])
        return ChecksumRow(table, start, count, self._crc[table]), columns

    def _finish(self, status: str, x: np.ndarray | None, version: int | None) -> None:
        self._write()
        if self.client_on is not None:
            self._file["clients/on"][...] = self.client_on
        if x is not None:
            replace_model(self._file, x, self._written["aggregations"] if version is None else version)
        check_not_replaced(self.path, os.fstat(self._descriptor))
        self._file.flush()
        os.fsync(self._descriptor)  # the status is written when all that it speaks of is on the disk
        self._set("finished", now())
        self._set("status", status)
        self._file.flush()
        os.fsync(self._descriptor)
        self._file.close()
        finalize_attributes(self.path)
        self._closed_file = os.stat(self.path)

    def _abandon(self) -> None:
        """Leaves the file as a kill would, readable, with status "failed" where that can still be written."""
        with contextlib.suppress(Exception):  # attributes change in place, which may succeed on a full disk
            for table, datasets in self._columns.items():
                for dataset in datasets:  # rows of a failed write were not flushed: no reader has seen them
                    if len(dataset) > self._written[table]:
                        dataset.resize((self._written[table],))
            self._set("finished", now())
            self._set("status", "failed")
            self._file.flush()
        abandon(self._file, self._descriptor)

    def _set(self, name: str, value: float | str) -> None:
        """Changes an attribute in place, which keeps its type."""
        self._file.attrs.modify(name, encode(value, int(CHANGING[name][1:])) if isinstance(value, str) else value)


def replace_model(file: h5py.File, x: np.ndarray, version: int) -> None:
    """Overwrites the model in the file by `x` (d,) of `version`. Raises ValueError for another shape."""
    model = file["model/x"]
    if np.shape(x) != model.shape:
        raise ValueError(f"a model of shape {np.shape(x)} where {model.shape} is expected")
    x = np.asarray(x, model.dtype)
    for step in (-1, version):
        model.attrs.modify("version", np.int64(step))  # -1: a reader refuses the model
        file.flush()
        if step == -1:
            model[...] = x
            checksums.replace(file, ChecksumRow("model/x", 0, x.size, checksums.crc([x])))
            file.flush()


def check_not_replaced(path: Path, file: os.stat_result) -> None:
    """Raises OSError where `path` is no longer this file: it was deleted, moved or replaced."""
    if not os.path.samestat(os.stat(path), file):
        raise OSError(None, "the file was replaced")


def finalize_attributes(path: Path) -> None:
    """Turns the fixed-length text attributes of a closed run file into ordinary strings, by a copy that replaces it.

    The copy also gets the checksums of what changed until the end. h5py reads fixed-length text as bytes; users of
    plain h5py expect text. Where there is no room for a copy the file stays as it is.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        shutil.copyfile(path, temporary)
        with open_closed(temporary, "r+") as file:
            for name, kind in CHANGING.items():
                if kind != "f8":
                    file.attrs[name] = bytes(file.attrs[name]).decode()
            checksums.append(file, checksums.of_end(file))
        with temporary.open("rb") as raw:
            os.fsync(raw.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except (OSError, RuntimeError):  # h5py's for a full disk
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def open_closed(path: Path, mode: str) -> h5py.File:
    """A run file that is closed, opened again."""
    return with_locks_if_any(
        lambda lock: h5py.File(path, mode, libver="latest", locking="best-effort" if lock else False)
    )


def abandon(file: h5py.File, descriptor: int) -> None:
    """Closes a file without writing to it, as a kill would: a regular close would mark it as complete."""
    with contextlib.suppress(Exception):
        if file:  # HDF5 writes to a substitute
            substitute = os.memfd_create("abandoned")
            os.dup2(substitute, descriptor)
            os.close(substitute)
        file.close()
