"""Malformed inputs by the thousand: commands on damaged files, and what must hold whatever the damage.

A command ends within a deadline with exit code 0, 2 or 3; it prints no traceback and no warning, one line where it is
not 0; and it changes no file that was there, and with exit code 2 makes none.

One input alone, whose folder is left to be looked at: python -m tests.faults.fuzz KIND NUMBER FOLDER
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
WORKER = [sys.executable, "-m", "tests.faults.fuzz_worker"]
DEADLINE = 60.0  # s for one input; nearly all take less than 0.1 s, the first of a worker with torch many more
ALWAYS = "cache/*"  # of token files: it may come and be mended at any time


class Kind(NamedTuple):
    """A kind of input."""

    prepare: Callable[[Path], None]  # puts undamaged files into an empty folder
    damage: Callable[[Path, Random], list[str]]  # damages those in a copy of it; more words for the command
    commands: Sequence[list[str]]  # one of them is run
    share: int  # inputs of this kind in the full pass
    may: tuple[str, ...] = ()  # patterns of the files that a command may make or change where it takes the input
    words: tuple[str, ...] = ()  # for the undamaged files, what `damage` else returns
    torch: bool = False  # needs torch, which takes seconds to import


class Reply(NamedTuple):
    """The result of one command; `code` is None if it did not end by itself."""

    code: int | None
    err: str
    seconds: float = 0.0
    memory: int = 0  # MiB, the largest resident memory of the worker so far
    leaked: bool = False  # something was printed that no command may read
    raw: bool = False  # a control character was printed


class Verdict(NamedTuple):
    """The result of one input; `wrong` says what went wrong, and is empty if nothing did."""

    kind: str
    number: int
    words: list[str]
    reply: Reply
    wrong: str

    def __str__(self) -> str:
        return f"{self.kind} {self.number}: {self.wrong}: mpifl {' '.join(self.words)}\n{self.reply.err[-3000:]}"


# -- processes ---------------------------------------------------------------------------------------------------------
class Worker:
    """A process that runs commands; it is replaced if a command kills it or never ends."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)

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


@contextmanager
def workers(count: int) -> Iterator[SimpleQueue[Worker]]:
    """A queue of workers, each to be taken out and put back."""
    made = [Worker() for _ in range(count)]
    queue: SimpleQueue[Worker] = SimpleQueue()
    for worker in made:
        queue.put(worker)
    try:
        yield queue
    finally:
        for worker in made:
            worker.close()


# -- one input ---------------------------------------------------------------------------------------------------------
def damaged(name: str, kind: Kind, number: int, good: Path, folder: Path) -> list[str]:
    """Makes input `number` of a kind out of the undamaged files in `good`; the command."""
    random = Random(f"{name} {number}")
    shutil.copytree(good, folder, symlinks=True)
    words = random.choice(kind.commands)
    return [*words, *kind.damage(folder, random)]


def attempt(worker: Worker, folder: Path, words: list[str], may: Sequence[str]) -> tuple[Reply, str]:
    """Runs a command in `folder`; returns its result, and what went wrong."""
    before = contents(folder)
    reply = worker.run(folder, words)
    after = contents(folder)
    changed = {file for file in before.keys() | after.keys() if before.get(file) != after.get(file)}
    return reply, wrong(reply, changed, [ALWAYS, *(may if reply.code in (0, 3) else ())])


def contents(folder: Path) -> dict[str, str]:
    """The checksum of every file below `folder`."""
    files = (Path(place, file) for place, _, names in os.walk(folder) for file in names)
    return {str(file.relative_to(folder)): checksum(file) for file in files if file.is_file()}


def checksum(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except PermissionError:  # that is the damage
        return "unreadable"


def wrong(reply: Reply, changed: set[str], may: Sequence[str]) -> str:
    """What went wrong; empty if nothing did."""
    lines = reply.err.splitlines()
    if reply.code is None:
        return reply.err
    if reply.code not in (0, 2, 3):
        return f"exit code {reply.code}"
    if "Traceback" in reply.err:
        return f"traceback, exit code {reply.code}"
    if reply.code == 0:  # a resumed run tells what it passed over
        lines = [line for line in lines if not re.search(r"resuming from checkpoint \d+$", line)]
    if len(lines) != (reply.code != 0) or not all(line.startswith("mpifl: ") for line in lines):
        return f"exit code {reply.code} with {len(lines)} lines on stderr"
    if bad := sorted(file for file in changed if not any(fnmatch(file, pattern) for pattern in may)):
        return f"exit code {reply.code}, but files made or changed: {bad}"
    return ""


# -- many inputs -------------------------------------------------------------------------------------------------------
def survey(name: str, kind: Kind, count: int, pool: SimpleQueue[Worker], good: Path, scratch: Path) -> list[Verdict]:
    """The verdicts on the first `count` inputs of a kind; its undamaged files are in `good`."""

    def one(number: int) -> Verdict:
        folder = scratch / str(number)
        words = damaged(name, kind, number, good, folder)
        worker = pool.get()
        try:
            reply, fault = attempt(worker, folder, words, kind.may)
        finally:
            pool.put(worker)
        shutil.rmtree(folder, ignore_errors=True)
        return Verdict(name, number, words, reply, fault)

    with ThreadPoolExecutor(pool.qsize()) as threads:
        return list(threads.map(one, range(count)))


def row(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """The results of a kind of input, as a row of the page (`harness.Tally`)."""
    codes = Counter(f"exit {v.reply.code}" if not v.wrong else "failed" for v in verdicts)
    seconds = [verdict.reply.seconds for verdict in verdicts]
    what = f"malformed: {verdicts[0].kind}"
    return {
        "item": 5, "what": what, "runs": len(verdicts), "outcomes": dict(sorted(codes.items())),
        "seconds": round(sum(seconds), 1), "slowest_s": round(max(seconds), 2),
    }  # fmt: skip


def main(name: str, number: str, place: str) -> None:
    from tests.faults.fuzz_kinds import KINDS

    good, folder = Path(place, "good"), Path(place, number).absolute()
    good.mkdir(parents=True, exist_ok=True)
    KINDS[name].prepare(good)
    words = damaged(name, KINDS[name], int(number), good, folder)
    print(f"cd {folder}; mpifl {' '.join(words)}", flush=True)
    kept = folder.with_name(f"{number}-damaged")
    shutil.copytree(folder, kept, symlinks=True)
    with workers(1) as pool:
        reply, fault = attempt(pool.get(), folder, words, KINDS[name].may)
    print(f"exit code {reply.code}, {reply.seconds:.2f} s; wrong: {fault or 'nothing'}\n{reply.err}")


if __name__ == "__main__":
    main(*sys.argv[1:])
