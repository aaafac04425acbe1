"""The command line. A user's mistake is one line on stderr and exit code 2, on any number of ranks."""

from __future__ import annotations

import argparse
import difflib
import io
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from mpifl import api
from mpifl.errors import ConfigError, RunFailed, host_name
from mpifl.signals import Interrupted
from mpifl.transport.detection import LaunchError
from mpifl.untrusted import printable

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.server.outcome import Outcome
    from mpifl.studies.index import Index

VERBOSE, QUIET = frozenset({"-v", "--verbose"}), frozenset({"-q", "--quiet"})
LOG_LEVEL = "MPIFL_LOG_LEVEL"  # environment variable: what -v and -q do not say
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
REPORT_TIME = 10.0  # s that the other processes of a launch leave the first one to report its error


def main(argv: Sequence[str] | None = None, default_job: str | None = None) -> int:
    """Runs one command on rank 0, whose clients the other ranks host; returns the exit code, the same on all ranks.

    With a `default_job` the command is `run`.
    """
    for name in api.THREAD_VARIABLES:  # a rank is one core; NumPy reads this when it is imported
        os.environ.setdefault(name, "1")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if default_job and arguments[:1] != ["--version"]:
        arguments = ["run", *arguments]
    if os.getcwd() not in sys.path:  # on every rank: a job may name a user's own "module:Class"
        sys.path.append(os.getcwd())
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may have letters that its encoding does not
        sys.stdout.reconfigure(errors="backslashreplace")
    with _log_to_stderr(arguments), _second_interrupt_kills():
        try:
            code = api.execute(lambda: _command(arguments, default_job), _print_end, process_ends=True).code
            command = COMMANDS.get(arguments[0]) if arguments else None
            if code or not command or not command.on_all_ranks or not {"--help", "-h"}.isdisjoint(arguments):
                return code
            return command.on_all_ranks(_Parser(f"mpifl {arguments[0]}", command).parse_intermixed_args(arguments[1:]))
        except LaunchError as error:
            if error.is_first:
                _print_end(error)
            else:  # mpirun ends all processes when one exits with an error: first the line above must be out
                time.sleep(REPORT_TIME)
                if error.key == "MPI" and error.is_first_of_host:  # MPI may be missing on this host alone
                    print(f"mpifl: {error} (on {host_name()})", file=sys.stderr)
            return 2
        except ConfigError:  # `_print_end` has printed it
            return 2
        except (Exception, SystemExit, GeneratorExit):  # in one process: under MPI all ranks have been ended
            text = printable(f"rank 0 on {host_name()}:\n{traceback.format_exc()}", lines=True)
            print(text, end="", file=sys.stderr, flush=True)
            return 3


class _LogFormatter(logging.Formatter):
    """Warnings and errors after "mpifl: "; escapes what a terminal would act on."""

    def __init__(self, times: bool) -> None:
        """times: all but errors, which end a command, begin with the time."""
        super().__init__()
        self._times = times

    def format(self, record: logging.LogRecord) -> str:
        timed = self._times and record.levelno < logging.ERROR
        time = f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')} " if timed else ""
        name = "mpifl: " if record.levelno >= logging.WARNING else ""
        text = time + name + super().format(record)  # which quotes files and other ranks
        return printable(text.replace("\n", "\n    " if timed else "\n"), lines=True)


def _print(text: str, end: str = "\n") -> None:
    """Prints a command's result, which quotes files."""
    print(printable(text, lines=True), end=end, flush=True)


@contextmanager
def _log_to_stderr(arguments: Sequence[str]) -> Iterator[None]:
    """Prints what the package logs."""
    log, handler, level = logging.getLogger("mpifl"), logging.StreamHandler(), _log_level(arguments)
    handler.setFormatter(_LogFormatter(times=level < logging.WARNING))
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


def _log_level(arguments: Sequence[str]) -> int:
    """What is logged: warnings; of a run also its state, except on a terminal, which shows a progress bar."""
    if not VERBOSE.isdisjoint(arguments):
        return logging.DEBUG
    if not QUIET.isdisjoint(arguments):
        return logging.WARNING
    if level := os.environ.get(LOG_LEVEL):
        return LEVELS.get(level.lower(), logging.INFO)
    runs = bool(arguments) and arguments[0] in COMMANDS and LOGGING.keys() <= COMMANDS[arguments[0]].options.keys()
    return logging.INFO if runs and not sys.stderr.isatty() else logging.WARNING


@contextmanager
def _second_interrupt_kills() -> Iterator[None]:
    """Restores SIGINT's default action in the block: Ctrl-C that no run handles ends this process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # else a second one may still follow the first
            signal.signal(signal.SIGINT, before)


def _print_end(end: Outcome | ConfigError) -> None:
    """Prints how a command ended, on rank 0."""
    if isinstance(end, ConfigError):
        print(f"mpifl: {end}", file=sys.stderr)
    elif end.summary:
        with _closed_pipe_is_no_error():
            _print(end.summary)


@contextmanager
def _closed_pipe_is_no_error() -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output wants no more of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(arguments: list[str], default_job: str | None) -> api.Task | None:
    """Rank 0's part of a command: does what it can do alone, or returns the run for all ranks. Raises ConfigError."""
    with _closed_pipe_is_no_error():
        return _dispatch(arguments, default_job)
    return None


def _dispatch(arguments: list[str], default_job: str | None) -> api.Task | None:
    if (level := (os.environ.get(LOG_LEVEL) or "info").lower()) not in LEVELS:
        raise ConfigError(LOG_LEVEL, level, f"one of {', '.join(LEVELS)}")
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in ("-h", "--help"):
        print(_overview())
        return None
    if name == "--version":
        from mpifl.selftest import versions
        from mpifl.version import source

        print(versions())
        print(f"commit {source().commit or 'unknown'}")
        return None
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError("command", name or "''", f"one of {', '.join(COMMANDS)}{hint}")
    command = COMMANDS[name]
    parser = _Parser(f"mpifl {name}", command)
    if default_job:
        parser.usage = f"[mpirun -n RANKS] python {Path(sys.argv[0]).name} [JOB.yaml] [key=value ...]"
    try:
        args, unknown = parser.parse_known_intermixed_args(rest)
    except SystemExit:  # --help was printed
        return None
    if unknown:
        raise ConfigError("option", unknown[0], f"mpifl {name} takes {', '.join(['--help', *command.options])}")
    if not args.arguments and default_job:
        args.arguments = [default_job]
    elif default_job and _is_override(args.arguments[0]):
        args.arguments.insert(0, default_job)
    return command.action(args)


# -- commands ----------------------------------------------------------------------------------------------------------
def _run(args: argparse.Namespace) -> api.Task:
    return api.Task(_load("run", args.arguments))


def _check(args: argparse.Namespace) -> None:
    _print(api.job_yaml(_load("check", args.arguments), args.data), end="")


def _replay(args: argparse.Namespace) -> api.Task:
    path, overrides = _file_and_overrides("replay", "RUN.h5", args.arguments)
    return api.replay_task(path, overrides, trust=args.trust)


def _resume(args: argparse.Namespace) -> api.Task:
    overrides = [argument for argument in args.arguments if _is_override(argument)]
    if len(args.arguments) != len(overrides) + 1:
        raise ConfigError("resume", " ".join(args.arguments) or "''", "one RUN.h5")
    (path,) = set(args.arguments) - set(overrides)
    return api.resume_task(Path(path), overrides, args.trust)


def _show(args: argparse.Namespace) -> None:
    if len(args.arguments) != 1:
        raise ConfigError("show", " ".join(args.arguments) or "''", "one RUN.h5, or one folder of run files")
    if (folder := Path(args.arguments[0])).is_dir():
        if args.follow:
            raise ConfigError("--follow", folder, "a RUN.h5; of a folder, mpifl show prints the present state alone")
        from mpifl.studies.index import show_folder

        _print(show_folder(folder))
        return
    from mpifl.analysis.show import show

    show(Path(args.arguments[0]), args.follow, _print)


def _verify(args: argparse.Namespace) -> None:
    if len(args.arguments) != 1:
        raise ConfigError("verify", " ".join(args.arguments) or "''", "one RUN.h5")
    _print(api.verify_file(Path(args.arguments[0]), args.replay, args.trust))


REPORT = ("spread", "columns", "reach", "reach_in", "formats", "figures", "x", "panels", "width", "all")


def _report(args: argparse.Namespace) -> None:
    from mpifl.analysis.options import parse_options

    if not args.arguments:
        raise ConfigError("report", "''", "at least one RUN.h5, a folder of run files, or one STUDY.yaml")
    options = parse_options({name: getattr(args, name) for name in REPORT})
    if args.reach_in is not None and args.reach is None:
        raise ConfigError("reach-in", args.reach_in, "--reach ACCURACIES as well, whose columns have these units")
    for name in ("formats", "figures", "x", "width"):
        if args.out is None and (value := getattr(args, name)):
            raise ConfigError(name, value, "--out DIR as well: without it no files are written")
    if Path(args.arguments[0]).suffix in (".yaml", ".yml"):
        path, overrides = _file_and_overrides("report", "STUDY.yaml", args.arguments)
        from mpifl.studies.select import report_study
        from mpifl.studies.study import load_study

        _print(report_study(load_study(path, overrides), args.out, options))
        return
    from mpifl.analysis.report import report

    _print(report(args.arguments, args.out, options))


def _export(args: argparse.Namespace) -> None:
    from mpifl.config import read

    path, overrides = _file_and_overrides("export", "RUN.h5", args.arguments)
    if args.to is None:
        raise ConfigError("--to", "''", "one of csv, parquet, tensorboard, safetensors, torch")
    overwrite = False
    for key, value in map(read.parse_override, overrides):
        if key != "overwrite" or not isinstance(value, bool):
            raise ConfigError(key, value, "only overwrite=true can be given to mpifl export")
        overwrite = value
    _print("\n".join(f"wrote {file}" for file in api.export_run(path, args.to, args.out, overwrite)))


def _sweep(args: argparse.Namespace) -> None:
    """Under MPI it checks the study alone: `_sweep_on_ranks` runs it."""
    from mpifl.transport.launcher import communicator

    if not args.dry_run and communicator() is None:
        from mpifl.studies.processes import start_fork_server

        start_fork_server()
    from mpifl.studies.parts import Part
    from mpifl.studies.study import load_study
    from mpifl.studies.sweep import count_groups, dry_run, print_progress, sweep

    path, overrides = _file_and_overrides("sweep", "STUDY.yaml", args.arguments)
    part = Part.parse(args.part) if args.part else None
    study = load_study(path, overrides)
    comm = communicator()
    count = count_groups(comm.size, study.options.ranks) if comm else args.processes
    if comm and args.processes:
        text = "no such option under mpirun, where each rank but 0, or group of `ranks`, computes one run at a time"
        raise ConfigError("--processes", args.processes, text)
    if args.dry_run:
        _print(dry_run(study, count))
    elif comm is None:
        _end_of_sweep(sweep(study, args.processes, print_progress(), part=part))


def _submit(args: argparse.Namespace) -> None:
    from mpifl.config import read
    from mpifl.studies.study import load_study
    from mpifl.submit.script import job_script, parse_seeds, study_script, submit
    from mpifl.submit.site import load_site

    path, overrides = _file_and_overrides("submit", "STUDY.yaml or JOB.yaml", args.arguments)
    given = {"time": args.time, "partition": args.partition, "account": args.account}
    site_keys = dict(read.parse_override(word.removeprefix("site.")) for word in overrides if word.startswith("site."))
    overrides = [word for word in overrides if not word.startswith("site.")]
    site, _ = load_site(args.site, site_keys | {key: value for key, value in given.items() if value is not None})
    if "axes" in read.read_yaml(path, "submit"):
        if args.seeds:
            raise ConfigError("--seeds", args.seeds, f"a job; {path} is a study, which has its seeds in the key trials")
        if args.tasks and args.runs:
            raise ConfigError("--runs", args.runs, "--tasks or --runs, not both")
        script = study_script(site, load_study(path, overrides), path, overrides, args.tasks, args.runs)
    else:
        for option, value in (("--tasks", args.tasks), ("--runs", args.runs)):
            if value:
                raise ConfigError(option, value, f"a study; {path} is a job")
        seeds = parse_seeds(args.seeds) if args.seeds is not None else None
        script = job_script(site, api.load_job(path, *overrides), path, overrides, seeds)
    if args.dry_run:
        _print(script.text, end="")
    else:
        _print(f"{submit(site, script)}\nlogs: {script.logs}")
    for note in script.notes:
        logging.getLogger("mpifl").warning("%s", note)


def _reproduce(args: argparse.Namespace) -> None:
    from mpifl.reproduce.command import OUT, describe_runs, overview, reproduce
    from mpifl.studies.sweep import print_progress
    from mpifl.transport.launcher import communicator

    if not args.arguments:
        _print(overview())
        return
    name, *overrides = args.arguments
    if wrong := [argument for argument in overrides if not _is_override(argument)]:
        raise ConfigError("reproduce", wrong[0], "key=value after the item, the paper or the STUDY.yaml")
    if args.trials:
        if any(override.startswith("trials=") for override in overrides):
            raise ConfigError("--trials", args.trials, "this option or trials=..., not both")
        overrides.append(f"trials={args.trials}")
    if args.dry_run:
        _print(describe_runs(name, overrides, args.processes))
        return
    if communicator():
        text = "a start without mpirun; on MPI ranks, run the study with mpifl sweep, then this with --no-runs"
        raise ConfigError("reproduce", name, text)
    _print(
        reproduce(name, overrides, args.processes, args.out or OUT, args.download, not args.no_runs, print_progress())
    )


def _end_of_sweep(index: Index) -> None:
    """Prints how a sweep ended. Raises RunFailed where runs have failed, or are not completed."""
    from mpifl.studies.sweep import final_line

    _print(final_line(index))
    if failed := index.counts()["failed"]:
        raise RunFailed(f"{failed} of {len(index.entries)} runs of the study failed")
    if left := index.unfinished():  # interrupted alone, or computed by a process that is no sweep
        raise RunFailed(f"{left} of {len(index.entries)} runs of the study are not completed: sweep it again")


def _sweep_on_ranks(args: argparse.Namespace) -> int:
    """`mpifl sweep` under MPI, once the study has been checked: whole runs side by side."""
    from mpifl.studies.parts import Part
    from mpifl.studies.study import load_study
    from mpifl.studies.sweep import print_progress, sweep_on_ranks
    from mpifl.transport.launcher import broadcast_number, communicator, run_or_abort

    comm = communicator()
    if comm is None or args.dry_run:  # `_sweep` has done it
        return 0
    part = Part.parse(args.part) if args.part else None

    def run() -> int:
        try:
            index = sweep_on_ranks(
                comm, lambda: load_study(*_file_and_overrides("sweep", "STUDY.yaml", args.arguments)),
                print_progress(), part,
            )  # fmt: skip
            if index:
                _end_of_sweep(index)
        except ConfigError as error:
            print(f"mpifl: {printable(error)}", file=sys.stderr)
            return 2
        except RunFailed as error:
            logging.getLogger("mpifl").error("%s", error)
            return 3
        except Interrupted as error:
            return error.code
        return 0

    return run_or_abort(comm, lambda: broadcast_number(comm, run()))


def _selftest(args: argparse.Namespace) -> None:
    """Checks the command line: `_run_selftest` does the rest, on all ranks."""
    if args.arguments:
        raise ConfigError("selftest", args.arguments[0], "no argument; --folder DIR names the folder that is tested")
    try:
        TemporaryDirectory(dir=args.folder).cleanup()
    except OSError as error:
        raise ConfigError("--folder", args.folder, f"a folder that can be written ({error.strerror})") from error


def _run_selftest(args: argparse.Namespace) -> int:
    """`mpifl selftest`, once its arguments have been checked."""
    from mpifl.selftest import FAILED, format_checks, selftest
    from mpifl.transport.launcher import broadcast_number, communicator, run_or_abort

    def run() -> int:
        if not (checks := selftest(communicator(), args.folder)):
            return 0
        _print(format_checks(checks))
        return 3 if any(check.result == FAILED for check in checks) else 0

    if comm := communicator():
        return run_or_abort(comm, lambda: broadcast_number(comm, run()))
    return run()


def _convert_trace(args: argparse.Namespace) -> None:
    from mpifl.scheduling.device_traces import convert

    if len(args.arguments) != 1:
        raise ConfigError("convert-trace", " ".join(args.arguments) or "''", "one file of devices")
    if args.clients is None:
        raise ConfigError("--clients", None, "the number of clients of the trace")
    path = Path(args.arguments[0])
    out = args.out or path.with_name(f"{path.name}.csv")
    _print(convert(path, out, args.clients, args.rows, args.kilobits))


def _list(args: argparse.Namespace) -> None:
    from mpifl.config.listing import KINDS, overview

    if not args.arguments:
        _print(overview())
        return
    kind, *names = args.arguments
    if kind not in KINDS or len(names) > 1:
        raise ConfigError("list", " ".join(args.arguments), f"one of {', '.join(KINDS)}, and at most one name after it")
    _print(KINDS[kind].show(names[0] if names else None))


class Command(NamedTuple):
    action: Callable[[argparse.Namespace], api.Task | None]
    usage: str
    help: str
    options: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - never changed
    on_all_ranks: Callable[[argparse.Namespace], int] | None = None
    """called on every rank once `action` has passed on rank 0; the exit code, the same on all of them"""


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: an integer of at least 1")
    return int(text)


PROCESSES = "runs computed at a time; default: the number of cores over the ranks of a run"
LOGGING: dict[str, dict[str, Any]] = {
    "-v, --verbose": {"action": "store_true", "help": "log evaluations and checkpoints too"},
    "-q, --quiet": {"action": "store_true", "help": "log warnings and errors only"},
}
TRUST = {"--trust": {"action": "store_true", "help": "import and run the code outside mpifl that the file names"}}
COMMANDS = {
    "run": Command(_run, "JOB.yaml [key=value ...]", "run a job, under mpirun or in one process", LOGGING),
    "check": Command(
        _check,
        "JOB.yaml [key=value ...]",
        "check a job; print it with all defaults filled in, the effective step of a client, and the memory of a run",
        {
            "--data": {
                "action": "store_true",
                "help": "load the data too; print the numbers of rows, clients and parameters",
            }
        },
    ),
    "resume": Command(
        _resume,
        "RUN.h5 [memory.key=value ...]",
        "continue a run from its last complete checkpoint, on any number of ranks",
        {**TRUST, **LOGGING},
    ),
    "replay": Command(
        _replay,
        "RUN.h5 [output=FILE.h5] [overwrite=true] [memory.key=value ...]",
        "repeat a run in its recorded order of arrivals, bit for bit",
        {**TRUST, **LOGGING},
    ),
    "verify": Command(
        _verify,
        "RUN.h5",
        "check that a run file is undamaged, and that its rows are consistent with its job",
        {
            "--replay": {"action": "store_true", "help": "replay the run too, and compare every row and the model"},
            **TRUST,
        },
    ),
    "sweep": Command(
        _sweep,
        "STUDY.yaml [key=value ...]",
        "run the missing runs of a study, several at a time",
        {
            "--processes": {
                "metavar": "N",
                "type": _at_least_one,
                "help": PROCESSES,
            },
            "--dry-run": {
                "action": "store_true",
                "help": "list the runs and estimate their time, without running them",
            },
            "--part": {
                "metavar": "K/N",
                "help": "compute only every N-th run, from run K (0 to N - 1) on, as one of N batch tasks",
            },
        },
        _sweep_on_ranks,
    ),
    "submit": Command(
        _submit,
        "STUDY.yaml|JOB.yaml [key=value ...] [site.key=value ...]",
        "submit a study or a job to the batch system",
        {
            "--dry-run": {"action": "store_true", "help": "print the batch script, and submit nothing"},
            "--site": {"metavar": "FILE", "type": Path, "help": "settings of the computing centre"},
            "--tasks": {"metavar": "N", "type": _at_least_one, "help": "number of tasks that share a study's runs"},
            "--runs": {"metavar": "N", "type": _at_least_one, "help": "runs of a study that each task computes"},
            "--seeds": {"metavar": "LIST", "help": "run a job once for each of these seeds, such as 0-19 or 0,3,5-7"},
            "--time": {"metavar": "H:MM:SS", "help": "time limit of a task"},
            "--partition": {"metavar": "NAME", "help": "partition of the batch system"},
            "--account": {"metavar": "NAME", "help": "account that is charged"},
        },
    ),
    "reproduce": Command(
        _reproduce,
        "[PAPER[/ITEM]|STUDY.yaml [key=value ...]]",
        "run the study of a paper's table or figure, and write a page with its results beside the published ones; "
        "without an argument, list the tables and figures",
        {
            "--trials": {
                "metavar": "N",
                "type": _at_least_one,
                "help": "number of trials of each combination; default: as in the study",
            },
            "--processes": {
                "metavar": "N",
                "type": _at_least_one,
                "help": PROCESSES,
            },
            "--out": {"metavar": "DIR", "type": Path, "help": "write the page here; default: results/reproduce"},
            "--download": {"action": "store_true", "help": "download data that are missing"},
            "--no-runs": {"action": "store_true", "help": "run nothing: write the page from the completed runs"},
            "--dry-run": {
                "action": "store_true",
                "help": "list the runs and estimate their time, without running them",
            },
        },
    ),
    "show": Command(
        _show,
        "RUN.h5|FOLDER",
        "print a summary of a run file, or the status of each run in a folder",
        {"--follow": {"action": "store_true", "help": "keep printing new evaluations while the run is live"}},
    ),
    "selftest": Command(
        _selftest,
        "",
        "check that MPI, HDF5, file locks and torch work on this machine, in one process or under mpirun",
        {
            "--folder": {
                "metavar": "DIR",
                "type": Path,
                "default": Path(),
                "help": "folder whose file system is tested; default: .",
            }
        },
        _run_selftest,
    ),
    "list": Command(
        _list,
        "[KIND [NAME]]",
        "list what a job can name: algorithms, data, models, delays, jobs and more",
    ),
    "report": Command(
        _report,
        "RUN.h5|FOLDER ...|STUDY.yaml [key=value ...]",
        "make tables and figures from run files, from folders of them or from a study",
        {
            "--out": {
                "metavar": "DIR",
                "type": Path,
                "help": "write the table and the figures into this folder; default: print the table",
            },
            "--spread": {
                "metavar": "KIND",
                "help": "spread over the trials: range (min to max, the default), sd (standard deviation) or ci95 "
                "(95 %% interval of the mean)",
            },
            "--columns": {
                "metavar": "NAMES",
                "help": "columns of the table, separated by commas: columns of /evaluations such as test_accuracy, and "
                "rho, global_steps, updates_per_second, staleness",
            },
            "--reach": {
                "metavar": "ACCURACIES",
                "help": "add columns with the time at which the test accuracy first reaches these values, such as "
                "0.8,0.9",
            },
            "--reach-in": {
                "metavar": "UNITS",
                "help": "units of the columns of --reach: time (the default), updates, rounds, bytes, local-steps",
            },
            "--all": {
                "action": "store_true",
                "help": "of a study: show all values, and mark those that its rule selects",
            },
            "--formats": {"metavar": "NAMES", "help": "files to write: md,csv,tex,png,pdf (the default), svg, html"},
            "--figures": {
                "metavar": "NAMES",
                "help": "figures to draw: accuracy, loss, gradient, staleness, client-updates, step-size-accuracy, "
                "step-size-loss, timeline, and columns of /evaluations; default: those that the runs have values for",
            },
            "--x": {
                "metavar": "UNITS",
                "help": "draw curves against time (the default), updates, rounds, bytes, local-steps",
            },
            "--panels": {
                "metavar": "AXIS",
                "help": "draw a panel for each value of this axis of the study, or key of the job",
            },
            "--width": {
                "metavar": "INCHES",
                "help": "width of the figures: 3.3 for a column, 7 (the default) for a page",
            },
        },
    ),
    "convert-trace": Command(
        _convert_trace,
        "DEVICES --clients N",
        "make a trace file from a public trace of devices in FedScale's layout",
        {
            "--clients": {
                "metavar": "N",
                "type": _at_least_one,
                "help": "number of clients: the first devices of the file",
            },
            "--rows": {
                "metavar": "N",
                "type": _at_least_one,
                "help": "for a file of capacities: rows that a client computes with in a contact",
            },
            "--kilobits": {
                "metavar": "N",
                "type": _at_least_one,
                "help": "for a file of capacities: size of the messages of a contact, both ways together (kbit)",
            },
            "--out": {"metavar": "FILE", "type": Path, "help": "the trace file; default: DEVICES.csv"},
        },
    ),
    "export": Command(
        _export,
        "RUN.h5 --to FORMAT [overwrite=true]",
        "write a run file as CSV, Parquet, TensorBoard events, safetensors or a state_dict of PyTorch",
        {
            "--to": {"metavar": "FORMAT", "help": "csv, parquet, tensorboard, safetensors or torch"},
            "--out": {"metavar": "PATH", "type": Path, "help": "the file or folder; default: beside the run file"},
        },
    ),
}


# -- reading the command line ------------------------------------------------------------------------------------------
class _Parser(argparse.ArgumentParser):
    """Errors are ConfigErrors, not a usage text."""

    def __init__(self, prog: str, command: Command) -> None:
        super().__init__(prog, f"{prog} {command.usage}", command.help, allow_abbrev=False)
        self.add_argument("arguments", nargs="*", metavar=command.usage, help=argparse.SUPPRESS)
        for option, settings in command.options.items():
            self.add_argument(*option.split(", "), **settings)

    def error(self, message: str) -> NoReturn:
        raise ConfigError("command line", self.prog, message)


def _is_override(argument: str) -> bool:
    return re.match(r"[A-Za-z_][\w.]*=", argument) is not None


def _file_and_overrides(command: str, kind: str, arguments: list[str]) -> tuple[Path, list[str]]:
    from mpifl.config.packaged import find_file

    files = [argument for argument in arguments if not _is_override(argument)]
    if not files:
        raise ConfigError(command, " ".join(arguments) or "''", f"a {kind} first, then key=value")
    if len(files) > 1:
        raise ConfigError(command, files[1], f"key=value after the {kind}")
    return find_file(files[0]), [argument for argument in arguments if _is_override(argument)]


def _load(command: str, arguments: list[str]) -> Job:
    path, overrides = _file_and_overrides(command, "JOB.yaml", arguments)
    return api.load_job(path, *overrides)


def _overview() -> str:
    rows = [(f"{name} {command.usage}", command.help) for name, command in COMMANDS.items()]
    width = max(len(left) for left, _ in rows)
    lines = [f"  {left:<{width}}  {right}" for left, right in rows]
    return "\n".join(
        [
            "usage: [mpirun -n RANKS] mpifl COMMAND ...",
            "",
            "Asynchronous and synchronous federated optimisation over MPI.",
            "",
            *lines,
            "",
            "  --version, --help; mpifl COMMAND --help",
            "",
            'If Open MPI says "There are not enough slots available", let it start more ranks than there are cores:',
            "  mpirun --map-by :oversubscribe -n RANKS mpifl run JOB.yaml",
        ]
    )
