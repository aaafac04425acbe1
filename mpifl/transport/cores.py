"""How the ranks of this host share its cores, estimated before MPI starts by the launcher's variables and affinity."""

from __future__ import annotations

import contextlib
import os

LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # number of ranks on this host, set by launchers


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
