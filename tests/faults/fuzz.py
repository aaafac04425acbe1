"""Malformed inputs by the thousand: commands on damaged files, and what must hold whatever the damage.

A command ends within a deadline with exit code 0, 2 or 3; it prints no traceback and no warning, and one line
where the code is not 0. It changes no file that was there, and with exit code 2 makes
none. Where it needs no torch it takes less than 10 s of CPU time and 1 GB.

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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
WORKER = [sys.executable, "-m", "tests.faults.fuzz_worker"]
DEADLINE = 60.0  # s for one input; nearly all take less than 0.1 s, the first of a worker with torch many more
SECONDS, MEMORY = 10.0, 1000  # s of CPU time and MiB of resident memory that a command without torch may take
ADDRESSES = {False: 3 << 30, True: 12 << 30}  # bytes of address space of a worker, without and with torch
ALWAYS = "cache/*"  # token files: they may come and be mended at any time


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
    seconds: float = 0.0  # of CPU time
    memory: int = 0  # MiB, the largest resident memory of the worker so far
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


class Worker:
    """A process that runs commands; it is replaced if a command kills it or never ends."""

    def __init__(self, torch: bool) -> None:
        self._env = {**os.environ, "FUZZ_MEMORY": str(ADDRESSES[torch])}
        self._start()

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(WORKER, stdin=pipe, stdout=pipe, cwd=ROOT, env=self._env)

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


class Fuzzer:
    """Draws inputs, runs commands on them in some workers at a time, and judges each result."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._good: dict[object, Path] = {}  # the undamaged files, by the function that makes them
        self._workers: dict[bool, list[Worker]] = {}  # without and with torch, started when they are needed

    def close(self) -> None:
        for workers in self._workers.values():
            for worker in workers:
                worker.close()

    def _queue(self, torch: bool) -> SimpleQueue[Worker]:
        if torch not in self._workers:
            self._workers[torch] = [Worker(torch) for _ in range(self._count)]
        queue: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers[torch]:
            queue.put(worker)
        return queue

    def draw(self, name: str, kind: Kind, number: int, folder: Path) -> list[str]:
        """Makes input `number` of a kind out of its undamaged files; the command."""
        random = Random(f"{name} {number}")
        shutil.copytree(self.good(kind), folder, symlinks=True)
        words = random.choice(kind.commands)
        return [*words, *kind.damage(folder, random)]

    def good(self, kind: Kind) -> Path:
        """The undamaged files of a kind, prepared once."""
        if kind.prepare not in self._good:
            self._good[kind.prepare] = folder = self._folder / str(len(self._good))
            folder.mkdir()
            kind.prepare(folder)
        return self._good[kind.prepare]

    def survey(self, name: str, kind: Kind, count: int, scratch: Path) -> list[Verdict]:
        """The verdicts on the first `count` inputs of a kind."""
        queue = self._queue(kind.torch)
        self.good(kind)  # before threads ask for it

        def one(number: int) -> Verdict:
            folder = scratch / str(number)
            words = self.draw(name, kind, number, folder)
            worker = queue.get()
            try:
                reply, fault = attempt(worker, folder, words, kind)
            finally:
                queue.put(worker)
            shutil.rmtree(folder, ignore_errors=True)
            return Verdict(name, number, words, reply, fault)

        with ThreadPoolExecutor(self._count) as threads:
            return list(threads.map(one, range(count)))

    def run(self, kind: Kind, folder: Path, words: list[str]) -> tuple[Reply, str]:
        """Runs one command in `folder`; returns its result, and what went wrong."""
        return attempt(self._queue(kind.torch).get(), folder, words, kind)


# -- the verdict -------------------------------------------------------------------------------------------------------
def attempt(worker: Worker, folder: Path, words: list[str], kind: Kind) -> tuple[Reply, str]:
    before = contents(folder)
    reply = worker.run(folder, words)
    after = contents(folder)
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
    if "Traceback" in reply.err:
        return f"traceback, exit code {reply.code}"
    if reply.code == 0:  # a resumed run tells what it passed over
        lines = [line for line in lines if not re.search(r"resuming from checkpoint \d+$", line)]
    if len(lines) != (reply.code != 0) or not all(line.startswith("mpifl: ") for line in lines):
        return f"exit code {reply.code} with {len(lines)} lines on stderr"
    may = [ALWAYS, *(kind.may if reply.code in (0, 3) else ())]
    if bad := sorted(file for file in changed if not any(fnmatch(file, pattern) for pattern in may)):
        return f"exit code {reply.code}, but files made or changed: {bad}"
    if not kind.torch and (reply.seconds > SECONDS or reply.memory > MEMORY):
        return f"{reply.seconds} s, {reply.memory} MiB"
    return "printed a control character" if reply.raw else ""


def row(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """The results of a kind of input, as a row of the page (`harness.write_counts`)."""
    codes = Counter(f"exit {v.reply.code}" if not v.wrong else "failed" for v in verdicts)
    return {
        "item": 5, "what": verdicts[0].kind, "runs": len(verdicts), "outcomes": dict(sorted(codes.items())),
        "seconds": round(sum(v.reply.seconds for v in verdicts), 1),
    }  # fmt: skip


def main(name: str, number: str, place: str) -> None:
    from tests.faults.fuzz_kinds import KINDS

    folder = Path(place, number).absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    (folder.parent / "good").mkdir()
    fuzzer = Fuzzer(folder.parent / "good", 1)
    words = fuzzer.draw(name, KINDS[name], int(number), folder)
    print(f"cd {folder}; mpifl {' '.join(words)}", flush=True)
    shutil.copytree(folder, folder.with_name(f"{number}-damaged"), symlinks=True)
    reply, fault = fuzzer.run(KINDS[name], folder, words)
    fuzzer.close()
    print(f"exit code {reply.code}, {reply.seconds:.2f} s; wrong: {fault or 'nothing'}\n{reply.err}")


if __name__ == "__main__":
    main(*sys.argv[1:])
