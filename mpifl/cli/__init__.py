"""The command line. A user's mistake is one line on stderr and exit code 2, on any number of ranks."""

from __future__ import annotations

import difflib
import errno
import io
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mpifl.cli import information, results, runs, studies
from mpifl.cli.command import LOGGING, Parser, is_override
from mpifl.cli.output import (
    LEVELS,
    LOG_LEVEL,
    closed_pipe_is_no_error,
    log_to_stderr,
    print_summary,
    second_interrupt_kills,
)
from mpifl.errors import ConfigError, RunResult, error_text, format_traceback, host_name, lack_of_memory
from mpifl.execution import THREAD_VARIABLES, Task, execute
from mpifl.safe_input import NAME_BYTES
from mpifl.signals import is_from_signal
from mpifl.tools.export import observers
from mpifl.transport.detection import LaunchError

REPORT_TIME = 10.0  # s in which the first process of a launch reports its error before the others end

COMMANDS = {
    "run": runs.RUN,
    "check": runs.CHECK,
    "resume": runs.RESUME,
    "replay": runs.REPLAY,
    "verify": results.VERIFY,
    "sweep": studies.SWEEP,
    "submit": studies.SUBMIT,
    "reproduce": studies.REPRODUCE,
    "arena": studies.ARENA,
    "show": results.SHOW,
    "selftest": information.SELFTEST,
    "list": information.LIST,
    "report": results.REPORT,
    "compare": results.COMPARE,
    "convert-trace": information.CONVERT_TRACE,
    "export": results.EXPORT,
}


def main(argv: Sequence[str] | None = None, default_job: str | None = None) -> int:
    """Runs one command on rank 0, whose clients the other ranks host; returns the exit code, the same on all ranks.

    With a `default_job` the command is `run`.
    """
    for name in THREAD_VARIABLES:  # a rank is one core; NumPy reads this when it is imported
        os.environ.setdefault(name, "1")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if default_job and arguments[:1] != ["--version"]:
        arguments = ["run", *arguments]
    if os.getcwd() not in sys.path:  # a job may name a user's own "module:Class", on every rank
        sys.path.append(os.getcwd())
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may have letters that the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    command = COMMANDS.get(arguments[0]) if arguments else None
    runs_a_job = command is not None and LOGGING.keys() <= command.options.keys()
    with log_to_stderr(arguments, runs_a_job), second_interrupt_kills():
        try:
            code = execute(
                lambda: _command(arguments, default_job), _print_end, process_ends=True, observe=observers
            ).code
            if code or not command or not command.on_all_ranks or not {"--help", "-h"}.isdisjoint(arguments):
                return code
            return command.on_all_ranks(Parser(f"mpifl {arguments[0]}", command).parse_intermixed_args(arguments[1:]))
        except LaunchError as error:
            if error.is_first:
                _print_end(RunResult(2, error))
            else:  # mpirun ends all processes when one exits with an error, so the first must have printed its line
                time.sleep(REPORT_TIME)
                if error.key == "MPI" and error.is_first_of_host:  # MPI may be missing on this host alone
                    print(f"mpifl: {error} (on {host_name()})", file=sys.stderr)
            return 2
        except ConfigError:  # `_print_end` has printed it
            return 2
        except BaseException as error:  # only in one process: under MPI the error has ended all ranks
            if is_from_signal(error):
                raise
            lack = lack_of_memory(error)
            text = f"mpifl: {lack}" if lack else f"rank 0 on {host_name()}:\n{format_traceback(error)}"
            print(text, file=sys.stderr, flush=True)
            return 3


def _print_end(result: RunResult) -> None:
    """Prints how a command ended, on rank 0."""
    if isinstance(result.error, ConfigError):
        print(f"mpifl: {result.error}", file=sys.stderr)
    elif result.summary:
        print_summary(result.summary)


@closed_pipe_is_no_error()
def _command(arguments: list[str], default_job: str | None) -> Task | None:
    """Rank 0's part of a command: does what it can do alone, or returns the run for all ranks. Raises ConfigError."""
    if (level := (os.environ.get(LOG_LEVEL) or "info").lower()) not in LEVELS:
        raise ConfigError(LOG_LEVEL, level, "no such level", f"one of {', '.join(LEVELS)}")
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in ("-h", "--help"):
        print(_overview())
        return None
    if name == "--version":
        from mpifl.tools.selftest import versions
        from mpifl.version import source

        print(versions())
        print(f"commit {source().commit or 'unknown'}")
        return None
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else ""
        raise ConfigError("command", name or "''", "no such command", f"one of {', '.join(COMMANDS)}", hint)
    command = COMMANDS[name]
    parser = Parser(f"mpifl {name}", command)
    if default_job:
        parser.usage = f"[mpirun -n RANKS] python {Path(sys.argv[0]).name} [JOB.yaml] [key=value ...]"
    try:
        args, unknown = parser.parse_known_intermixed_args(rest)
    except SystemExit:  # --help was printed
        return None
    if unknown:
        raise ConfigError(
            "option", unknown[0], f"mpifl {name} has none", f"one of {', '.join(['--help', *command.options])}"
        )
    if "" in args.arguments:  # as of an unset variable: Path("") would be the working directory
        raise ConfigError("argument", "''", "it is empty", "a path, a name or key=value")
    if not args.arguments and default_job:
        args.arguments = [default_job]
    elif default_job and is_override(args.arguments[0]):
        args.arguments.insert(0, default_job)
    try:
        return command.action(args)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG or not error.filename:
            raise
        raise ConfigError("path", error.filename, error_text(error), f"names of at most {NAME_BYTES} bytes") from error


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
