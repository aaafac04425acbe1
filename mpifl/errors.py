"""Errors: bad input (exit code 2) and failed runs (exit code 3); how a run ended; how a client's error is reported."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MAX_PART, MAX_LINE = 1000, 5000  # characters printed of an error's key or value, and of the text after them
NO_MEMORY = ("can't start new thread", "failed to map segment", "annot allocate memory", "can't allocate memory")
MAX_TRACEBACK = 8000  # characters printed of a traceback; MAX_PART of each of its lines


class ConfigError(ValueError):
    """Bad input: command line, job, data or file. Printed as one line; the exit code is 2.

        key=value: what is wrong; expected what would be right; what to do

    `key` is the configuration key (or the kind of file), `value` what was given. At least one of `expected` and
    `remedy` is given; where one says it all, the other is left out. A section raises it with its own field's name; the
    reader of the job adds the section's key with `under`.
    """

    def __init__(self, key: str, value: object, wrong: str, expected: str = "", remedy: str = "") -> None:
        self.key, self.value, self.wrong, self.expected, self.remedy = key, value, wrong, expected, remedy
        super().__init__(key, value, wrong, expected, remedy)

    @property
    def text(self) -> str:
        """The line without key and value."""
        return "; ".join(filter(None, [self.wrong, self.expected and f"expected {self.expected}", self.remedy]))

    def __str__(self) -> str:
        from mpifl.safe_input import printable

        key, value, text = (" ".join(str(part).split()) for part in (self.key, self.value, self.text))
        return f"{printable(key, most=MAX_PART)}={printable(value, most=MAX_PART)}: {printable(text, most=MAX_LINE)}"

    def under(self, section: str) -> ConfigError:
        """Returns the same error with its key inside `section`."""
        return self.of(f"{section}.{self.key}" if self.key else section, self.value)

    def of(self, key: str, value: object) -> ConfigError:
        """Returns the same error of another key and value."""
        return ConfigError(key, value, self.wrong, self.expected, self.remedy)


@contextmanager
def inside(section: str) -> Iterator[None]:
    """Places the keys of the ConfigErrors of a block inside `section`."""
    try:
        yield
    except ConfigError as error:
        raise error.under(section) from None


def error_text(error: Exception) -> str:
    """The operating system's message of an error, without the text that HDF5 puts around it."""
    message = re.search(r"error message = '([^']*)'", str(error))
    return message[1] if message else getattr(error, "strerror", None) or str(error) or repr(error)


@contextmanager
def as_unwritable(key: str, path: object, expected: str = "a folder that can be written") -> Iterator[None]:
    """Raises an OSError of a block that writes as ConfigError(key, path, ...)."""
    try:
        yield
    except OSError as error:
        raise ConfigError(key, path, f"cannot be written: {error_text(error)}", expected) from error


class RunFailed(RuntimeError):
    """The run failed (a client raised an error, a rank was lost); the exit code is 3."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended, or a command without a run; equal on all ranks but for the fields that rank 0 alone has."""

    code: int = 0
    """exit code: 0 completed, 2 wrong input, 3 failed, 130 or 143 ended by a signal"""
    error: ConfigError | RunFailed | None = None
    """why it failed, or why an interrupted run was not saved"""
    output: str = ""
    """run file; empty where nothing was run"""
    summary: str = ""
    """the run in one line, on rank 0"""
    stuck_ranks: frozenset[int] = frozenset()
    """ranks that did not end, as rank 0 knows them"""
    wall_seconds: float | None = None
    """wall time of the run with its earlier sessions, on rank 0; None where no run began"""

    @property
    def status(self) -> str:
        """The status, as in the run file: completed, failed or interrupted."""
        return {0: "completed", 2: "failed", 3: "failed"}.get(self.code, "interrupted")


class MemberFailed(RuntimeError):
    """What another rank of a client's group raised; its text is the `format_client_error` of that rank."""


class Cancelled(BaseException):
    """Ends the computation of a client because another one has failed. It is no failure of this client."""


class Contradiction(Exception):
    """A run file is wrong. One line names the table, the row, the value and what was expected; the exit code is 3."""


def format_client_error(rank: int, error: BaseException) -> str:
    """The traceback of a client's error with its rank, host and process: several lines."""
    if isinstance(error, MemberFailed):
        return str(error)
    return f"raised on rank {rank} on {host_name()} (process {os.getpid()}):\n{format_traceback(error)}"


def format_traceback(error: BaseException) -> str:
    """The traceback of an error, as it is printed: without control characters, and cut where it is long."""
    import traceback

    from mpifl.safe_input import printable

    lines = "".join(traceback.format_exception(error)).rstrip().split("\n")
    return printable(shortened("\n".join(shortened(line, MAX_PART) for line in lines), MAX_TRACEBACK), lines=True)


def describe_unexpected(error: BaseException) -> str:
    """An unexpected error with the place at which it was raised, in one line."""
    import traceback

    place = traceback.extract_tb(error.__traceback__)[-1]
    text = shortened(" ".join(f"{type(error).__name__}: {error}".split()), MAX_PART)
    return f"{text} ({os.path.basename(place.filename)}:{place.lineno}, in {place.name})"


def lack_of_memory(error: BaseException) -> str:
    """A clause on an error that says that the process gets no more memory, or no further thread; "" for any other."""
    text = shortened((str(error).strip().splitlines() or [type(error).__name__])[-1], MAX_PART)
    known = isinstance(error, ImportError | OSError | RuntimeError) and any(each in text for each in NO_MEMORY)
    if isinstance(error, SystemError):  # code in C that did not notice that it got no memory
        known = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if not known and not isinstance(error, MemoryError):
        return ""
    return f"out of memory{' or threads' if 'thread' in text else ''} ({text})"


def shortened(text: str, most: int) -> str:
    """The first and the last part of a text that has more than `most` characters."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} [{len(text) - most // 2 * 2} characters] {text[len(text) - most // 2 :]}"


def host_name() -> str:
    """This host's name: SLURM's name of the node if it is set."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def place_of(cls: type, method: str) -> str:
    """The place of a class's method, for errors: `mean.py:12, Mean.train`."""
    function = getattr(cls, method)
    code = getattr(function, "__code__", None)
    file = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}, " if code else ""
    return f"{file}{getattr(function, '__qualname__', f'{cls.__qualname__}.{method}')}"


def first_and_last_line(text: str) -> str:
    """The first and the last line of a `format_client_error`, in one line."""
    lines = text.splitlines() or [""]
    return " ".join(dict.fromkeys([lines[0], lines[-1]]))
