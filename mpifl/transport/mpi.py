"""Starts MPI, and has what both ends of the transport share: message tags, waiting, detection of dead ranks.

Buffer calls only, every receive names its source, waits sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings

import mpi4py

from mpifl.errors import ConfigError
from mpifl.transport.backoff import LONGEST, Backoff
from mpifl.transport.detection import check_library, check_size


def set_timer_slack(seconds: float = 1e-9) -> None:
    """Sets how much later than it asks for this thread may wake from a sleep (Linux); the system's default is 50 us."""
    with contextlib.suppress(OSError, AttributeError):  # another system: it is a little slower
        ctypes.CDLL(None).prctl(29, round(seconds * 1e9), 0, 0, 0)  # PR_SET_TIMERSLACK


mpi4py.rc.initialize = False  # MPI starts below, once the library has been checked
mpi4py.rc.finalize = True
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # what `check_library` says in one line
    from mpi4py import MPI

    if not MPI.Is_initialized():
        check_library(MPI.Get_library_version())
        set_timer_slack(1e-3)  # while a rank waits for the others to start it polls, on a core that they may need
        # One thread calls MPI at a time: the main one, or that of `groups.worker_groups`.
        MPI.Init_thread(MPI.THREAD_SERIALIZED)
        set_timer_slack()
check_size(MPI.COMM_WORLD.size, MPI.Get_library_version())

STUCK_TIMEOUT = 5.0  # s that ranks with abandoned clients have to end by themselves
FRAME, TEXT, SETUP, END, DATA = 1, 2, 3, 4, 16  # tags; large vectors of client i travel under DATA + i
QUARANTINE: list[
    object
] = []  # requests and buffers that MPI may still use for a rank that has died, to the end of the process


def wait(*requests: MPI.Request, longest: float = LONGEST) -> None:
    """Waits for requests without spinning; longest: the longest sleep (s)."""
    pending, backoff = list(requests), None
    while not MPI.Request.Testall(pending):
        backoff = backoff or Backoff(longest)
        backoff.pause()


def check_tags(comm: MPI.Comm, clients: int) -> None:
    """Raises ConfigError where this MPI has fewer tags than there are clients."""
    most = (comm.Get_attr(MPI.TAG_UB) or 32767) - DATA
    if clients > most:
        raise ConfigError("problem.clients", clients, f"at most {most} clients: this MPI has no more message tags")


def dead_ranks(comm: MPI.Comm) -> set[int]:
    """The ranks that have died, as far as this one knows; none where the MPI cannot detect it."""
    try:
        failed = comm.Get_failed()
        group = comm.Get_group()
        return set(MPI.Group.Translate_ranks(failed, list(range(failed.size)), group))
    except (MPI.Exception, NotImplementedError):
        return set()
