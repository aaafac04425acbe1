"""Writes one rank's parts of checkpoints; a thread makes them durable while the rank computes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mpifl.checkpoint.snapshot import PartContent, write_part
from mpifl.errors import error_text
from mpifl.runfile.checkpoint_folder import part_name
from mpifl.runfile.durable import checksum, sync_folder, temporary_name


class PartStatus(NamedTuple):
    """A rank's part of a checkpoint: durable, or failed."""

    rank: int
    number: int  # the checkpoint's number
    bytes: int
    crc: int
    error: str  # why it failed, in one clause, or ""


class PartWriter:
    """Writes the parts of rank `rank` into `folder`, which is created when it is needed. Not thread-safe."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = Path(folder), rank
        self._pool = ThreadPoolExecutor(1, "checkpoint")  # starts its thread with the first part
        self._parts: list[Future[PartStatus]] = []  # parts that `done` has not reported, in the order of `save`
        self._closing = False

    def save(self, number: int, make: Callable[[], PartContent]) -> None:
        """Writes the part of checkpoint `number` that `make` returns; its arrays may change when this returns.

        `done` reports what cannot be made or stored, and what the disk refuses.
        """
        if self._closing:
            raise ValueError("saved after close")
        temporary = temporary_name(self._folder / part_name(number, self._rank))
        error = ""
        try:
            content = make()
            self._folder.mkdir(exist_ok=True)  # not its parent, which is missing if the file system vanished
            write_part(temporary, number, self._rank, content)
        except (OSError, TypeError, ValueError, OverflowError) as failure:
            _discard(temporary)
            error = error_text(failure)
        except BaseException:
            _discard(temporary)
            raise
        self._parts.append(self._pool.submit(self._finish, number, temporary, error))

    def done(self) -> list[PartStatus]:
        """Parts that became durable, or failed, since the last call, in the order of `save`; never waits."""
        written = []
        while self._parts and self._parts[0].done():
            written.append(self._parts.pop(0).result())
        return written

    def close(self) -> None:
        """Ends the thread; parts that it has not begun to make durable are abandoned. A second call does nothing."""
        self._closing = True
        self._pool.shutdown()

    def _finish(self, number: int, temporary: Path, error: str) -> PartStatus:
        """Synchronises the file, takes its checksum, gives it its name, synchronises the folder."""
        if error:
            return PartStatus(self._rank, number, 0, 0, error)
        try:
            if self._closing:
                raise OSError(None, "given up at the end")
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
                size, crc = checksum(file)
            os.replace(temporary, self._folder / part_name(number, self._rank))
            sync_folder(self._folder)
        except Exception as failure:
            _discard(temporary)
            return PartStatus(self._rank, number, 0, 0, error_text(failure))
        return PartStatus(self._rank, number, size, crc, "")


def _discard(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        temporary.unlink()
