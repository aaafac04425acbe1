"""Reports of failures while a run continues, and the end of a run that consumed no update."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpifl import open_run
from mpifl.cli import main
from mpifl.config.job import Faults
from mpifl.server import progress, reports
from mpifl.server.client_table import LOST, ClientTable
from mpifl.server.failures import Action, ClientFailures
from mpifl.server.reports import FailureReports
from tests.mpi.cases import SMALL, job
from tests.mpi.conftest import write
from tests.server.test_progress import Terminal

OWN = """
from dataclasses import dataclass
from mpifl.algorithms import Update
from mpifl.algorithms.area import Area

@dataclass(frozen=True)
class Array(Area):
    def train(self, client, message, objective):
        return Update(0 * message.vectors[0], 1)

@dataclass(frozen=True)
class Two(Area):
    def train(self, client, message, objective):
        return Update((message.vectors[0], message.vectors[0]), 1)
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(reports, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_a_client_that_raised_and_moved_is_reported_when_it_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A traceback that was printed stands for the loss only where the client is lost by that error."""
    table, transport, raised = ClientTable(2), SimpleNamespace(), "raised on rank 1:\nValueError: no"
    for lost, lines in (("rehost", 2), ("freeze", 1)):
        caplog.clear()
        failures = ClientFailures(Faults(lost=lost), table, transport)  # type: ignore[arg-type]
        decision = failures.decide_failed(1, raised)
        assert decision.action is (Action.MOVE if lost == "rehost" else Action.LOSE)
        failures.report_lost(1, LOST, "gave no answer for 2 s")
        assert len(caplog.messages) == lines


def test_at_most_one_line_a_second_and_every_dead_rank_is_named(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    log = FailureReports()
    log.refused("client 3: the update's norm 1.5e+07 is above faults.norm")
    log.refused("client 4: the update's norm 2 is above faults.norm")  # of the same kind
    assert caplog.messages == ["update refused: client 3: the update's norm 1.5e+07 is above faults.norm"]
    assert not log.waiting
    log.refused("client 5: the update is not finite")
    log.client_lost(6, "lost", "gave no answer for 2 s")
    log.client_lost(7, "aside", "3 updates refused in a row: the update is not finite")
    log.ranks_died({2: 16})
    log.client_lost(1, "lost", "rank 2 died")
    clock[0] += 0.9
    log.ranks_died({5: 16, 3: 1})
    assert log.waiting and len(caplog.messages) == 1
    clock[0] += 0.2
    log.flush()
    assert caplog.messages[1:] == [
        "ranks 2, 3, 5 died, with 33 clients; update refused: client 5: the update is not finite; 2 more such events"
    ]
    assert not log.waiting
    log.client_lost(8, "aside", "3 updates refused in a row: the update is not finite")
    log.flush(now=True)
    assert caplog.messages[2:] == ["client 8 is set aside: 3 updates refused in a row: the update is not finite"]


def test_lines_stand_above_the_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the bar is cleared, the line printed, the bar drawn again; the handler is then as before."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    log, handler = logging.getLogger("mpifl"), logging.StreamHandler(screen)
    handler.setFormatter(logging.Formatter("mpifl: %(message)s"))
    monkeypatch.setattr(log, "handlers", [*log.handlers, handler])
    before = list(log.handlers)
    evaluator: Any = SimpleNamespace(latest={})
    bar = progress.progress_bar(SimpleNamespace(time=60.0, updates=None), evaluator, 0)
    assert bar
    log.warning("rank 2 died, with 16 clients")
    bar.close()
    assert log.handlers == before
    lines = [line.split("\r")[-1] for line in screen.getvalue().split("\n")]
    assert "mpifl: rank 2 died, with 16 clients" in lines, lines
    assert "0/60" in lines[lines.index("mpifl: rank 2 died, with 16 clients") + 1]


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        ({"name": "fedavg", "step_size": 1e45}, "client 2: the update is not finite"),
        (
            {"name": "refused_rules:Array"},
            "client 2 sends vectors=ndarray, not a tuple of vectors: Update((y,), steps)",
        ),
        ({"name": "refused_rules:Two"}, "client 2 sends 2 vectors, more than vectors_up (1)"),
    ],
    ids=["diverges", "array", "two"],
)
@pytest.mark.parametrize("stop", [0.15, 1e3])
def test_a_run_that_consumed_nothing_has_failed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    algorithm: dict[str, Any],
    says: str,
    stop: float,
) -> None:
    """Whether its time is over or no client is left: the first refusal is on stderr and in the last line."""
    (tmp_path / "refused_rules.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "c.h5"
    clock = {"mode": "virtual", "delay": {"name": "fixed", "seconds": [0.3, 0.2, 0.1, 1, 1, 1, 1]}}
    file = write(tmp_path, "c", job(algorithm, SMALL, clock=clock, stop={"time": stop}))
    assert main(["run", str(file), f"output={path}"]) == 3
    out, err = capsys.readouterr()
    assert f"mpifl: update refused: {says}\n" in err and "Traceback" not in err
    assert out.startswith(f"{path}: failed, 0 updates in 0 s") and out.endswith(f"the first refusal: {says}\n"), out
    if stop < 1:
        assert f"the run failed: no update was consumed and 1 refused; the first refusal: {says}\n" in err
        assert "; 1 update refused; " in out
    else:
        assert "of 7 clients 7 aside; 21 updates refused" in out and "the run failed: all clients are lost" in err
    with open_run(path) as run:
        assert run.status == "failed" and not run.open_ended
