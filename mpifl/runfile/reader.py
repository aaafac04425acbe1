"""Reads a run file at any instant: finished, being written, or left behind by a killed run."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import h5py
import numpy as np
from h5py import h5f, h5p
from h5py._objects import phil

from mpifl.errors import ConfigError, error_text
from mpifl.objective import NO_STATE, ModuleState, StateEntry
from mpifl.runfile.checksums import Coverage, plain
from mpifl.runfile.checksums import check as check_checksums
from mpifl.runfile.run_lock import with_locks_if_any
from mpifl.runfile.tables import CLIENTS, SCHEMA, TABLES, Column
from mpifl.runfile.validate import check
from mpifl.safe_hdf5 import Refused, check_heaps, check_sizes, datasets, read_attribute
from mpifl.safe_input import open_regular, parse_json, parse_yaml, printable

if TYPE_CHECKING:
    from pandas import DataFrame

MAGIC = b"\x89HDF\r\n\x1a\n"
MAX_ATTEMPTS = 20  # attempts to open a file, which may be between two writes that belong together
OPEN_INTERVAL = 0.05  # s between two attempts
HEARTBEAT_TIMEOUT = 10.0  # s without a write after which a run is taken for dead; a live one writes twice a second
MIN_ATTEMPTS = 4  # minimum number of attempts, however slow they are
MAX_ATTEMPTS_SECONDS = 1.5  # s after which no further attempt is made
MAX_SECONDS = 1e18  # of a time in a file: sums and differences stay finite, and figures have an axis
MAX_METRICS = 20  # metrics that become columns of the evaluations; a file may come from anywhere
METADATA_ATTEMPTS = 25  # the pauses between them add up to 2**25 ns


class UnreadableRun(ConfigError):
    """There is no run file, or it is damaged."""


class DamagedRun(UnreadableRun):
    """The run file is an HDF5 file, and damaged."""


def open_run(path: str | Path) -> Run:
    """The run file at `path`. Raises ConfigError("run file", ...) where there is none or it cannot be read."""
    return Run(path)


class RunTables:
    """The tables of a run file, or of several, as pandas frames."""

    def _table(self, table: str) -> DataFrame:
        raise NotImplementedError

    @property
    def updates(self) -> DataFrame:
        """One row for each update, in order; columns as in `mpifl.runfile.tables.UpdateRow`."""
        return self._table("updates")

    @property
    def aggregations(self) -> DataFrame:
        """One row for each aggregation; columns as in `mpifl.runfile.tables.AggregationRow`."""
        return self._table("aggregations")

    @property
    def logged(self) -> DataFrame:
        """One row for each number that the method logs; columns as in `mpifl.runfile.tables.LoggedRow`. The frames of
        updates, aggregations and evaluations have a column for each name as well, with NaN where none was logged; that
        of an evaluation has the last number before it."""
        return self._table("logged")

    @property
    def evaluations(self) -> DataFrame:
        """One row for each evaluation; columns as in `mpifl.runfile.tables.EvaluationRow`, then one for each metric of
        `evaluate.metrics`, under its name in the job, and one for each number that the method logs."""
        return self._table("evaluations")

    @property
    def client_evaluations(self) -> DataFrame:
        """One row for each evaluation and client, if the job has `evaluate.clients`; columns as in
        `mpifl.runfile.tables.ClientEvaluationRow`."""
        return self._table("client_evaluations")

    @property
    def metrics(self) -> DataFrame:
        """One row for each evaluation and metric of `evaluate.metrics`; columns as in
        `mpifl.runfile.tables.MetricRow`."""
        return self._table("metrics")

    @property
    def events(self) -> DataFrame:
        """One row for each event; columns as in `mpifl.runfile.tables.EventRow`."""
        return self._table("events")

    @property
    def clients(self) -> DataFrame:
        """One row for each client; columns as in `mpifl.runfile.tables.ClientRow`."""
        return self._table("clients")


class Run(RunTables):
    """A run file, as it was when it was opened or last refreshed; a context manager.

    Attributes:
        path: The run file.
        attrs: The root attributes: plain strings, numbers and lists.
        open_ended: Whether the file was never closed: the run is running, or was killed.
    """

    path: Path
    attrs: dict[str, Any]
    open_ended: bool

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: h5py.File | None = None
        self.refresh()

    def refresh(self) -> None:
        """Reads the file again. Raises ConfigError as `open_run` does."""
        self.close()
        begin = time.monotonic()
        for attempt in range(MAX_ATTEMPTS):
            try:
                self._file, self.open_ended = _open(self.path)
                self._read()
                return
            except Exception as error:  # h5py may raise anything for a file that is damaged
                closed = self._file is not None and not self.open_ended  # the file does not change any more
                self.close()
                if isinstance(error, ConfigError):
                    raise
                if isinstance(error, Refused):
                    raise _damaged(self.path, str(error), "a run file as mpifl writes it") from error
                slow = attempt + 1 >= MIN_ATTEMPTS and time.monotonic() - begin > MAX_ATTEMPTS_SECONDS
                if closed or slow or attempt + 1 == MAX_ATTEMPTS or not self.path.exists():
                    wrong = f"{'truncated' if 'truncated' in str(error) else 'cannot be read'}: {error}"
                    raise _damaged(self.path, wrong, "a complete run file") from error
            time.sleep(OPEN_INTERVAL)

    def _read(self) -> None:
        file = self._open_file
        if "schema" not in file.attrs:
            raise _bad(self.path, "this is another HDF5 file", "a run file of mpifl")
        # Before anything is read; tables that refer to others first, so that what they refer to is there.
        opened = datasets(file, ["checksums", *reversed(TABLES)])
        schema = plain(read_attribute(file, "schema"))
        if isinstance(schema, int) and schema > SCHEMA:
            wrong, expected = f"it has schema {schema}", f"a run file of schema {SCHEMA} or older"
            raise ConfigError("run file", self.path, wrong, expected, "update mpifl")
        self.attrs = {name: plain(read_attribute(file, name)) for name in file.attrs}
        self._frames: dict[str, DataFrame] = {}
        self._config: dict[str, Any] | None = None
        self._rows = check(file, self.attrs, not self.open_ended, {each.name: each for each in opened})
        if self.open_ended:
            self._check_not_truncated()
            self._rows["updates"] = self._complete_updates()
        check_sizes(file, opened)

    def _complete_updates(self) -> int:
        """Rows of /updates whose version is in /aggregations, which is written later.

        Version plus staleness is the version at which an update was consumed, which never decreases.
        """
        group = self._open_file["updates"]
        version, staleness = group["version"], group["staleness"]
        rows, made = range(self._rows["updates"]), self._rows["aggregations"]
        return bisect_right(rows, made, key=lambda row: int(version[row]) + int(staleness[row]))

    def _check_not_truncated(self) -> None:
        """Raises ConfigError where rows lie beyond the end of the file, which HDF5 reads as zeros in an open file."""
        size = os.fstat(self._open_file.id.get_vfd_handle()).st_size  # a resumed run replaces the file of the path
        for table in (*TABLES, "checksums"):
            rows = self._rows[table]
            for dataset in self._open_file[table].values() if rows else ():
                start = (rows - 1) // dataset.chunks[0] * dataset.chunks[0]
                chunk = dataset.id.get_chunk_info_by_coord((start,))
                if chunk.byte_offset is None or chunk.byte_offset + (rows - start) * dataset.dtype.itemsize > size:
                    raise _damaged(self.path, "truncated", "a complete run file")

    @property
    def status(self) -> str:
        """ "running" (also after a kill), "completed", "failed" or "interrupted"."""
        return str(self.attrs["status"])

    @property
    def completed(self) -> bool:
        """Whether the run has come to its planned end, and its file was closed."""
        return self.status == "completed" and not self.open_ended

    @property
    def has_final_model(self) -> bool:
        """Whether `model` is that of the run's end; else it is the first one."""
        return self.status in ("completed", "interrupted")

    @property
    def id(self) -> str:
        """Identifies the run, resumed or not; "" in files of older versions."""
        return str(self.attrs.get("id", ""))

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        if self._config is None:
            import yaml

            try:
                self._config = dict(parse_yaml(self.attrs.get("config") or "{}", yaml.SafeLoader) or {})
            except Exception as error:
                raise _damaged(
                    self.path, f"its configuration cannot be read: {error}", "an undamaged run file"
                ) from error
        return self._config

    @property
    def model(self) -> np.ndarray:
        """(d,) the final model; of a run that has not completed, the one that it started or was resumed with.

        Raises ConfigError if it is incomplete.
        """
        file = self._open_file
        with _readable(self.path):
            x: np.ndarray = file["model/x"][()]
        if self.model_version < 0:
            raise _bad(self.path, "the run ended while its model was written", "a complete model")
        return x

    @property
    def model_version(self) -> int:
        """Version of `model`: 0 for x0, -1 while it is being written."""
        file = self._open_file
        with _readable(self.path):
            return int(read_attribute(file["model/x"], "version"))

    @property
    def best_model(self) -> np.ndarray:
        """(d,) the model that `keep.best` names, once the run has ended. Raises ConfigError if there is none."""
        if self.best_evaluation < 0:
            raise _bad(self.path, "it has no best model", "a run with keep.best that has ended")
        with _readable(self.path):
            x: np.ndarray = self._open_file["model/best"][()]
        return x

    @property
    def best_evaluation(self) -> int:
        """The row of `evaluations` of `best_model`; -1: there is none."""
        model = self._open_file["model"]
        with _readable(self.path):
            return int(read_attribute(model["best"], "evaluation")) if "best" in model else -1

    @property
    def layout(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the parts of the model."""
        file = self._open_file
        with _readable(self.path):
            parts = parse_json(read_attribute(file["model/x"], "layout"))
            return [(name, tuple(shape)) for name, shape in parts]

    @property
    def module_state(self) -> ModuleState:
        """What the model's `state_dict` has besides `model`; no entries: that is not known."""
        file = self._open_file
        if "constants" not in file["model"]:  # a file of an older version
            return NO_STATE
        with _readable(self.path):
            constants = file["model/constants"]
            entries = parse_json(read_attribute(constants, "entries"))
            return ModuleState([StateEntry(*entry) for entry in entries], constants[()])

    @property
    def host(self) -> str | None:
        """The host of the process that writes it; None where the file does not say."""
        try:
            return str(parse_json(self.attrs["hosts"])[0])
        except (KeyError, IndexError, ValueError, TypeError):
            return None

    @property
    def age(self) -> float:
        """Seconds since the last write: at most a few while the run is alive."""
        return max(0.0, time.time() - self.path.stat().st_mtime)

    @property
    def is_alive(self) -> bool:
        """Whether the run seems to be running: its file is open in a writer, and was written to a moment ago."""
        return self.status == "running" and self.open_ended and self.age < HEARTBEAT_TIMEOUT

    @property
    def _open_file(self) -> h5py.File:
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        return self._file

    def _table(self, table: str) -> DataFrame:
        if table not in self._frames:
            columns = CLIENTS.columns if table == "clients" else TABLES[table].columns
            self._frames[table] = self._frame(table, list(columns), self._rows.get(table))
            if table == "evaluations":
                self._frames[table] = self._frames[table].assign(**self.metric_columns())
            elif table in ("updates", "aggregations"):
                self._frames[table] = self._frames[table].assign(**self._logged_columns(table))
        return self._frames[table]

    def metric_columns(self) -> dict[str, np.ndarray]:
        """For each metric of `evaluate.metrics` and each number that the method logs, its value at each evaluation
        (rows,), by name.

        Names in the table of metrics that the job does not have are left out.
        """
        total, count = self._rows["evaluations"], self._rows["metrics"]
        evaluate = self.config.get("evaluate") if count else None
        names = evaluate.get("metrics") if isinstance(evaluate, dict) else None
        row, metric, value = (self.rows("metrics", name, 0, count) for name in TABLES["metrics"].columns)
        found = {}
        for name in names[:MAX_METRICS] if isinstance(names, list) else ():
            if isinstance(name, str) and (shown := printable(name)) not in TABLES["evaluations"].columns:
                mine = (metric == name.encode()) & (row >= 0) & (row < total)
                found[shown] = np.full(total, np.nan)
                found[shown][row[mine]] = value[mine]
        return found | self._logged_columns("evaluations")

    def _logged_columns(self, table: str) -> dict[str, np.ndarray]:
        """For each number that the method logs, by name, the last value of each row of a table (rows,), NaN if none.

        table: "updates", "aggregations", or "evaluations", whose rows have the last value before them.
        """
        if not (count := self._rows["logged"]):
            return {}
        update, aggregation, names, value = (self.rows("logged", name, 0, count) for name in TABLES["logged"].columns)
        rows = self._rows[table]
        if table == "evaluations":  # the first evaluation after each number
            updates, version = (self.rows(table, name, 0, rows) for name in ("updates", "version"))
            after = (
                np.searchsorted(counts, place, "right") for counts, place in ((updates, update), (version, aggregation))
            )
            row = np.where(update >= 0, *after)
        else:
            row = update if table == "updates" else aggregation
        found: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(names.tolist()):
            shown = printable(name.decode("utf-8", "replace"))
            mine = (names == name) & (row >= 0) & (row < rows)
            if len(found) == MAX_METRICS or shown in TABLES[table].columns or not mine.any():
                continue
            found[shown] = column = np.full(rows, np.nan)
            column[row[mine]] = value[mine]
            if table == "evaluations":
                last = np.maximum.accumulate(np.where(np.isin(np.arange(rows), row[mine]), np.arange(rows), -1))
                found[shown] = np.where(last < 0, np.nan, column[last])
        return found

    def _frame(self, table: str, columns: list[str], rows: int | None) -> DataFrame:
        from pandas import DataFrame

        data = {}
        for name in columns:
            values = self.rows(table, name, 0, rows)
            strings = values.dtype.kind in "SO"
            data[name] = np.array([plain(v) for v in values], dtype=object) if strings else values
        with _readable(self.path):  # pandas refuses columns of different lengths
            return DataFrame(data)

    def rows(self, table: str, column: str, start: int, stop: int | None, checked: bool = True) -> np.ndarray:
        """Rows `start` to `stop` of a column, text as bytes; `Column.missing` if an older version had none.

        Raises ConfigError where they cannot be read and, if `checked`, for times that no run has.
        """
        file = self._open_file
        with _readable(self.path):
            if table in TABLES and TABLES[table].added and table not in file:
                return np.empty(0, TABLES[table].columns[column].dtype)
            group = file[table]
            if column not in group:
                stop = len(group["samples"]) if stop is None else stop  # the table of the clients
                columns = CLIENTS.columns if table == "clients" else TABLES[table].columns
                return np.full(stop - start, columns[column].missing)
            values: np.ndarray = group[column][start:stop]
            if checked and table in TABLES:
                _check_seconds(values, TABLES[table].columns[column], f"{table}/{column}")
            return values

    def read(self, table: str, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows `start` to `stop` of a table, an array for each column."""
        return {name: self.rows(table, name, start, stop) for name in TABLES[table].columns}

    def checksums(self) -> Coverage:
        """Compares the file's values with their checksums. Raises ConfigError if the file cannot be read."""
        with _readable(self.path):
            return check_checksums(self._open_file, self._rows["checksums"], closed=not self.open_ended)

    def check_undamaged(self) -> None:
        """Raises ConfigError where a value of the file differs from its checksum."""
        if wrong := self.checksums().wrong:
            raise _damaged(self.path, f"it is damaged: {wrong}", "an undamaged run file")

    def count(self, table: str) -> int:
        """Rows of a table."""
        return self._rows[table]

    def close(self) -> None:
        """Closes the file; frames already read stay."""
        if self._file is not None:
            with contextlib.suppress(Exception):
                self._file.close()
        self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Run {self.path} {self.status}, {self._rows['updates']} updates>"


def _check_seconds(values: np.ndarray, column: Column, name: str) -> None:
    """Raises ValueError for a time that no run has; NaN, not known, only where a file may lack the column."""
    if column.unit.partition(" ")[0] == "s":
        given = values if column.missing is None else values[~np.isnan(values)]
        if not (np.abs(given) <= MAX_SECONDS).all():
            raise ValueError(f"{name} has a time that is no number of at most {MAX_SECONDS:g} s")


def _bad(path: Path, wrong: str, expected: str) -> UnreadableRun:
    return UnreadableRun("run file", path, wrong, expected)


def _damaged(path: Path, wrong: str, expected: str) -> DamagedRun:
    return DamagedRun("run file", path, wrong, expected)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns errors of h5py on a damaged file into ConfigError."""
    try:
        yield
    except Exception as error:
        raise _damaged(path, f"cannot be read: {error}", "an undamaged run file") from error


def _open(path: Path) -> tuple[h5py.File, bool]:
    """The open file, and whether its writer never closed it."""
    try:
        with open_regular(path) as raw:
            start = raw.read(12)
            check_heaps(raw)
    except OSError as error:
        lost = error.errno in (errno.ENOENT, errno.EIO)
        kind = UnreadableRun if lost else ConfigError
        raise kind("run file", path, f"cannot be read: {error_text(error)}", "a readable run file") from error
    if len(start) < 12 or not start.startswith(MAGIC):
        raise _bad(path, "no HDF5 file", "a run file of mpifl")
    # Byte 11 of a version 3 superblock is set while a writer has the file open. HDF5 itself takes a file that grows
    # while it is opened for a truncated one.
    if start[8] == 3 and start[11]:
        access = h5p.create(h5p.FILE_ACCESS)
        access.set_libver_bounds(h5f.LIBVER_LATEST, h5f.LIBVER_LATEST)
        _limit_attempts(access)

        def follow(lock: bool) -> h5py.File:
            access.set_file_locking(lock, True)
            return h5py.File(h5f.open(os.fsencode(path), h5f.ACC_RDONLY | h5f.ACC_SWMR_READ, fapl=access))

        try:
            return follow(False), True  # a lock of a reader would be taken for that of its writer
        except OSError:  # this process may have it open with a lock; HDF5 wants all the same
            return follow(True), True
    return with_locks_if_any(lambda lock: h5py.File(path, "r", locking="best-effort" if lock else False)), False


def _limit_attempts(access: h5p.PropFAID) -> None:
    """Makes HDF5 fail on a damaged file instead of hanging: by default it retries 100 times, doubling its pause.

    h5py does not expose this setting; the HDF5 library that it is linked to does. ctypes releases the GIL: the lock of
    h5py keeps other threads out of HDF5 meanwhile.
    """
    with phil, contextlib.suppress(OSError, AttributeError):
        setting = ctypes.CDLL(h5p.__file__).H5Pset_metadata_read_attempts
        setting.argtypes = [ctypes.c_int64, ctypes.c_uint]
        setting(access.id, METADATA_ATTEMPTS)
