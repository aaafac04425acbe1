"""The entry point of `mpifl` and `python -m mpifl`; a rank that hosts clients imports no commands."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RUNS = ("run", "resume", "replay")  # commands in which all ranks but 0 do nothing but host clients

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # a rank is one core; NumPy reads this when functions below import it


def main(argv: Sequence[str] | None = None, default_job: Path | None = None) -> int:
    """Runs one command, as `mpifl.cli.main` does; the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    gc.disable()  # imports make many objects and little garbage: collections are a seventh of the time to import NumPy
    if default_job or (arguments and arguments[0] in RUNS):
        code = _host_clients()
        if code is not None:
            return code
    from mpifl import cli

    gc.enable()
    return cli.main(argv, default_job)


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
    from mpifl.transport.module_broadcast import broadcast_modules

    error = None
    try:
        run_or_abort(comm, lambda: broadcast_modules(comm))
    except ConfigError as wrong:
        error = wrong
    if comm.rank == 0:
        return None
    import signal

    from mpifl.client.rank import run_client_rank

    gc.freeze()
    gc.enable()
    sys.path.append(os.getcwd())  # a job may name a user's own "module:Class"
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C that no run handles ends this process at once
    end = run_or_abort(comm, lambda: run_client_rank(comm, process_ends=True, error=error))
    if end.dead:
        print(f"mpifl: {end.dead}", file=sys.stderr)
    return 2 if isinstance(end.error, ConfigError) else end.code


if __name__ == "__main__":
    sys.exit(main())
