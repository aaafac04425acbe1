"""The MPI job that this process was launched in: its communicator, its fault tolerance, how to end all its ranks."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mpifl.errors import ConfigError, RunFailed
from mpifl.signals import Interrupted
from mpifl.untrusted import printable

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
MPI_START_TIMEOUT = 600  # s that MPI may take to start
RANK_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS")  # set by mpirun, mpiexec, srun


def communicator() -> MPI.Comm | None:
    """The job's communicator, or None where there is one process. Without a launcher MPI is not even imported."""
    if not any(name in os.environ for name in RANK_VARIABLES):
        return None
    if is_fault_tolerant():
        # Open MPI's MPI_Finalize waits for all ranks, at times for dead ones too (its issue 11404); ours have sent
        # their last message by then.
        os.environ.setdefault("OMPI_MCA_async_mpi_finalize", "1")
    # Where mpirun keeps a job alive when ranks die, a rank that dies while MPI starts leaves the others waiting inside
    # MPI: the default action of this signal ends them.
    signal.alarm(MPI_START_TIMEOUT)
    from mpifl.transport.mpi import MPI

    signal.alarm(0)
    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def is_fault_tolerant() -> bool:
    """Whether this job's MPI keeps running when ranks die (Open MPI started with ULFM)."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") in ("1", "true")  # noqa: SIM112 - as Open MPI spells it


def run_or_abort(comm: MPI.Comm, run: Callable[[], T]) -> T:
    """What `run` returns; an unexpected error is printed and ends all ranks with exit code 3.

    ConfigError, RunFailed and Interrupted pass: `run` has released the other ranks.
    """
    try:
        return run()
    except (ConfigError, RunFailed, Interrupted):
        raise
    except BaseException as error:  # sys.exit in a user's code and a second Ctrl-C too: the others must not wait
        text = f"rank {comm.rank} on {socket.gethostname()}:\n{traceback.format_exc()}"
        if isinstance(error, MemoryError):
            text = f"mpifl: the run failed: out of memory ({error})\n"
        elif dead := _dead_ranks(comm, error):
            text = f"mpifl: the run failed: rank {', '.join(map(str, sorted(dead)))} died\n"
        print(
            printable(text, lines=True), end="", file=sys.stderr, flush=True
        )  # in one piece: the abort may come at once
        abort_all_ranks(comm, 3)
        raise


def abort_all_ranks(comm: MPI.Comm, code: int) -> None:
    """Ends all ranks at once, with this exit code as far as the launcher passes it on."""
    sys.stdout.flush()
    if is_fault_tolerant():  # with ULFM MPI_Abort ends only its caller, unnoticed; a killed rank is detected
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Abort(code)


def _dead_ranks(comm: MPI.Comm, error: BaseException) -> set[int]:
    """The ranks that have died, where `error` is MPI's report of that."""
    from mpifl.transport.mpi import MPI, dead_ranks

    return dead_ranks(comm) if isinstance(error, MPI.Exception) else set()
