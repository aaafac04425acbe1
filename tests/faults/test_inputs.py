"""Malformed inputs: no traceback, no hang, no file changed; exit code 0, 2, or 3 where a run had begun.

A short pass, or the full one where MPIFL_FAULTS is `full`; see `harness`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.faults.fuzz import ALWAYS, Reply, Worker, attempt, row, survey, workers, wrong
from tests.faults.fuzz_kinds import KINDS
from tests.faults.harness import FULL
from tests.tiers import parameters

NAMES = [name for name, kind in KINDS.items() if FULL or not kind.torch]
SHORT = 100  # inputs of the short pass, about

pytestmark = pytest.mark.timeout(3600 if FULL else 120)


@pytest.fixture(scope="module")
def pool() -> Iterator[SimpleQueue[Worker]]:
    with workers(4 if FULL else 2) as queue:
        yield queue


@pytest.fixture(scope="module")
def rows() -> Iterator[list[dict[str, object]]]:
    found: list[dict[str, object]] = []
    yield found
    if place := os.environ.get("MPIFL_FAULTS_OUT"):
        Path(place).mkdir(parents=True, exist_ok=True)
        Path(place, "inputs.json").write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The undamaged files of a kind."""
    made: dict[object, Path] = {}

    def prepared(name: str) -> Path:
        prepare = KINDS[name].prepare
        if prepare not in made:
            made[prepare] = tmp_path_factory.mktemp("good")
            prepare(made[prepare])
        return made[prepare]

    return prepared


@pytest.mark.parametrize("name", parameters(NAMES, NAMES[::2]))
def test_malformed(
    name: str, pool: SimpleQueue[Worker], good: Callable[[str], Path], rows: list[dict[str, object]], tmp_path: Path
) -> None:
    count = KINDS[name].share if FULL else max(3, SHORT * KINDS[name].share // sum(KINDS[n].share for n in NAMES))
    verdicts = survey(name, KINDS[name], count, pool, good(name), tmp_path)
    rows.append(row(verdicts))
    bad = [verdict for verdict in verdicts if verdict.wrong]
    assert not bad, "\n".join(map(str, bad[:20]))


@pytest.mark.parametrize("name", parameters(NAMES, NAMES[1::2]))
def test_what_is_not_damaged_is_taken(
    name: str, pool: SimpleQueue[Worker], good: Callable[[str], Path], tmp_path: Path
) -> None:
    """Otherwise the test above would look no further than at the first check of each file."""
    folder, kind = tmp_path / "whole", KINDS[name]
    shutil.copytree(good(name), folder)
    worker = pool.get()
    try:
        for words in kind.commands:
            reply, fault = attempt(worker, folder, [*words, *kind.words], kind.may)
            assert (reply.code, fault) == (0, ""), reply.err
    finally:
        pool.put(worker)


@pytest.mark.parametrize(
    ("reply", "changed", "text"),
    [
        (Reply(0, ""), {"out/a"}, ""),
        (Reply(2, "mpifl: job=x: no such file\n"), set(), ""),
        (Reply(0, "mpifl: checkpoint 3 is damaged: resuming from checkpoint 2\n"), set(), ""),
        (Reply(None, "died: exit code -11"), set(), "died"),
        (Reply(1, ""), set(), "exit code 1"),
        (Reply(3, "Traceback (most recent call last):\n"), set(), "traceback"),
        (Reply(2, ""), set(), "0 lines"),
        (Reply(2, "mpifl: a\nmpifl: b\n"), set(), "2 lines"),
        (Reply(0, "RuntimeWarning: overflow\n"), set(), "1 lines"),
        (Reply(2, "mpifl: a\n"), {"cache/tokens", "b"}, "['b']"),
    ],
)
def test_verdicts(reply: Reply, changed: set[str], text: str) -> None:
    fault = wrong(reply, changed, [ALWAYS, *(["out/*"] if reply.code == 0 else [])])
    assert (text in fault) if text else not fault
