"""Malformed inputs by the thousand: commands on damaged files, and what must hold whatever the damage.

A command ends within a deadline with exit code 0, 2 or 3; it prints no traceback and no warning, and one line
where the code is not 0. It changes no file that was there, and with exit code 2 makes none. It takes less than 10 s of
CPU time and 1 GB.

As a program this module runs commands one after the other in one process, since their start takes most of their time:
a line of JSON on stdin, {folder, words}, for each; one on stdout, a `Reply`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import select
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import NamedTuple

from mpifl import cli
from mpifl.runfile import reader

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0  # s for one input; nearly all take less than 0.1 s
SECONDS, MEMORY = 10.0, 1000  # s of CPU time and MiB of resident memory that a command may take
ADDRESSES = 3 << 30  # bytes of address space of a worker: what an input claims beyond is refused


class Kind(NamedTuple):
    """A kind of input."""

    prepare: Callable[[Path], None]  # puts undamaged files into an empty folder
    damage: Callable[[Path, Random], list[str]]  # damages those in a copy of it; more words for the command
    commands: Sequence[list[str]]  # one of them is run
    share: int  # inputs of this kind in the full pass
    may: tuple[str, ...] = ()  # patterns of the files that a command may make or change where it takes the input
    words: tuple[str, ...] = ()  # for the undamaged files, what `damage` else returns


class Reply(NamedTuple):
    """The result of one command; `code` is None if it did not end by itself."""

    code: int | None
    err: str
    seconds: float = 0.0  # of CPU time
    memory: int = 0  # MiB, the largest resident memory of the worker so far
    raw: bool = False  # a control character was printed


class Worker:
    """A process that runs commands; it is replaced if a command kills it or never ends."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        words, pipe = [sys.executable, "-m", "tests.faults.fuzz"], subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=ROOT)

    def run(self, folder: Path, words: list[str]) -> Reply:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        stdin.write(json.dumps({"folder": str(folder), "words": words}).encode() + b"\n")
        stdin.flush()
        answered = select.select([stdout], [], [], DEADLINE)[0]
        if answered and (line := stdout.readline()):
            return Reply(**json.loads(line))
        if answered:  # end of file: it is no more
            self._process.wait(DEADLINE)
        self.close()
        code = self._process.returncode
        self._start()
        return Reply(None, f"died: exit code {code}" if answered else f"no end after {DEADLINE} s")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


# -- the verdict -------------------------------------------------------------------------------------------------------
def attempt(worker: Worker, kind: Kind, folder: Path, words: list[str]) -> tuple[Reply, str]:
    """Runs one command in `folder`; returns its result, and what went wrong."""
    before, reply, after = contents(folder), worker.run(folder, words), contents(folder)
    changed = {file for file in before.keys() | after.keys() if before.get(file) != after.get(file)}
    return reply, wrong(reply, changed, kind)


def contents(folder: Path) -> dict[str, str]:
    """The checksum of every file below `folder`."""
    files = (Path(place, file) for place, _, names in os.walk(folder) for file in names)
    return {str(file.relative_to(folder)): checksum(file) for file in files if file.is_file()}


def checksum(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except PermissionError:  # that is the damage
        return "unreadable"


def wrong(reply: Reply, changed: set[str], kind: Kind) -> str:
    """What went wrong; empty if nothing did."""
    lines = reply.err.splitlines()
    if reply.code is None:
        return reply.err
    if reply.code not in (0, 2, 3):
        return f"exit code {reply.code}"
    if reply.code == 0:  # a resumed run tells what it passed over, and of a checkpoint whose place a folder has
        told = r"resuming from checkpoint \d+$| checkpoint \d+ could not be completed: .*: Is a directory$"
        if (others := [line for line in lines if not re.search(told, line)]) != lines:
            lines = [line for line in others if not re.search(r"^    \w| mpifl .*, commit ", line)]  # what is run
    if len(lines) != (reply.code != 0) or not all(line.startswith("mpifl: ") for line in lines):
        return f"exit code {reply.code} with {len(lines)} lines on stderr"
    may = kind.may if reply.code in (0, 3) else ()
    if bad := sorted(file for file in changed if not any(fnmatch(file, pattern) for pattern in may)):
        return f"exit code {reply.code}, but files made or changed: {bad}"
    if reply.seconds > SECONDS or reply.memory > MEMORY:
        return f"{reply.seconds} s, {reply.memory} MiB"
    return "printed a control character" if reply.raw else ""


# -- the process that runs commands ------------------------------------------------------------------------------------
def run(folder: str, words: list[str]) -> int:
    """The exit code of one command, started in `folder`."""
    path = list(sys.path)
    os.chdir(folder)
    try:
        return cli.main(words)
    except BaseException:  # main itself lets nothing through
        traceback.print_exc()
        return -1
    finally:
        sys.path[:] = path


def serve() -> None:
    """Answers each line; what commands write to stdout and stderr, C libraries included, is caught."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    warnings.simplefilter("always")  # not only once: each command is its own process for a user
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)  # as Python does
    reader.OPEN_INTERVAL = 0.001  # s; a damaged run file is opened many times
    replies = os.fdopen(os.dup(1), "w")
    with TemporaryFile() as out, TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        for line in sys.stdin:
            begin = time.process_time()
            code = run(**json.loads(line))
            seconds = time.process_time() - begin
            sys.stdout.flush()
            sys.stderr.flush()
            printed = []
            for file in (out, err):
                file.seek(0)
                printed.append(file.read())
                file.seek(0)
                file.truncate()
            raw = any(c < 32 and c not in (9, 10, 13) for c in b"".join(printed))
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            said = printed[1].decode("utf-8", "replace")[:20000]
            replies.write(json.dumps(Reply(code, said, seconds, memory, raw)._asdict()) + "\n")
            replies.flush()


if __name__ == "__main__":
    serve()
