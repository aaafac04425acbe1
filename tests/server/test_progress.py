"""The live line of a run on a terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from mpifl.config.job import Faults
from mpifl.runfile.tables import UpdateRow
from mpifl.server import progress
from mpifl.server.client_table import ASIDE, LOST, ClientTable
from mpifl.server.failures import ClientFailures


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rate_and_staleness_are_those_since_the_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """201 updates of staleness 3 in 20 s are 10 a second, whatever happened before the resume."""
    screen, now = Terminal(), [100.0]
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    evaluator: Any = SimpleNamespace(latest={"train_loss": 0.25})
    bar = progress.progress_bar(SimpleNamespace(time=60.0, updates=None), evaluator, 1000)
    assert bar
    for k in range(201):
        now[0] = 100 + 20 * (k + 1) / 201
        bar.on_update(UpdateRow(30 + (k + 1) / 10, 0, 7, 3, 1, 16, 1.0))
    bar.close()
    assert progress.summary(1201, 50.1, evaluator.latest) == "1,201 updates in 50.1 s (24 a second), train loss 0.2500"
    # The end is drawn too.
    last = screen.getvalue().split("\r")[-1]
    assert "50.1/60" in last and "10 updates/s, staleness 3.0, loss 0.250" in last, last


def test_the_final_line_counts_lost_clients_and_refused_updates_where_there_are_any() -> None:
    clients = ClientTable(128)
    failures = ClientFailures(Faults(), clients, SimpleNamespace())  # type: ignore[arg-type]
    assert failures.notes() == []
    for i in range(51):
        clients.deactivate(i, LOST if i < 48 else ASIDE)
    for _ in range(1127):
        failures.count_refusal(60, "the update is not finite")
    line = progress.summary(20, 10.0, {"train_loss": 0.25}, [*failures.notes(), "a note"])
    assert line.split("; ") == [
        "20 updates in 10 s (2 a second), train loss 0.2500", "of 128 clients 48 lost, 3 aside",
        "1,127 updates refused", "a note",
    ]  # fmt: skip


@pytest.mark.parametrize(("stop", "reached", "shown"), [
    ({"time": 60.0, "updates": None}, False, "100%"),  # the last update was at 58.4 s
    ({"time": None, "updates": 40}, False, "100%"),
    ({"time": 60.0, "updates": 20}, False, "100%"),  # the number of updates ended it
    ({"time": 60.0, "updates": None}, True, "100%"),  # the accuracy did
])  # fmt: skip
def test_the_bar_of_a_completed_run_ends_at_its_end(
    monkeypatch: pytest.MonkeyPatch, stop: dict[str, Any], reached: bool, shown: str
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    evaluator: Any = SimpleNamespace(latest={"train_loss": 0.25}, reached=reached)
    for completed in (True, False):
        bar = progress.progress_bar(SimpleNamespace(**stop), evaluator, 0)
        assert bar
        for k in range(20):
            bar.on_update(UpdateRow(40 + k * 0.97, 0, 7, 3, 1, 16, 1.0))
        bar.close(completed)
        last = screen.getvalue().rstrip("\n").split("\r")[-1]
        assert (shown in last) == completed, last
        assert "loss 0.250" in last
