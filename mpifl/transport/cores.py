"""How the ranks of this host share its cores, as far as the environment says before MPI has started."""

from __future__ import annotations

import contextlib
import os
import sys

LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # number of ranks on this host, set by launchers
ASLR = "MPIFL_ASLR"  # 1: keep address space layout randomisation; 0: this process has been restarted without it
NO_RANDOMIZE, ASK = 0x0040000, 0xFFFFFFFF  # of Linux's <sys/personality.h>: ADDR_NO_RANDOMIZE; changes nothing


def ranks_per_core() -> float:
    """How many ranks of this host there are for each core that they may use together.

    A launcher that binds each rank to a core of its own is not bound itself, so its cores count too.
    """
    ranks = next((int(os.environ[k]) for k in LOCAL_SIZE if k in os.environ), 1)
    cores = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # the launcher has ended
        cores |= os.sched_getaffinity(os.getppid())
    return ranks / len(cores)


def share_address_layout() -> None:
    """Restarts this program without address space layout randomisation (ASLR), where ranks share cores.

    Processors predict branches by their addresses. With ASLR each rank has the same libraries elsewhere, so ranks that
    take turns on a core displace each other's predictions.

    To be called before MPI starts. Does nothing where the environment variable `ASLR` is set, and where the system does
    not allow it.
    """
    if os.environ.get(ASLR) or ranks_per_core() <= 1 or not sys.executable:
        return
    import ctypes

    personality = ctypes.CDLL(None).personality
    now = personality(ctypes.c_ulong(ASK))
    if now < 0 or now & NO_RANDOMIZE or personality(ctypes.c_ulong(now | NO_RANDOMIZE)) < 0:
        return
    os.environ[ASLR] = "0"
    with contextlib.suppress(OSError):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
