"""The entry point of `mpifl` and `python -m mpifl`."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from mpifl import cli
from mpifl.transport.detection import is_fault_tolerant

THREADS_TIMEOUT = 1.0  # s that the process waits for threads of the user's code once its command is over


def main(argv: Sequence[str] | None = None, default_job: str | None = None) -> int:
    """Runs the command of this process; returns the exit code with which it is to end at once."""
    code = cli.main(argv, default_job)
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threading.current_thread() is threading.main_thread() and not all(thread.daemon for thread in others):
        _limit_wait_for_threads()
    return _code_of_rank(code)


def _code_of_rank(code: int) -> int:
    """The exit code of this rank: under ULFM only rank 0 ends with that of the command, unless it has died.

    Open MPI's launcher passes the first one on. Where several ranks end with one, it may hang: it locks a mutex that it
    has freed (5.0.11).
    """
    if not code or not is_fault_tolerant() or "mpifl.transport.mpi" not in sys.modules:
        return code
    from mpifl.transport.mpi import MPI, dead_ranks

    return code if MPI.COMM_WORLD.rank == 0 or 0 in dead_ranks(MPI.COMM_WORLD) else 0


def _limit_wait_for_threads() -> None:
    """Ends Python's wait for threads that are no daemons, which comes before its other work at the end of the process.

    A signal whose default action is to be ignored interrupts that wait.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        sys.unraisablehook = lambda _: None  # it would report the exception that ends the wait
        raise KeyboardInterrupt

    signal.signal(signal.SIGURG, interrupt)
    identifier = threading.main_thread().ident
    timer = threading.Timer(THREADS_TIMEOUT, lambda: signal.pthread_kill(identifier or 0, signal.SIGURG))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
