"""Commands that compute one run, or check what would be run."""

from __future__ import annotations

import argparse
from pathlib import Path

from mpifl import api, execution
from mpifl.cli.command import LOGGING, TRUST, Command, file_and_overrides, flag, is_override, load_job
from mpifl.cli.output import print_result
from mpifl.errors import ConfigError
from mpifl.transport.launcher import communicator, host_names
from mpifl.transport.layout import Layout


def _run(args: argparse.Namespace) -> execution.Task:
    return execution.run_task(load_job("run", args.arguments))


def _check(args: argparse.Namespace) -> None:
    job = load_job("check", args.arguments)
    Layout(comm.size if (comm := communicator()) else 1, job.ranks_per_client).check()
    print_result(api.job_yaml(job, args.data), end="")


def _print_layout(args: argparse.Namespace) -> int:
    """Under MPI `mpifl check` also prints which ranks compute a client together, and where they are."""
    if comm := communicator():
        hosts = host_names(comm)
        if comm.rank == 0:
            layout = Layout(comm.size, load_job("check", args.arguments).ranks_per_client)
            print_result(f"# ranks: {layout.describe(hosts)}")
    return 0


def _resume(args: argparse.Namespace) -> execution.Task:
    files = [argument for argument in args.arguments if not is_override(argument)]
    if len(files) != 1:
        raise ConfigError(
            "resume", " ".join(args.arguments) or "''", "more than one file" if files else "no file", "one RUN.h5"
        )
    return execution.resume_task(Path(files[0]), [word for word in args.arguments if is_override(word)], args.trust)


def _replay(args: argparse.Namespace) -> execution.Task:
    path, overrides = file_and_overrides("replay", "RUN.h5", args.arguments)
    return execution.replay_task(path, overrides, trust=args.trust)


RUN = Command(_run, "JOB.yaml [key=value ...]", "run a job, under mpirun or in one process", LOGGING)

CHECK = Command(
    _check,
    "JOB.yaml [key=value ...]",
    "check a job; print it with all defaults filled in, the effective step of a client, the memory of a run, and "
    "under mpirun which ranks compute a client",
    {"--data": flag("load the data too; print the numbers of rows, clients and parameters")},
    _print_layout,
)

RESUME = Command(
    _resume,
    "RUN.h5 [stop.updates=N ...] [key=value ...]",
    "continue a run from its last complete checkpoint, or after its end, on any number of ranks",
    {**TRUST, **LOGGING},
)

REPLAY = Command(
    _replay,
    "RUN.h5 [output=FILE.h5] [overwrite=true] [ranks_per_client=N] [memory.key=value ...]",
    "repeat a run in its recorded order of arrivals, and compare it with the recorded one, bit for bit",
    {**TRUST, **LOGGING},
)
