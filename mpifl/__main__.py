"""The entry point of `mpifl` and `python -m mpifl`; a rank that hosts clients imports no commands."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # built in: `signal` is a file, which every rank would read
import gc
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpifl.client.rank import RankEnd
    from mpifl.errors import ConfigError
    from mpifl.transport.mpi import MPI

RUNS = ("run", "resume", "replay")  # commands in which all ranks but 0 do nothing but host clients

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # a rank is one core; NumPy reads this when functions below import it


def main(argv: Sequence[str] | None = None, default_job: str | None = None) -> int:
    """Runs one command, as `mpifl.cli.main` does; the exit code."""
    if argv is None:  # called as a program, whose process may be restarted
        from mpifl.transport.cores import restart_without_aslr

        restart_without_aslr()
    arguments = sys.argv[1:] if argv is None else argv
    before = _interrupts_kill()
    gc.disable()  # imports make many objects and little garbage: collections are a seventh of the time to import NumPy
    if default_job or (arguments and arguments[0] in RUNS):
        code = _host_clients()
        if code is not None:
            return code
    from mpifl import cli

    gc.enable()
    if before is not None:
        _signal.signal(_signal.SIGINT, before)
    return cli.main(argv, default_job)


def _interrupts_kill() -> Any:
    """Restores SIGINT's default action: Ctrl-C that no run handles ends this process at once, also inside MPI.

    Returns the handler from before; None outside the main thread, where Python sets none.
    """
    try:
        return _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    except ValueError:
        return None


def _host_clients() -> int | None:
    """The whole command on a rank that hosts clients: its exit code; None on rank 0, and in one process.

    Until `broadcast_modules` every rank reads what it imports from files.
    """
    from mpifl.errors import ConfigError
    from mpifl.transport.launcher import LaunchError, communicator, run_or_abort

    try:
        comm = communicator()
    except LaunchError:
        return None  # the command reports it
    if comm is None:
        return None
    error = run_or_abort(comm, lambda: _begin(comm))
    if comm.rank == 0:
        return None
    end = run_or_abort(comm, lambda: _serve(comm, error))
    if end.dead:
        print(f"mpifl: {end.dead}", file=sys.stderr)
    return 2 if isinstance(end.error, ConfigError) else end.code


def _begin(comm: MPI.Comm) -> ConfigError | None:
    """Broadcasts the modules; on rank 0 imports the commands. Returns why this rank cannot host clients, if so."""
    from mpifl.errors import ConfigError
    from mpifl.transport.module_broadcast import broadcast_modules

    try:
        broadcast_modules(comm)
    except ConfigError as error:
        return error
    if comm.rank == 0:
        from mpifl import cli  # noqa: F401 - where it cannot be imported the others must not wait
    return None


def _serve(comm: MPI.Comm, error: ConfigError | None) -> RankEnd:
    if sys.version_info < (3, 12):
        import datetime  # noqa: F401 - its classes in Python, which those in C replace, are garbage: 0.2 MB

        gc.collect()  # while there are few other objects
    from mpifl.client.rank import run_client_rank

    gc.freeze()
    gc.enable()
    sys.path.append(os.getcwd())  # a job may name a user's own "module:Class"
    return run_client_rank(comm, process_ends=True, error=error)


if __name__ == "__main__":
    sys.exit(main())
