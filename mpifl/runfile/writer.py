"""Writes the run file during the run, anew or from a checkpoint.

The server loop appends rows to lists; a thread writes them twice a second, in an order that leaves the file readable at
every instant, a kill included. `check` raises the thread's errors to the loop.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpifl.errors import ConfigError, RunFailed, error_text
from mpifl.interpreter_turns import InterpreterTurns
from mpifl.runfile import checksums
from mpifl.runfile.checkpoint_folder import folder_of, remove, undo
from mpifl.runfile.create import Start, abandon, create_datasets, new_file, now
from mpifl.runfile.durable import sync_folder, temporary_name
from mpifl.runfile.reader import UnreadableRun, open_run
from mpifl.runfile.run_lock import Lock, is_locked, with_locks_if_any
from mpifl.runfile.tables import CHANGING, CLIENTS, STATUSES, TABLES, ChecksumRow, Row, RowBlock, append_rows, encode

WRITE_INTERVAL = 0.5  # s of wall time; also the heartbeat (the file's mtime) of a run that has no rows to write
STALE_AGE = 60.0  # s since the last write, after which a temporary file has no owner
UNLOCKED_AGE = 1.0  # the same (s) for one that no process has locked


class RunWriter:
    """The run file at `path`, with status "running" until `close`.

    Raises ConfigError("output", ...) if the file cannot be made, or it or checkpoints beside it are there already and
    `overwrite` is false. With `overwrite` they are removed; with `aside` the file is kept under that name.

    id       identifies the run, also after it was resumed
    session  identifies this writer: a resume draws another one
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
    best_model: tuple[np.ndarray, int] | None = None
    """the best model (d,) and its row of /evaluations, set at the end"""
    on_rows: Sequence[Callable[[dict[str, dict[str, np.ndarray]]], None]] = ()
    """called by the thread, twice a second and at the end, with the new rows by table and column"""

    def __init__(self, path: str | Path, start: Start, overwrite: bool = False, aside: Path | None = None) -> None:
        self.path = Path(path)
        with new_file(self.path, overwrite, aside) as file:
            create_datasets(file, start)
            remove(folder_of(self.path))  # a resume would take a set that remains if it found no run file
        self._begin(file)

    @classmethod
    def resumed(
        cls, path: str | Path, start: Start, rows: Iterable[RowBlock], session: str | None, aside: Path | None = None
    ) -> RunWriter:
        """Continues a run from a checkpoint in a new file, which replaces the one at `path` in one step, durably.

        start    its attributes are those of the resuming process, and `id`, `started`, `began` and `resumed_from` of
                 the run: the number of the checkpoint; later ones are removed
        rows     blocks of rows that follow one another: all up to the checkpoint
        session  of the old file; None: it is missing or cannot be read
        aside    the name that the old file gets, where it is kept

        Raises ConfigError("run file", ...) if the old file is not of that session, ConfigError("checkpoint", ...) if
        rows cannot be read, ConfigError("output", ...) if the new file cannot be written; the old one then stays.
        """
        writer = cls.__new__(cls)
        writer.path = path = Path(path)
        with new_file(path, overwrite=True, aside=aside) as file:
            _check_not_resumed(path, session)
            create_datasets(file, start)
            file.attrs.modify("began", np.float64(start.attrs.get("began", np.nan)))
            for block in rows:
                for table in TABLES:
                    append_rows(file[table], block[table])
            for table in TABLES:
                checksums.append(file, checksums.of_table(file, table))
            file["clients/updates"][...] = _updates_by_client(path, file, len(start.clients["samples"]))
            file.flush()
            os.fsync(file.id.get_vfd_handle())
        with contextlib.suppress(OSError):  # a set that remains has another session
            undo(folder_of(path), int(start.attrs["resumed_from"]))
        with contextlib.suppress(OSError):  # the next checkpoint syncs the folder again
            sync_folder(path.parent)
        writer._begin(file)
        return writer

    def _begin(self, file: h5py.File) -> None:
        """Takes over a new or continued file, and starts the thread."""
        self.id, self.session = str(file.attrs["id"]), str(file.attrs["session"])
        self.resumed_from = int(file.attrs["resumed_from"])
        self.started, self.config = str(file.attrs["started"]), str(file.attrs.get("config", ""))
        self.began = float(file.attrs["began"])
        self._file: h5py.File = file
        self._descriptor: int = file.id.get_vfd_handle()
        self._alive = Lock(self.path)
        with contextlib.suppress(OSError):
            _remove_leftovers(self.path)
        self._written = {name: len(file[name][next(iter(table.columns))]) for name, table in TABLES.items()}
        self._crc = checksums.running(file)
        self._rows: dict[str, list[Row]] = {name: [] for name in TABLES}  # rows that the thread has not taken
        self._rows_of = {table.row: self._rows[name] for name, table in TABLES.items()}  # the same lists
        self._taken = dict(self._written)  # rows of each table that the thread has taken
        self._taking = threading.Lock()  # guards `_rows` and `_taken`; never held while the file is written
        self._counts: np.ndarray = file["clients/updates"][...]
        self._states: list[tuple[int, str]] = []
        self._attrs: dict[str, float] = {}
        self._error: Exception | None = None
        self._turns = InterpreterTurns()
        self._closed = False
        self._lock = threading.Lock()  # guards the file; the loop waits for it in `flush` and `close` alone
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="run file", daemon=True)
        self._thread.start()
        atexit.register(self._stop_thread)  # else a thread inside HDF5 blocks HDF5's own exit handler

    # -- called from the server loop: nothing here touches the file ----------------------------------------------------
    def append(self, row: Row) -> None:
        """Adds a row to its table."""
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
        """Lets the writing thread run if it waits; called after each event. RunFailed: rows were not written."""
        if self._error is not None:
            raise RunFailed(f"writing {self.path} failed: {error_text(self._error)}") from self._error
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
        rows: dict[str, np.ndarray] = self._try(partial(self._read, table, start, stop))
        self.check()
        return rows

    def check_not_replaced(self) -> None:
        """Raises RunFailed where the file was deleted, moved or replaced: another process resumed the run."""
        self._try(self._check_not_replaced)
        self.check()

    def close(self, status: str, x: np.ndarray | None = None) -> None:
        """Writes the remaining rows, the final model `x` (d,) (None: x0 stays), `finished` and `status`; closes.

        Raises RunFailed if the file is incomplete. A second call does nothing.
        """
        if self._closed:
            return
        if status not in STATUSES[1:]:
            raise ValueError(f"status={status}: one of {', '.join(STATUSES[1:])}")
        self._closed = True
        self._stop_thread()
        atexit.unregister(self._stop_thread)
        self._try(lambda: self._finish(status, x))
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
            self._file["clients/state"][client] = CLIENTS.columns["state"].array([state])[0]
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
            group = (self._file or stack.enter_context(_open_closed(self.path, "r")))[table]
            return {name: group[name][start:stop] for name in TABLES[table].columns}

    def _check_not_replaced(self) -> None:
        """Raises OSError where `path` is no longer this file: it was deleted, moved or replaced."""
        if not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor) if self._file else self._closed_file):
            raise OSError(None, "the file was replaced")

    def _write_rows(self, table: str, count: int) -> tuple[ChecksumRow, dict[str, np.ndarray]]:
        """Writes the first `count` rows that were appended to a table; their checksum, and the rows by column."""
        with self._taking:
            rows = self._rows[table][:count]
            del self._rows[table][:count]
            self._taken[table] += count
        columns, start = TABLES[table].arrays(rows), self._written[table]
        append_rows(self._file[table], columns)
        self._written[table] = start + count
        if table == "updates":
            self._counts += np.bincount(columns["client"], minlength=len(self._counts))
            self._file["clients/updates"][...] = self._counts
        self._crc[table] = checksums.crc(columns.values(), self._crc[table])
        return ChecksumRow(table, start, count, self._crc[table]), columns

    def _finish(self, status: str, x: np.ndarray | None) -> None:
        self._write()
        if self.client_on is not None:
            self._file["clients/on"][...] = self.client_on
        if x is not None:
            _replace_model(self._file, "x", x, "version", self._written["aggregations"])
        if self.best_model:
            _replace_model(self._file, "best", self.best_model[0], "evaluation", self.best_model[1])
        self._check_not_replaced()
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
            for table, rows in self._written.items():
                for column in self._file[table].values():  # rows of a failed write: no reader has seen them
                    if len(column) > rows:
                        column.resize((rows,))
            self._set("finished", now())
            self._set("status", "failed")
            self._file.flush()
        abandon(self._file, self._descriptor)

    def _set(self, name: str, value: float | str) -> None:
        """Changes an attribute in place, which keeps its type."""
        self._file.attrs.modify(name, encode(value, int(CHANGING[name][1:])) if isinstance(value, str) else value)


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
        raise ConfigError(
            "run file",
            path,
            "another process has resumed the run meanwhile",
            remedy="resume it again when that has ended",
        )


def _updates_by_client(path: Path, file: h5py.File, n: int) -> np.ndarray:
    """(n,) updates of each client. Raises ConfigError for a client that does not exist."""
    clients = file["updates/client"][...]
    if clients.size and (clients.min() < 0 or clients.max() >= n):
        raise ConfigError(
            "checkpoint", folder_of(path), "it has rows of other clients", f"rows of clients 0 to {n - 1}"
        )
    return np.bincount(clients, minlength=n)


def _remove_leftovers(path: Path) -> None:
    """Removes temporary files of processes that were killed: a live one has locked its own, but for an instant."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}")
    for other in path.parent.iterdir():
        if name.fullmatch(other.name):
            age = time.time() - other.stat().st_mtime
            if age > STALE_AGE or (age > UNLOCKED_AGE and is_locked(other) is False):
                other.unlink()


def _replace_model(file: h5py.File, name: str, x: np.ndarray, attribute: str, number: int) -> None:
    """Overwrites a model by `x` (d,), and the number in its attribute. Raises ValueError for another shape."""
    model = file[f"model/{name}"]
    if np.shape(x) != model.shape:
        raise ValueError(f"a model of shape {np.shape(x)} where {model.shape} is expected")
    x = np.asarray(x, model.dtype)
    model.attrs.modify(attribute, np.int64(-1))  # a reader refuses the model
    file.flush()
    model[...] = x
    checksums.replace(file, ChecksumRow(f"model/{name}", 0, x.size, checksums.crc([x])))
    file.flush()
    model.attrs.modify(attribute, np.int64(number))
    file.flush()


def finalize_attributes(path: Path) -> None:
    """Turns the fixed-length text attributes of a closed run file into ordinary strings, by a copy that replaces it.

    The copy also gets the checksums of what changed until the end. h5py reads fixed-length text as bytes; users of
    plain h5py expect text. Where there is no room for a copy the file stays as it is.
    """
    temporary = temporary_name(path)
    try:
        shutil.copyfile(path, temporary)
        with _open_closed(temporary, "r+") as file:
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


def _open_closed(path: Path, mode: str) -> h5py.File:
    """A run file that is closed, opened again."""
    return with_locks_if_any(
        lambda lock: h5py.File(path, mode, libver="latest", locking="best-effort" if lock else False)
    )
