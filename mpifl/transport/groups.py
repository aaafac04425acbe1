"""Groups of ranks that each run tasks, such as the runs of a sweep."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np

from mpifl.signals import SIGNALS
from mpifl.transport.handshake import RANKS_BEFORE

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from mpi4py import MPI

_group: MPI.Intracomm | None = None  # this rank's group, while it runs tasks of `worker_groups`


@contextmanager
def worker_groups(
    comm: MPI.Intracomm, ranks: int, serve: Callable[[MPI.Intracomm], None], end: Callable[[MPI.Intracomm], None]
) -> Iterator[Executor | None]:
    """Context manager that runs tasks on groups of `ranks` ranks: an executor on rank 0; None on others, at the end.

    A task runs on its group's first rank, where `task_communicator` is the group's. Ranks left over have nothing to
    do. Signals that no run handles are ignored on all ranks but 0, since rank 0 decides what follows.

    Args:
        comm: The MPI job's communicator.
        ranks: Ranks of a group, at most `comm.size - 1`.
        serve: What a group's other ranks do with its communicator, until `end`.
        end: Called on a group's first rank when no task is left.
    """
    global _group
    from mpi4py.futures import MPICommExecutor

    from mpifl.transport.mpi import MPI  # sets how MPI is started

    number, place = divmod(comm.rank - 1, ranks)  # the group's number, and this rank's place in it
    idle = comm.rank > 0 and number >= (comm.size - 1) // ranks
    group = cast("MPI.Intracomm", comm.Split(MPI.UNDEFINED if idle or comm.rank == 0 else number, comm.rank))
    first = comm.rank == 0 or (place == 0 and not idle)
    firsts = cast("MPI.Intracomm", comm.Split(0 if first else MPI.UNDEFINED, comm.rank))
    before = {s: signal.signal(s, signal.SIG_IGN) for s in SIGNALS} if comm.rank else {}
    os.environ[RANKS_BEFORE] = str(
        _ranks_before(comm, number, comm.rank > 0 and not idle and (ranks == 1 or place > 0))
    )
    try:
        if not first:
            if not idle:
                serve(group)
            yield None
        elif comm.rank == 0:
            with MPICommExecutor(firsts, root=0) as executor:
                yield cast("Executor", executor)
        else:
            _group = group
            with MPICommExecutor(firsts, root=0):
                pass
            end(group)
            yield None
    finally:
        _group = None
        del os.environ[RANKS_BEFORE]
        for s, handler in before.items():
            signal.signal(s, handler)
        for each in (group, firsts):
            if each != MPI.COMM_NULL:
                each.Free()


def _ranks_before(comm: MPI.Intracomm, number: int, has_clients: bool) -> int:
    """The ranks with clients on this host that belong to groups of lower numbers than this rank's."""
    from mpifl.transport.mpi import MPI

    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    mine, all_ranks = np.array([number, has_clients], np.int64), np.empty((host.size, 2), np.int64)
    host.Allgather(mine, all_ranks)
    host.Free()
    return int(all_ranks[all_ranks[:, 0] < number, 1].sum())


def task_communicator() -> MPI.Intracomm | None:
    """The communicator of the group of ranks that runs this task of `worker_groups`; None outside such a task."""
    return _group
