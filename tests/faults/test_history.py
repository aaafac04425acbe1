"""A run in real time ends at its stop time and loses no update under any fault; its replay has the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from tests.faults.harness import Counted, amount, began, counting, intolerant, mpifl, replays
from tests.faults.history import SLACK, Case, check_history, draw_case, read_contacts, run_case

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

counted = counting(10, "history")


def content(algorithm: dict[str, Any], clients: int, stop: float, every: float) -> dict[str, Any]:
    return {
        "problem": {"clients": clients, "model": {"name": "quadratic", "dim": 3}}, "algorithm": algorithm, "seed": 0,
        "stop": {"time": stop}, "evaluate": {"every": every}, "output": "h.h5", "faults": {"refusals": 1000},
        "clock": {"mode": "real", "delay": "none"},
    }  # fmt: skip


def check_case(case: Case, folder: Path) -> str:
    """Runs a case, checks its file and replays it; returns the outcome."""
    run_case(case, folder)
    counts = check_history(case, folder)
    path = folder / "h.h5"
    assert mpifl("verify", path, "--trust") == 0
    replays(path)
    with open_run(path) as run:
        late = run.evaluations.age.max() > 1.0
    return f"completed, replayed bit for bit{', overloaded' if late else ''}" if counts["updates"] else "no update"


@pytest.mark.long
@pytest.mark.parametrize("seed", amount(10, 120))
def test_history(seed: int, tmp_path: Path, counted: Counted) -> None:
    case = draw_case(seed, not intolerant())
    with counted(case.place) as told:
        told[0] = check_case(case, tmp_path)


def test_history_of_one_run(tmp_path: Path) -> None:
    """One process with slow evaluations, one every millisecond, updates that are refused, and a pause by SIGSTOP."""
    algorithm = {"name": "tests.faults.history:StressedArea", "heavy": 0.002, "wrong": 3, "trigger": {"period": 0.001}}
    case = Case(content(algorithm, clients=6, stop=0.7, every=1e-3), 0, [], [(0.3, 0.5)])
    assert check_case(case, tmp_path).startswith("completed")


@pytest.mark.parametrize("ranks", [2, 0], ids=["a client rank", "one process"])
def test_no_contact_begins_after_the_stop_time(ranks: int, tmp_path: Path) -> None:
    """40 clients in one process, contacts of 0.2 s: those that are left at 1 s would take 7 s."""
    algorithm = {"name": "tests.faults.history:StressedFedAvg", "slow": 0.2}
    case = Case(content(algorithm, clients=40, stop=1.0, every=0.1), ranks, [], [])
    run_case(case, tmp_path)
    counts = check_history(case, tmp_path)
    assert 1 <= counts["updates"] <= 1.0 / 0.2 + 1
    start = began(tmp_path / "h.h5")
    assert start and all(begin <= start + 1.0 + SLACK for each in read_contacts(tmp_path / "contacts").values()
                         for _, begin, *_ in each)  # fmt: skip
