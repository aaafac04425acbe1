"""Commands about this installation: what a job can name, whether the machine works, trace files."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from mpifl.cli.command import Command, at_least_one, flag, one_path, value
from mpifl.cli.output import print_result
from mpifl.errors import ConfigError, as_unwritable


def _list(args: argparse.Namespace) -> None:
    from mpifl.config.listing import KINDS, overview, own_training

    if args.own_training:
        if args.arguments != ["algorithms"]:
            given, expected = " ".join(args.arguments) or "''", "mpifl list algorithms --own-training"
            raise ConfigError("list", given, "--own-training is for the list of algorithms", expected)
        print_result(own_training())
        return
    if not args.arguments:
        print_result(overview())
        return
    kind, *names = args.arguments
    if kind not in KINDS or len(names) > 1:
        wrong = "no such list" if kind not in KINDS else "more than one name"
        raise ConfigError("list", " ".join(args.arguments), wrong, f"one of {', '.join(KINDS)}, then at most one name")
    print_result(KINDS[kind].show(names[0] if names else None))


def _selftest(args: argparse.Namespace) -> None:
    """Checks the command line: `_run_selftest` does the rest, on all ranks."""
    if args.arguments:
        raise ConfigError(
            "selftest", args.arguments[0], "it takes no argument", remedy="--folder DIR names the folder that is tested"
        )
    with as_unwritable("--folder", args.folder):
        TemporaryDirectory(dir=args.folder).cleanup()


def _run_selftest(args: argparse.Namespace) -> int:
    """`mpifl selftest`, once its arguments have been checked."""
    from mpifl.tools.selftest import FAILED, format_checks, selftest
    from mpifl.transport.launcher import broadcast_number, communicator, run_or_abort

    def run() -> int:
        if not (checks := selftest(communicator(), args.folder)):
            return 0
        print_result(format_checks(checks))
        return 3 if any(check.result == FAILED for check in checks) else 0

    if comm := communicator():
        return run_or_abort(comm, lambda: broadcast_number(comm, run()))
    return run()


def _convert_trace(args: argparse.Namespace) -> None:
    from mpifl.tools.convert_trace import convert

    path = one_path("convert-trace", args.arguments, "one file of devices")
    if args.clients is None:
        raise ConfigError("--clients", None, "required", "the number of clients of the trace")
    out = args.out or path.with_name(f"{path.name}.csv")
    print_result(convert(path, out, args.clients, args.rows, args.kilobits))


LIST = Command(
    _list,
    "[KIND [NAME]]",
    "list what a job can name: algorithms, data, models, delays, jobs and more",
    {"--own-training": flag("the algorithms that work with custom training loops")},
)

SELFTEST = Command(
    _selftest,
    "",
    "check that MPI, HDF5, file locks and torch work on this machine, in one process or under mpirun",
    {"--folder": value("DIR", "folder whose file system is tested; default: .", Path, Path())},
    _run_selftest,
)

CONVERT_TRACE = Command(
    _convert_trace,
    "DEVICES --clients N",
    "make a trace file from a public trace of devices in FedScale's layout",
    {
        "--clients": value("N", "number of clients: the first devices of the file", at_least_one),
        "--rows": value("N", "for a file of capacities: rows that a client computes with in a contact", at_least_one),
        "--kilobits": value(
            "N", "for a file of capacities: size of the messages of a contact, both ways together (kbit)", at_least_one
        ),
        "--out": value("FILE", "the trace file; default: DEVICES.csv", Path),
    },
)
