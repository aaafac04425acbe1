"""A run as TensorBoard's scalars, one point for each evaluation.

The points are a function of the run file's rows alone: a live export and an export of the finished file are the same.
"""

from __future__ import annotations

import secrets
import time
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import isfinite, isnan
from typing import BinaryIO, NamedTuple

import numpy as np

from mpifl.errors import ConfigError, host_name
from mpifl.runfile.reader import Run
from mpifl.runfile.tables import TABLES
from mpifl.safe_input import printable

SUFFIX = "-tensorboard"  # suffix of the folder beside the run file
EVENT_FILES = "events.out.tfevents.*"  # TensorBoard and W&B look for such names
METRICS = tuple(name for name in TABLES["evaluations"].columns if name not in ("time", "updates"))
USED = {  # columns of the other tables that points are made of
    "updates": ("staleness",),
    "events": ("time", "kind"),
    "metrics": ("evaluation", "metric", "value"),
    "logged": ("update", "aggregation", "name", "value"),
}
LOST_KINDS = ("lost", "aside")  # events after which the run goes on without a client
MAX_STEP = 2**63 - 1


class Point(NamedTuple):
    """The scalars of one evaluation."""

    step: int  # updates consumed
    time: float  # s of the run's clock
    values: dict[str, float]  # values by tag


class Scalars:
    """Turns rows, added in their order, into points.

    Of several evaluations after the same number of updates the first one is a point: a tag has one value a step.
    """

    def __init__(self) -> None:
        self._staleness: deque[np.ndarray] = deque()  # staleness of the updates after the last point
        self._rows = 0  # number of updates added
        self._lost: list[float] = []  # times at which clients were lost
        self._last = (-1, 0.0)  # step and time of the last point
        self._known: set[str] = set()  # metrics that have had a value
        self._evaluations = 0  # number of rows of /evaluations seen
        self._logged: deque[tuple[int, int, str, float]] = deque()  # numbers that the method logged, of points to come
        self._latest: dict[str, float] = {}  # the last value of each of them
        self._metrics: dict[int, dict[str, float]] = {}  # `evaluate.metrics` of points to come, by row of /evaluations

    def add(self, table: str, columns: Mapping[str, np.ndarray]) -> None:
        """Adds rows of a table; text may be bytes. Rows of /evaluations make points: `evaluations`."""
        rows = zip(*(columns[name].tolist() for name in USED.get(table, ())), strict=True)
        if table == "updates":
            self._rows += len(columns["staleness"])
            self._staleness.append(columns["staleness"])
        elif table == "events":
            for when, kind in rows:
                if _text(kind) in LOST_KINDS:
                    insort(self._lost, when)
        elif table == "logged":
            self._logged.extend(
                (update, aggregation, printable(_text(name)), v) for update, aggregation, name, v in rows
            )
        elif table == "metrics":
            for k, name, value in rows:
                if k >= self._evaluations:
                    self._metrics.setdefault(k, {})[printable(_text(name))] = value

    def evaluation(self, row: Mapping[str, float]) -> Point | None:
        """The point of an evaluation whose updates and earlier events have been added; None if it makes no point."""
        own = self._metrics.pop(self._evaluations, {})
        self._evaluations += 1
        step, when = int(row["updates"]), float(row["time"])
        while self._logged and self._logged[0][0] < row["updates"] and self._logged[0][1] < row["version"]:
            *_, name, value = self._logged.popleft()
            self._latest[name] = value
        before, since = self._last
        if not before < step <= min(self._rows, MAX_STEP):
            return None
        self._last = step, when
        values = {}
        for name, value in {**own, **{name: float(row[name]) for name in METRICS}}.items():
            if not isnan(value):
                self._known.add(name)
            if name in self._known:  # a loss that became NaN is shown; a metric that was never measured is not
                values[f"evaluations/{name}"] = value
        count = step - max(0, before)
        if count and when > since:
            values["updates/per_second"] = count / (when - since)
        if count:
            values["updates/staleness_mean"] = self._take(count) / count
        values |= {f"logged/{name}": value for name, value in self._latest.items()}
        values["clients/lost"] = float(bisect_right(self._lost, when))
        return Point(step, when, values)

    def evaluations(self, columns: Mapping[str, np.ndarray]) -> Iterator[Point]:
        """The points of rows of /evaluations."""
        for row in zip(*(values.tolist() for values in columns.values()), strict=True):
            if point := self.evaluation(dict(zip(columns, row, strict=True))):
                yield point

    def _take(self, count: int) -> int:
        """Removes the staleness of the next updates; their sum."""
        total = 0
        while count:
            block = self._staleness.popleft()
            if len(block) > count:
                self._staleness.appendleft(block[count:])
                block = block[:count]
            total += int(block.sum(dtype=np.int64))
            count -= len(block)
        return total


class EventWriter:
    """Writes points to an event file, a record each. Raises OSError where the file cannot be written."""

    def __init__(self, file: BinaryIO, start: float) -> None:
        """start: Unix time (s) of the file's first record."""
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._records, self._event, self._summary = RecordWriter(file), event_pb2.Event, summary_pb2.Summary
        self._write(self._event(wall_time=start, file_version="brain.Event:2"))
        # A TensorBoard that shows an earlier session of the run drops that session's points from this step on.
        begin = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(self._event(wall_time=start, step=0, session_log=begin))

    def add(self, point: Point, began: float) -> None:
        """began: Unix time (s) at which the run's clock started; a point's wall time is that plus the run's time."""
        with np.errstate(over="ignore"):
            values = [self._summary.Value(tag=tag, simple_value=float(np.float32(value)))
                      for tag, value in point.values.items()]  # fmt: skip
        wall = began + point.time
        self._write(self._event(wall_time=wall, step=point.step, summary=self._summary(value=values)))

    def _write(self, event: object) -> None:
        self._records.write(event.SerializeToString())  # type: ignore[attr-defined]


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def event_file_name() -> str:
    """A new name in the form that TensorBoard and W&B expect: with the time and the host."""
    return f"{EVENT_FILES[:-1]}{int(time.time()):010d}.{host_name()}.{secrets.token_hex(4)}"


def event_files(run: Run) -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
    """One event file with all points of a run file."""
    yield event_file_name(), partial(_write_points, run)


def _write_points(run: Run, file: BinaryIO) -> None:
    began = float(run.attrs.get("began", 0.0))
    began = began if isfinite(began) else 0.0
    writer = EventWriter(file, began)
    try:
        for point in points(run, Scalars()):
            writer.add(point, began)
    except (ValueError, OverflowError, TypeError) as error:
        raise ConfigError(
            "run file", run.path, f"an event file cannot hold its rows: {error}", "an undamaged run file"
        ) from error


def points(run: Run, scalars: Scalars) -> Iterator[Point]:
    """The points of a run file; afterwards `scalars` has all its rows."""
    for table, names in USED.items():
        scalars.add(table, {name: run.rows(table, name, 0, run.count(table)) for name in names})
    columns = {
        name: run.rows("evaluations", name, 0, run.count("evaluations")) for name in ("time", "updates", *METRICS)
    }
    yield from scalars.evaluations(columns)
