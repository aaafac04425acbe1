"""Starts MPI, and has what both ends of the transport share: message tags and the detection of dead ranks."""

from __future__ import annotations

import ctypes
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import mpi4py

from mpifl.errors import ConfigError
from mpifl.transport.detection import TUNE, check_library, check_size, is_fault_tolerant

log = logging.getLogger("mpifl")


class Setting(NamedTuple):
    """An environment variable that Open MPI reads when it starts."""

    variable: str
    value: str
    applies: Callable[[], bool]
    reason: str
    risk: str = ""  # what may happen without it; a program that has started MPI itself is warned of it


def _on_one_host() -> bool:
    size = os.environ.get("OMPI_COMM_WORLD_SIZE")
    return size is not None and os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == size


SETTINGS = (  # variables set while MPI starts, unless the environment has them; MPIFL_TUNE=0: none
    Setting(
        "OMPI_MCA_async_mpi_finalize", "1", is_fault_tolerant,
        "the end of MPI waits for all ranks, at times for dead ones too (issue 11404 of Open MPI); every rank of mpifl "
        "has sent its last message by then",
        "the program may hang at its end once a rank has died",
    ),
    Setting(
        "OMPI_MCA_btl", "^ofi", _on_one_host,
        "all ranks are on one host and need no network; Open MPI 5 sleeps for a second when it closes this component",
    ),
    Setting(
        "OMPI_MCA_btl_sm_eager_limit", "33792", lambda: True,
        "frames, of up to 32 KiB of vectors, are copied through shared memory; above this limit the receiver reads the "
        "memory of the sender by system calls",
    ),
)  # fmt: skip
GET_TIMER_SLACK, SET_TIMER_SLACK = 30, 29  # options of prctl(2)

mpi4py.rc.initialize = False  # MPI starts below, once the library has been checked
mpi4py.rc.finalize = True
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # what `check_library` says in one line
    from mpi4py import MPI


def _start() -> None:
    """Starts MPI with SETTINGS, which Open MPI copies; the environment is then as it was."""
    before, wanted = MPI.Is_initialized(), os.environ.get(TUNE) != "0"
    settings = [s for s in SETTINGS if wanted and s.variable not in os.environ and s.applies()]
    if not before:
        check_library(MPI.Get_library_version())
        os.environ.update({s.variable: s.value for s in settings})
        try:
            # One thread calls MPI at a time: the main one, or that of `groups.worker_groups`.
            MPI.Init_thread(MPI.THREAD_SERIALIZED)
        finally:
            for setting in settings:
                del os.environ[setting.variable]
    if MPI.COMM_WORLD.rank == 0:
        for setting in settings:
            if before and setting.risk:
                text = f"the program has started MPI itself, without {setting.variable}={setting.value}: {setting.risk}"
                warnings.warn(f"{text}; export the variable", RuntimeWarning, stacklevel=2)
            else:
                what = "not set, since MPI had been started" if before else "set"
                log.debug("%s=%s is %s: %s", setting.variable, setting.value, what, setting.reason)


_start()
check_size(MPI.COMM_WORLD.size, MPI.Get_library_version())


@contextmanager
def short_sleeps() -> Iterator[None]:
    """Inside, this thread wakes from a sleep at most 1 ns late instead of 50 us (Linux): 1 us does not take 51 us.

    A rank that waits for a message begins with sleeps of some microseconds.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    before = prctl(GET_TIMER_SLACK, 0, 0, 0, 0) if prctl and os.environ.get(TUNE) != "0" else -1
    if not prctl or before < 0:
        yield
        return
    prctl(SET_TIMER_SLACK, ctypes.c_ulong(1), 0, 0, 0)
    try:
        yield
    finally:
        prctl(SET_TIMER_SLACK, ctypes.c_ulong(before), 0, 0, 0)


STUCK_TIMEOUT = 5.0  # s that ranks with abandoned clients have to end by themselves
FRAME, TEXT, END, DATA = 1, 2, 4, 16  # tags; `handshake` has another; large vectors of client i travel under DATA + i
QUARANTINE: list[object] = []  # requests and buffers that MPI may use for a dead rank until the process ends


def check_tags(comm: MPI.Comm, clients: int) -> None:
    """Raises ConfigError where this MPI has fewer tags than there are clients."""
    most = (comm.Get_attr(MPI.TAG_UB) or 32767) - DATA
    if clients > most:
        raise ConfigError(
            "problem.clients", clients, f"this MPI has {most} message tags for clients", f"at most {most}"
        )


def dead_ranks(comm: MPI.Comm) -> set[int]:
    """The ranks that have died, as far as this one knows; none where the MPI cannot detect it."""
    try:
        failed = comm.Get_failed()
        group = comm.Get_group()
        return set(MPI.Group.Translate_ranks(failed, list(range(failed.size)), group))
    except (MPI.Exception, NotImplementedError):
        return set()
