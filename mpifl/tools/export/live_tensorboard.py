"""TensorBoard's scalars while a run goes on, written by a thread of rank 0 that the run never waits for.

The session tells it the rows that the run file has got. Whatever goes wrong in it ends the live export, not the run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from mpifl.errors import ConfigError, error_text
from mpifl.runfile.reader import Run
from mpifl.tools.export.files import require
from mpifl.tools.export.scalars import EVENT_FILES, SUFFIX, EventWriter, Point, Scalars, event_file_name, points

KEY = "output_tensorboard"  # the job's key
QUEUE_LIMIT = 1000  # blocks of rows that may wait, one each half second: the file system hangs
CLOSE_TIMEOUT = 5.0  # s in which the last points are written at the end of a run
Blocks = Mapping[str, Mapping[str, np.ndarray]]  # rows by table and column

log = logging.getLogger("mpifl")


def folder_of(output: str | Path) -> Path:
    """The folder with the event file of a run, beside its run file."""
    return Path(output).with_name(f"{Path(output).stem}{SUFFIX}")


def check_output(output: str, replaced: bool) -> None:
    """Raises ConfigError where no event file can be written: no package, no folder, or another run's file is there.

    replaced: Whether event files that are there are replaced: the run is resumed, or `overwrite` is set.
    """
    require("tensorboard", KEY, "true")
    folder = folder_of(output)
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(KEY, folder, "this is a file", "a folder")
        if not replaced and next(folder.glob(EVENT_FILES), None):
            wrong = "it has event files of another run"
            raise ConfigError(KEY, folder, wrong, remedy="choose another name, or overwrite=true")
    except OSError as error:
        raise ConfigError(KEY, folder, f"cannot be read: {error_text(error)}", "a readable folder") from error


class LiveScalars:
    """Writes the points of a run into a new event file, which replaces those of earlier sessions of the run.

    A `mpifl.server.session.RowsObserver`.
    """

    def __init__(self, output: str) -> None:
        """output: the run file."""
        self.folder = folder_of(output)
        self._scalars = Scalars()
        self._points: list[Point] = []  # points that are to be written next
        self._queue: SimpleQueue[Blocks | None] = SimpleQueue()
        self._evaluations: Mapping[str, np.ndarray] = {}  # rows that are not points yet
        self.failed = ""  # why there are no more points
        self._step = -1  # step of the last point that was written
        self._thread = threading.Thread(target=self._run, name="tensorboard", daemon=True)

    def begin(self, began: Callable[[], float], resumed: Run | None = None) -> None:
        """Starts the thread.

        began    returns the Unix time (s) at which the run's clock started; called once there is a point
        resumed  the run file as it is resumed: its points are written first
        """
        self._began = began
        if resumed:
            self._points = list(points(resumed, self._scalars))
        self._thread.start()

    def put(self, blocks: Blocks) -> None:
        """Takes the rows that the run file has got since the last call; never waits."""
        if self.failed:
            return
        if self._queue.qsize() >= QUEUE_LIMIT:
            self._fail(f"the file system does not answer: {QUEUE_LIMIT} blocks of rows are waiting")
            return
        self._queue.put(blocks)

    def close(self) -> str:
        """Writes the last points; returns a clause for the run's last line, "" where all points were written."""
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT)
        if self._thread.is_alive() and not self.failed:
            self._fail(f"the last points were not written within {CLOSE_TIMEOUT:g} s")
        return f"TensorBoard has no points after update {max(0, self._step):,} ({self.failed})" if self.failed else ""

    # -- the thread ----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            self._write()
        except OSError as error:
            self._fail(error_text(error))
        except Exception as error:  # an error of the package, say: the run goes on
            self._fail(f"{type(error).__name__}: {error}")

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        old = list(self.folder.glob(EVENT_FILES))
        with (self.folder / event_file_name()).open("xb") as file:
            began = self._began()
            writer = EventWriter(file, began if isfinite(began) else time.time())
            blocks: Blocks | None = {}
            while not self.failed:
                for point in self._points:
                    writer.add(point, self._began())
                file.flush()
                self._step = self._points[-1].step if self._points else self._step
                while old:  # the new file has their points
                    old.pop().unlink(missing_ok=True)
                if blocks is None:
                    return
                blocks = self._queue.get()
                self._points = list(self._add(blocks or {}))

    def _add(self, blocks: Blocks) -> Iterator[Point]:
        """The points that are complete with these rows.

        Those of an evaluation wait for the rows of half a second later: an event may be written after an evaluation
        that followed it.
        """
        for table, columns in blocks.items():
            self._scalars.add(table, columns)
        yield from self._scalars.evaluations(self._evaluations)
        self._evaluations = blocks.get("evaluations", {})

    def _fail(self, reason: str) -> None:
        self.failed = reason
        log.warning("%s: no more scalars in %s: %s; the run goes on", KEY, self.folder, reason)
