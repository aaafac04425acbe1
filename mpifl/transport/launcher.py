"""The MPI job that this process was launched in: its communicator, its fault tolerance, how to end all its ranks."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn, TypeVar

from mpifl.errors import ConfigError, RunFailed, format_traceback, host_name, lack_of_memory
from mpifl.signals import SIGNALS, Interrupted
from mpifl.text import format_duration
from mpifl.transport.backoff import report_times, wait
from mpifl.transport.detection import LaunchError, find_launch, is_fault_tolerant, mpi_wanted

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger(__package__)
T = TypeVar("T")
MPI_START_TIMEOUT = 600  # s that MPI may take to start
READER_TIMEOUT = 1.0  # s that a launcher may take to read the last lines of a rank


def communicator() -> MPI.Intracomm | None:
    """The job's communicator, or None where there is one process. Without a launcher MPI is not even imported.

    Raises LaunchError where MPI cannot be loaded, or does not belong to the launcher.
    """
    if not mpi_wanted():
        return None
    with _deadline_of_mpi_start(), _reported_start():
        try:
            from mpifl.transport.mpi import MPI
        except (ImportError, RuntimeError) as error:
            expected = "mpi4py, and the MPI library that it was built for, or one named by MPI4PY_LIBMPI"
            raise LaunchError("MPI", error, "it cannot be loaded", expected) from error
    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


@contextlib.contextmanager
def _deadline_of_mpi_start() -> Iterator[None]:
    """Ends this process with a traceback if MPI does not start within MPI_START_TIMEOUT.

    Where mpirun keeps a job alive when ranks die, a rank that dies while MPI starts leaves the others waiting inside
    MPI, where Python runs no handler of a signal; faulthandler's thread does not need it. There signals wait until MPI
    has started: that a rank dies then is noticed.
    """
    if "mpifl.transport.mpi" in sys.modules:  # MPI has started
        yield
        return
    with contextlib.ExitStack() as stack:
        if is_fault_tolerant():
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        faulthandler.dump_traceback_later(MPI_START_TIMEOUT, exit=True, file=sys.__stderr__ or 2)
        stack.callback(faulthandler.cancel_dump_traceback_later)
        yield


@contextlib.contextmanager
def _reported_start() -> Iterator[None]:
    """Logs on rank 0, now and then, that it waits for MPI to start.

    MPI_Init waits for all ranks, and keeps the threads of Python from running: another process logs, until a pipe from
    this one is closed.
    """
    launch = find_launch()
    if "mpifl.transport.mpi" in sys.modules or launch is None or launch.rank != 0 or not log.isEnabledFor(logging.INFO):
        yield
        return
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.close(write)
            begin = time.monotonic()
            for due in report_times():
                if select.select([read], [], [], begin + due - time.monotonic())[0]:
                    break
                ranks = f"all {launch.size}" if launch.size else "the"
                log.info("waiting for %s ranks to start MPI (%s)", ranks, format_duration(due))
        finally:
            os._exit(0)
    os.close(read)
    try:
        yield
    finally:
        os.close(write)
        os.waitpid(child, 0)


def broadcast_number(comm: MPI.Comm, number: int) -> int:
    """Rank 0's number, on all ranks."""
    buffer = bytearray(number.to_bytes(8, "little", signed=True))
    wait(comm.Ibcast(buffer, 0))
    return int.from_bytes(buffer, "little", signed=True)


def host_names(comm: MPI.Comm) -> list[str]:
    """The host of each rank, on rank 0; empty on the others. All ranks call it."""
    import numpy as np

    name, names = np.array([host_name().encode()], "S256"), np.empty(comm.size, "S256")
    wait(comm.Igather(name.view(np.uint8), names.view(np.uint8), 0))
    return [each.decode() for each in names.tolist()] if comm.rank == 0 else []


def is_mpi_error(error: BaseException) -> bool:
    """Whether an MPI call raised this error."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(error, mpi.Exception)


def run_or_abort(comm: MPI.Comm, run: Callable[[], T]) -> T:
    """What `run` returns; an unexpected error is printed and ends all ranks with exit code 3.

    ConfigError, RunFailed and Interrupted pass: `run` has released the other ranks.
    """
    try:
        return run()
    except (ConfigError, RunFailed, Interrupted):
        raise
    except BaseException as error:  # sys.exit in a user's code and a second Ctrl-C too: the others must not wait
        try:  # one write, since the abort may come at once
            print(_describe(comm, error), end="", file=sys.stderr, flush=True)
        finally:  # whatever fails there: memory, an import, the pipe
            abort_all_ranks(comm, 3)


def _describe(comm: MPI.Comm, error: BaseException) -> str:
    """The lines that an error which ends all ranks is reported in."""
    from mpifl.safe_input import printable
    from mpifl.transport.mpi import dead_ranks

    if lack := lack_of_memory(error):
        text = f"mpifl: the run failed: {lack}\n"
    elif is_mpi_error(error) and (dead := dead_ranks(comm)):
        text = f"mpifl: the run failed: rank {', '.join(map(str, sorted(dead)))} died\n"
    else:
        text = f"rank {comm.rank} on {host_name()}:\n{format_traceback(error)}\n"
    return printable(text, lines=True)


def abort_all_ranks(comm: MPI.Comm, code: int) -> NoReturn:
    """Ends all ranks at once, with this exit code as far as the launcher passes it on."""
    with contextlib.suppress(OSError, ValueError):  # a pipe that nobody reads, or that is closed
        sys.stdout.flush()
    _await_reader(2)
    if is_fault_tolerant():  # with ULFM MPI_Abort ends only its caller, unnoticed; a killed rank is detected
        os.kill(os.getpid(), signal.SIGKILL)
    if code == 0:  # the run has ended well: what MPI prints of an abort would look like an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    comm.Abort(code)
    os._exit(code)  # MPICH's Abort returns, and the launcher ends the ranks a moment later


def _await_reader(file: int) -> None:
    """Waits until what was written to a pipe has been read, at most READER_TIMEOUT: MPICH's launcher drops the rest."""
    with contextlib.suppress(OSError, ImportError):
        import fcntl
        import stat
        import struct
        import termios

        end = time.monotonic() + READER_TIMEOUT
        while stat.S_ISFIFO(os.fstat(file).st_mode) and time.monotonic() < end:
            if not any(fcntl.ioctl(file, termios.FIONREAD, struct.pack("i", 0))):
                return
            time.sleep(1e-3)
