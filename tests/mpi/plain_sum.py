"""`mpifl run` with a mistake: a group's gradients are added by MPI_Allreduce, each rank's own in order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpifl.cli import main
from mpifl.problems.micro_batches import MicroBatched
from mpifl.transport.launcher import communicator


def added_plainly(self: MicroBatched, part: Callable[[int], Any], first: int, last: int) -> Any:
    group: Any = self._group
    mine = [part(k) for k in range(first, last) if k // self._each == group.member]
    total = sum(mine[1:], start=mine[0])
    GROUP.Allreduce(MPI.IN_PLACE, total)
    return total if group.member == 0 else None


if __name__ == "__main__":
    comm = communicator()
    assert comm
    GROUP = comm.Split(min(comm.rank, 1), comm.rank)
    MicroBatched._sum = added_plainly  # type: ignore[method-assign]
    sys.exit(main(["run", *sys.argv[1:]]))
