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

from tests.faults.fuzz import Fuzzer, Reply, row, wrong
from tests.faults.fuzz_kinds import KINDS
from tests.faults.harness import FULL, write_counts
from tests.tiers import parameters

NAMES = [name for name, kind in KINDS.items() if FULL or not kind.torch]
SHORT = 80  # inputs of the short pass, about
ALL = sum(KINDS[name].share for name in NAMES)
CASES: list[Any] = [(name, KINDS[name].share if FULL else max(3, SHORT * KINDS[name].share // ALL)) for name in NAMES]

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


@pytest.mark.parametrize("name", parameters(NAMES, NAMES[1::2]))
def test_what_is_not_damaged_is_taken(name: str, fuzzer: Fuzzer, tmp_path: Path) -> None:
    """Otherwise the test above would look no further than at the first check of each file."""
    folder, kind = tmp_path / "whole", KINDS[name]
    shutil.copytree(fuzzer.good(kind), folder)
    for words in kind.commands:
        reply, fault = fuzzer.run(kind, folder, [*words, *kind.words])
        assert (reply.code, fault) == (0, ""), reply.err


@pytest.mark.parametrize(
    ("reply", "changed", "text"),
    [
        (Reply(0, ""), {"results/a.h5"}, ""),
        (Reply(0, "mpifl: checkpoint 3 is damaged: resuming from checkpoint 2\n"), set(), ""),
        (Reply(None, "died: exit code -11"), set(), "died"),
        (Reply(1, ""), set(), "exit code 1"),
        (Reply(3, "Traceback (most recent call last):\n"), set(), "traceback"),
        (Reply(2, "mpifl: a\nmpifl: b\n"), set(), "2 lines"),
        (Reply(2, "mpifl: a\n"), {"cache/tokens", "results/a.h5"}, "['results/a.h5']"),
        (Reply(0, ""), {"executed"}, "['executed']"),
        (Reply(0, "", 11.0), set(), "11.0 s"),
        (Reply(0, "", memory=2000), set(), "2000 MiB"),
        (Reply(0, "", raw=True), set(), "control character"),
    ],
)
def test_verdicts(reply: Reply, changed: set[str], text: str) -> None:
    fault = wrong(reply, changed, KINDS["job file: run"])
    assert (text in fault) if text else not fault
