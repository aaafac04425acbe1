"""Malformed inputs: no traceback, no hang, no file changed.

`fuzz` says what must hold for each. The short tier has some inputs of every second kind, the long tier some of each
kind, the full pass (MPIFL_FAULTS=full) all of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import fuzz_files as files
from tests.faults import fuzz_jobs as jobs
from tests.faults import fuzz_runs as runs
from tests.faults.fuzz import Fuzzer, Kind, row
from tests.faults.harness import FULL, write_counts
from tests.tiers import parameters

CHECK, RUN = [["check"]], [["run", "job.yaml"]]
READ = [["show", "run.h5"], ["report", "run.h5"], ["report", "run.h5", "--out", "out"], ["replay", "run.h5"]]
RESUME = [["resume", "run.h5"]]
RESULT, READ_MAY = ("results/*.h5",), ("out/*", "run-replay.h5")
RESUME_MAY = ("run.h5", "run.h5.damaged*", "run.ckpt/*")
JOB = ("job0.yaml",)
KINDS = {
    "job file: text": Kind(jobs.prepare, jobs.text, CHECK, 300, words=JOB),
    "job file: values": Kind(jobs.prepare, jobs.values, CHECK, 500, words=JOB),
    "job file: run": Kind(jobs.prepare, jobs.runnable, [["run"]], 250, RESULT, (*JOB, *jobs.BOUNDED)),
    "job file: overrides": Kind(jobs.prepare, jobs.overrides, CHECK, 200, words=JOB),
    "run file: bytes": Kind(runs.completed, runs.any_bytes, READ, 300, READ_MAY),
    "run file: content": Kind(runs.completed, runs.content, READ, 250, READ_MAY),
    "run file of a killed run: bytes": Kind(runs.killed, runs.any_bytes, READ, 200, READ_MAY),
    "run file of a killed run: content": Kind(runs.killed, runs.content, RESUME, 120, RESUME_MAY),
    "run file of a killed run: bytes, resumed": Kind(runs.killed, runs.any_bytes, RESUME, 150, RESUME_MAY),
    "checkpoints": Kind(runs.killed, runs.checkpoints, RESUME, 250, RESUME_MAY),
    "idx": Kind(files.idx(False), files.any_bytes("*ubyte"), RUN, 80, RESULT),
    "idx, gzipped": Kind(files.idx(True), files.inside_gzip, RUN, 60, RESULT),
    "CIFAR, binary": Kind(files.cifar("bin"), files.any_bytes("*batch*"), RUN, 40, RESULT),
    "CIFAR, pickled": Kind(files.cifar("py"), files.any_bytes("*batch*"), RUN, 80, RESULT),
    "own data: npz": Kind(files.arrays(".npz"), files.any_arrays, RUN, 100, RESULT),
    "own data: HDF5": Kind(files.arrays(".h5"), files.any_arrays, RUN, 100, RESULT),
    "LEAF JSON": Kind(files.leaf, files.any_json, RUN, 100, RESULT),
    "trace of delays": Kind(files.trace, files.any_bytes("*.csv"), RUN, 80, RESULT),
}
SHORT = 80  # inputs of the short pass, about
ALL = sum(kind.share for kind in KINDS.values())
CASES: list[Any] = [(name, kind.share if FULL else max(3, SHORT * kind.share // ALL)) for name, kind in KINDS.items()]

pytestmark = [pytest.mark.timeout(3600 if FULL else 900), pytest.mark.damaged]


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzer]:
    made = Fuzzer(tmp_path_factory.mktemp("good"), 4 if FULL else 2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def rows() -> Iterator[list[dict[str, object]]]:
    found: list[dict[str, object]] = []
    yield found
    write_counts("inputs", found)


@pytest.mark.parametrize(("name", "count"), parameters(CASES, CASES[::2]))
def test_bad_input(name: str, count: int, fuzzer: Fuzzer, rows: list[dict[str, object]], tmp_path: Path) -> None:
    verdicts = fuzzer.survey(name, KINDS[name], count, tmp_path)
    rows.append(row(verdicts))
    bad = [verdict for verdict in verdicts if verdict.wrong]
    assert not bad, "\n".join(map(str, bad[:20]))


@pytest.mark.parametrize("name", parameters(KINDS, [*KINDS][1::2]))
def test_what_is_not_damaged_is_taken(name: str, fuzzer: Fuzzer, tmp_path: Path) -> None:
    """Otherwise the test above would look no further than at the first check of each file."""
    folder, kind = tmp_path / "whole", KINDS[name]
    shutil.copytree(fuzzer.good(kind), folder)
    for words in kind.commands:
        reply, fault = fuzzer.run(kind, folder, [*words, *kind.words])
        assert (reply.code, fault) == (0, ""), reply.err
