"""Locks on a study's folder: one sweep of the whole study at a time, or several of different parts of it."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mpifl.errors import ConfigError, as_unwritable
from mpifl.runfile.run_lock import is_locked

T = TypeVar("T")
log = logging.getLogger(__package__)

LOCK = ".lock"


@dataclass(frozen=True)
class Part:
    """Part `number` of `count` of a study's runs: every count-th one, from the number-th on."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """The part named by a text such as `3/20`; 0/20 is the first of 20. Raises ConfigError."""
        number, _, count = text.partition("/")
        if number.isdecimal() and count.isdecimal() and int(number) < int(count):
            return cls(int(number), int(count))
        raise ConfigError("--part", text, "not a part", "K/N with K from 0 to N - 1, such as 0/20")

    def of(self, runs: Sequence[T]) -> Sequence[T]:
        """The runs of this part."""
        return runs[self.number :: self.count]

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@contextmanager
def locked(folder: Path, part: Part | None) -> Iterator[None]:
    """Locks a study's folder, or one part of its runs; creates the folder if it is missing.

    Raises ConfigError if the folder cannot be written, or if another process has locked it or the same part.
    """
    with as_unwritable("output", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if part:
            name = f"{LOCK}-{part.number}-{part.count}"
            stack.enter_context(_lock(folder / name, fcntl.LOCK_EX, f"part {part} of a study"))
        stack.enter_context(_lock(folder / LOCK, fcntl.LOCK_SH if part else fcntl.LOCK_EX, "a study"))
        if part:
            _refuse_other_counts(folder, part)
        yield


def _refuse_other_counts(folder: Path, part: Part) -> None:
    """Raises ConfigError while a part of another division of the study is running: the two may have runs in common."""
    for path in sorted(folder.glob(f"{LOCK}-*-*")):
        number, _, count = path.name.removeprefix(f"{LOCK}-").partition("-")
        if count.isdecimal() and int(count) != part.count and is_locked(path):
            wrong = f"another process is running part {number}/{count} now"
            raise ConfigError("--part", part, wrong, f"K/{count}")


@contextmanager
def _lock(path: Path, kind: int, what: str) -> Iterator[None]:
    with as_unwritable("output", path.parent):
        file = path.open("a+")
    with file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            wrong = f"another process is running {what} now"
            raise ConfigError("output", path.parent, wrong, remedy="wait until it has ended") from None
        except OSError:  # the file system has no locks; run files still have a heartbeat
            log.warning("%s cannot be locked: make sure that no other process runs %s", path, what)
        yield


@contextmanager
def index_lock(folder: Path) -> Iterator[None]:
    """Locks the folder's index file while it is read and replaced; others hold this lock for milliseconds."""
    with (folder / ".index.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # without locks the last writer wins, and attempts recorded by others may be lost
            log.debug("%s cannot be locked", folder)
        yield
