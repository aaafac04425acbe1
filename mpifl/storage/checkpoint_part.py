"""Writes one rank's parts of checkpoints; a thread makes them durable while the rank computes."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from queue import Queue
from typing import BinaryIO, NamedTuple

from mpifl.storage.checkpoint import PartContent, write_part
from mpifl.storage.durable import checksum, error_text, sync_folder


def part_name(number: int, rank: int) -> str:
    """Of a file in the folder of checkpoints."""
    return f"{number:06d}.rank{rank}"


class Written(NamedTuple):
    """A part that is durable, or why it is not, in one clause."""

    number: int
    bytes: int
    crc: int
    error: str


class _Job(NamedTuple):
    number: int
    file: BinaryIO | None  # None: could not be written
    temporary: Path
    error: str


class PartWriter:
    """Writes the parts of rank `rank` into `folder`, which is created when it is needed. Not thread-safe."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = Path(folder), rank
        self._names = (f"{secrets.token_hex(4)}{k}" for k in count())
        self._queue: Queue[_Job | None] = Queue()
        self._finished: list[Written] = []
        self._lock = threading.Lock()  # of the list
        self._closing = False
        self._thread: threading.Thread | None = None  # a rank that never saves has none

    def save(self, number: int, content: PartContent) -> None:
        """Writes the part of checkpoint `number`; the arrays may change when this returns.

        Raises TypeError or ValueError for what cannot be stored; what the disk refuses is reported by `done`.
        """
        self._begin()
        temporary = self._folder / f".{part_name(number, self._rank)}.{next(self._names)}"
        file: BinaryIO | None = None
        try:
            self._folder.mkdir(exist_ok=True)  # not its parent, which is missing if the file system vanished
            file = temporary.open("x+b")
            write_part(file, number, self._rank, content)
            file.flush()
            self._queue.put(_Job(number, file, temporary, ""))
        except OSError as error:
            _discard(file, temporary)
            self._queue.put(_Job(number, None, temporary, error_text(error)))
        except BaseException:
            _discard(file, temporary)
            raise

    def save_made(self, number: int, make: Callable[[], PartContent]) -> None:
        """Writes the part that `make` returns; an error in making or storing it is reported by `done` as well."""
        self._begin()
        try:
            self.save(number, make())
        except (TypeError, ValueError, OverflowError) as error:
            self._queue.put(_Job(number, None, self._folder, str(error)))

    def done(self) -> list[Written]:
        """Parts that became durable, or failed, since the last call, in the order of `save`; never waits."""
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Ends the thread; parts that it has not begun to make durable are abandoned. A second call does nothing."""
        self._closing = True
        if self._thread is not None and self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _begin(self) -> None:
        if self._closing:
            raise ValueError("saved after close")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            written = self._finish(job)
            with self._lock:
                self._finished.append(written)

    def _finish(self, job: _Job) -> Written:
        """Synchronises the file, takes its checksum, gives it its name, synchronises the folder."""
        if job.file is None:
            return Written(job.number, 0, 0, job.error)
        try:
            if self._closing:
                raise OSError(None, "given up at the end")
            os.fsync(job.file.fileno())
            size, crc = checksum(job.file)
            job.file.close()  # may report an error too
            os.replace(job.temporary, self._folder / part_name(job.number, self._rank))
            sync_folder(self._folder)
        except Exception as error:
            _discard(job.file, job.temporary)
            return Written(job.number, 0, 0, error_text(error) if isinstance(error, OSError) else repr(error))
        return Written(job.number, size, crc, "")


def _discard(file: BinaryIO | None, temporary: Path) -> None:
    if file is not None:
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            temporary.unlink()
