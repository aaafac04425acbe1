"""How the ranks of this host share its cores, estimated before MPI starts by the launcher's variables and affinity."""

from __future__ import annotations

import contextlib
import os
import sys

LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # number of ranks on this host, set by launchers
ASLR = "MPIFL_ASLR"  # environment variable. 1: keep address space layout randomisation
RESTARTED = "MPIFL_RESTARTED"  # environment variable: the process that was restarted, which may not happen again
NO_RANDOMIZE, QUERY = 0x0040000, 0xFFFFFFFF  # of Linux's <sys/personality.h>: ADDR_NO_RANDOMIZE; no change


def ranks_per_core() -> float:
    """How many ranks of this host there are for each core that they may use together; an estimate.

    A rank that its launcher has bound to one core has an affinity mask of one core; the mask of the launcher, its
    parent, has the cores of all ranks. If a wrapper between them binds the rank, the parent's mask has fewer cores, and
    the estimate is too high.
    """
    count = next((os.environ[name] for name in LOCAL_SIZE if name in os.environ), "")
    cores = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # the launcher has ended
        cores |= os.sched_getaffinity(os.getppid())
    return (int(count) if count.isdecimal() else 1) / len(cores)


def restart_without_aslr() -> None:
    """Restarts this program without address space layout randomisation (ASLR), where ranks share cores.

    With ASLR each rank maps the same libraries at different addresses, so ranks that time-share a core probably evict
    each other's entries in its branch predictors and its cache of decoded instructions.

    Does nothing where the environment variable `ASLR` is 1, where the system does not allow it, once MPI has started,
    and for a program that is read from stdin.
    """
    process = str(os.getpid())
    if os.environ.get(ASLR) == "1" or os.environ.get(RESTARTED) == process or ranks_per_core() <= 1:
        return
    if "mpi4py.MPI" in sys.modules or sys.orig_argv[1:2] in ([], ["-"]) or not sys.executable:
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # another system
        personality = ctypes.CDLL(None).personality
        now = personality(ctypes.c_ulong(QUERY))
        if now & NO_RANDOMIZE or personality(ctypes.c_ulong(now | NO_RANDOMIZE)) < 0:  # -1, an error, has all bits
            return
        os.environ[RESTARTED] = process
        try:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        finally:  # it could not be started
            personality(ctypes.c_ulong(now))
