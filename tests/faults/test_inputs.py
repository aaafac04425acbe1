"""Malformed inputs: no traceback, no hang, no file changed.

`fuzz` says what must hold for each. The short tier has some inputs of every second kind, the long tier some of each
kind, the full pass (MPIFL_FAULTS=full) all of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.faults import fuzz_files as files
from tests.faults import fuzz_jobs as jobs
from tests.faults.fuzz import Kind, Worker, attempt
from tests.faults.harness import FULL, Counted, counting
from tests.tiers import parameters

CHECK, RESUME = [["check"]], [["resume", "run.h5"]]
READ = [["show", "run.h5"], ["report", "run.h5"], ["report", "run.h5", "--out", "out"], ["replay", "run.h5"]]
RESULT, READ_MAY = ("results/*.h5",), ("out/*", "run-replay.h5")
RESUME_MAY = ("run.h5", "run.h5.damaged*", "run.ckpt/*")
JOB = ("job0.yaml",)
KINDS = {
    "job file: text": Kind(jobs.prepare, jobs.text, CHECK, 180, words=JOB),
    "job file: bytes": Kind(jobs.prepare, files.job_bytes, CHECK, 120, words=JOB),
    "job file: values": Kind(jobs.prepare, jobs.values, [["run"]], 750, RESULT, (*JOB, *jobs.BOUNDED)),
    "job file: overrides": Kind(jobs.prepare, jobs.overrides, CHECK, 200, words=JOB),
    "run file: bytes": Kind(files.completed, files.any_bytes, READ, 300, READ_MAY),
    "run file: values": Kind(files.completed, files.values, READ, 250, READ_MAY),
    "run file of a killed run: bytes": Kind(files.killed, files.any_bytes, READ, 200, READ_MAY),
    "run file of a killed run: bytes, resumed": Kind(files.killed, files.any_bytes, RESUME, 150, RESUME_MAY),
    "checkpoints": Kind(files.killed, files.checkpoints, RESUME, 250, RESUME_MAY),
} | {
    f"data file: {name}": Kind(files.prepare, files.damaged(name), [["run", f"{name}.yaml"]], 80, RESULT)
    for name in files.FORMATS
}
SHORT = 80  # inputs of the short pass, about
ALL = sum(kind.share for kind in KINDS.values())
CASES: list[Any] = [(name, kind.share if FULL else max(3, SHORT * kind.share // ALL)) for name, kind in KINDS.items()]

pytestmark = [pytest.mark.timeout(3600 if FULL else 900), pytest.mark.damaged]


counted = counting(5, "inputs")
Good = Callable[[Kind], Path]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    """The undamaged files of a kind, prepared once."""
    made: dict[object, Path] = {}

    def prepared(kind: Kind) -> Path:
        if kind.prepare not in made:
            made[kind.prepare] = tmp_path_factory.mktemp("good")
            kind.prepare(made[kind.prepare])
        return made[kind.prepare]

    return prepared


@pytest.mark.parametrize(("name", "count"), parameters(CASES, CASES[::4]))
def test_malformed_inputs_neither_crash_nor_hang_nor_change_files(
    name: str, count: int, worker: Worker, good: Good, counted: Counted, tmp_path: Path
) -> None:
    """The first `count` inputs of a kind; the folders of those that went wrong stay."""
    kind, bad = KINDS[name], []
    for number in range(count):
        folder, random = tmp_path / str(number), Random(f"{name} {number}")
        shutil.copytree(good(kind), folder, symlinks=True)
        words = [*random.choice(kind.commands), *kind.damage(folder, random)]
        with counted(name) as told:
            reply, fault = attempt(worker, kind, folder, words)
            told[0] = "failed" if fault else f"exit {reply.code}"
        if fault:
            bad.append(f"{number}: {fault}: mpifl {' '.join(words)}\n{reply.err[-3000:]}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    assert not bad, "\n".join(bad[:20])


@pytest.mark.parametrize("name", parameters(KINDS, [*KINDS][1::2]))
def test_what_is_not_damaged_is_taken(name: str, worker: Worker, good: Good, tmp_path: Path) -> None:
    """Otherwise the test above would look no further than at the first check of each file."""
    folder, kind = tmp_path / "whole", KINDS[name]
    shutil.copytree(good(kind), folder)
    for words in kind.commands:
        reply, fault = attempt(worker, kind, folder, [*words, *kind.words])
        assert (reply.code, fault) == (0, ""), reply.err
