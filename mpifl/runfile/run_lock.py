"""Whether a run is alive: a lock on its file and on its checkpoint folder, and the heartbeat where locks do not work.

A run holds a shared lock (`flock`), which readers do not notice, until it ends, however it ends. Whoever is to replace
the file tries to lock it exclusively. Some file systems have no locks, and some have them for one host alone: then a
file that is modified is that of a live run, since a run touches it twice a second.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mpifl.errors import ConfigError, host_name

T = TypeVar("T")
log = logging.getLogger(__package__)

ATTEMPTS, PAUSE = 10, 0.02  # another process may be trying to lock the file at the same instant; s
WATCH_TIME = 3.0  # s in which a live run modifies its file several times
STALE_AGE = 60.0  # s after the last modification from which a run is not live; clocks of hosts may differ
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
CANNOT_LOCK = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)  # another process has the lock


def with_locks_if_any(open_: Callable[[bool], T]) -> T:
    """What `open_(True)` returns, which has HDF5 lock a file, or `open_(False)` where the file system has no locks.

    A process opens a file with the same setting everywhere: HDF5 refuses another one.
    """
    try:
        return open_(True)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return open_(False)


class Lock:
    """A shared lock on a file or a folder, until `release`; without effect where the file system has no locks."""

    def __init__(self, path: str | Path) -> None:
        """Where the path cannot be opened nothing is locked."""
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            _try_lock(self._descriptor, fcntl.LOCK_SH)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = release


def is_locked(path: Path) -> bool | None:
    """Whether a process has locked a file or a folder; None where the file system cannot tell."""
    try:
        descriptor = os.open(
            path, (os.O_RDONLY if path.is_dir() else os.O_RDWR) | os.O_CLOEXEC
        )  # NFS locks for writers
    except OSError:
        return None
    try:
        return not _try_lock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    """Locks an open file; returns False where others have. Raises OSError where there are no locks."""
    for attempt in range(ATTEMPTS):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in CANNOT_LOCK:
                raise
        if attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE)
    return False


def check_not_written(path: Path, key: str, host: str | None = None) -> None:
    """Raises ConfigError(key, path, ...) for the file of a live run; host: where that runs, if it does.

    Where locks cannot tell, it watches the file for at most WATCH_TIME, and logs that it has waited.
    """
    locked = is_locked(path)
    live = ConfigError(key, path, "the run is still being written", "one that has ended")
    if locked:
        raise live
    if (locked is False and host == host_name()) or time.time() - path.stat().st_mtime > STALE_AGE:
        return
    before, end = _modified(path), time.monotonic() + WATCH_TIME
    while time.monotonic() < end:
        time.sleep(0.1)
        if _modified(path) != before:
            raise live
    log.warning("%s: not written for %g s, so its run has ended; file locks could not tell", path, WATCH_TIME)


def _modified(path: Path) -> int:
    """When a file was last written to (ns). It is opened: network file systems then ask their server."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime_ns
