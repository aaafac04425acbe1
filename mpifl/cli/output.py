"""The terminal: what is logged, a closed pipe, Ctrl-C."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mpifl.safe_input import printable

VERBOSE, QUIET = frozenset({"-v", "--verbose"}), frozenset({"-q", "--quiet"})
LOG_LEVEL = "MPIFL_LOG_LEVEL"  # the environment variable that sets the level where neither -v nor -q is given
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _LogFormatter(logging.Formatter):
    """Puts "mpifl: " before warnings and errors; escapes characters that a terminal would act on."""

    def __init__(self, times: bool) -> None:
        """times: messages begin with the time, except errors, which end the command."""
        super().__init__()
        self._times = times

    def format(self, record: logging.LogRecord) -> str:
        timed = self._times and record.levelno < logging.ERROR
        time = f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')} " if timed else ""
        name = "mpifl: " if record.levelno >= logging.WARNING else ""
        text = time + name + super().format(record)  # the message may quote files and other ranks
        return printable(text.replace("\n", "\n    " if timed else "\n"), lines=True)


class _LogHandler(logging.StreamHandler):
    """Writes to stderr as long as it is open."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Does nothing: the user's code has closed stderr, or nobody reads it."""


@contextmanager
def log_to_stderr(arguments: Sequence[str], runs: bool) -> Iterator[None]:
    """Prints what the package logs: warnings, and what a command that runs a job does."""
    log, handler, level = logging.getLogger("mpifl"), _LogHandler(), _log_level(arguments, runs)
    handler.setFormatter(_LogFormatter(times=level < logging.WARNING))
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


def _log_level(arguments: Sequence[str], runs: bool) -> int:
    """The least level that is logged: by default what a run computes and where, and its state without a terminal."""
    if not VERBOSE.isdisjoint(arguments):
        return logging.DEBUG
    if not QUIET.isdisjoint(arguments):
        return logging.WARNING
    if level := os.environ.get(LOG_LEVEL):
        return LEVELS.get(level.lower(), logging.INFO)
    return logging.INFO if runs else logging.WARNING


def print_result(text: str, end: str = "\n") -> None:
    """Prints a command's result. It may quote files, so control characters are escaped."""
    print(printable(text, lines=True), end=end, flush=True)


def print_summary(text: str) -> None:
    """Prints a run's last line; on stderr where the user's code has closed stdout. That both are closed is no error."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            if stream is not None:
                print(printable(text, lines=True), file=stream, flush=True)
                return
        except (OSError, ValueError) as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)  # Python may write once more at its end
            if isinstance(error, BrokenPipeError):  # its reader has seen enough, as `head`
                return


@contextmanager
def closed_pipe_is_no_error() -> Iterator[None]:
    """Ends the block quietly where the reader of stdout has closed it, as `head` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def second_interrupt_kills() -> Iterator[None]:
    """Restores SIGINT's default action in the block: Ctrl-C that no run handles ends this process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # a run that was interrupted leaves another handler
            signal.signal(signal.SIGINT, before)
