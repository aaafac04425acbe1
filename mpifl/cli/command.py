"""What every command is made of: its function and options, its parser, a file with overrides after it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from mpifl import api
from mpifl.errors import ConfigError
from mpifl.execution import Task

if TYPE_CHECKING:
    from mpifl.config.job import Job


class Command(NamedTuple):
    action: Callable[[argparse.Namespace], Task | None]
    usage: str
    help: str
    options: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - never changed
    on_all_ranks: Callable[[argparse.Namespace], int] | None = None
    """called on every rank once `action` has passed on rank 0; the exit code, the same on all of them"""


def flag(meaning: str) -> dict[str, Any]:
    """An option that is given or not."""
    return {"action": "store_true", "help": meaning}


def value(name: str, meaning: str, kind: Callable[[str], Any] = str, default: Any = None) -> dict[str, Any]:
    """An option with a value; kind: what is made of its text."""
    return {"metavar": name, "help": meaning, "type": kind, "default": default}


LOGGING = {
    "-v, --verbose": flag("log evaluations and checkpoints too"),
    "-q, --quiet": flag("log warnings and errors only"),
}
TRUST = {"--trust": flag("import and run the code outside mpifl that the file names")}


class Parser(argparse.ArgumentParser):
    """Errors are ConfigErrors, not a usage text."""

    def __init__(self, prog: str, command: Command) -> None:
        super().__init__(prog, f"{prog} {command.usage}", command.help, allow_abbrev=False)
        self.add_argument("arguments", nargs="*", metavar=command.usage, help=argparse.SUPPRESS)
        for option, settings in command.options.items():
            self.add_argument(*option.split(", "), **settings)

    def error(self, message: str) -> NoReturn:
        message = message.replace("ignored explicit argument", "it takes no value, but was given")
        raise ConfigError("command line", self.prog, message, remedy=f"see {self.prog} --help")


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: an integer of at least 1")
    return int(text)


def is_override(argument: str) -> bool:
    return re.match(r"[A-Za-z_][\w.]*=", argument) is not None


def file_and_overrides(command: str, kind: str, arguments: list[str]) -> tuple[Path, list[str]]:
    from mpifl.config.packaged import find_file

    files = [argument for argument in arguments if not is_override(argument)]
    if not files:
        raise ConfigError(command, " ".join(arguments) or "''", "no file", f"a {kind} first, then key=value")
    if len(files) > 1:
        raise ConfigError(command, files[1], "not key=value", f"key=value after the {kind}")
    return find_file(files[0]), [argument for argument in arguments if is_override(argument)]


def one_path(command: str, arguments: list[str], expected: str) -> Path:
    if len(arguments) != 1:
        wrong = "more than one path" if arguments else "no path"
        raise ConfigError(command, " ".join(arguments) or "''", wrong, expected)
    return Path(arguments[0])


def load_job(command: str, arguments: list[str]) -> Job:
    path, overrides = file_and_overrides(command, "JOB.yaml", arguments)
    return api.load_job(path, *overrides)
