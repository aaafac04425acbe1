"""The live line of a run on a terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from mpifl.server import progress
from mpifl.server.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rate_and_staleness_are_those_since_the_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """201 updates of staleness 3 in 20 s are 10 a second, whatever came before the resume."""
    screen, now, rows = Terminal(), [100.0], []
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    record: Any = SimpleNamespace(update=lambda *row: rows.append(row))
    evaluator: Any = SimpleNamespace(latest={"train_loss": 0.25})
    line = Progress(record, SimpleNamespace(time=60.0, updates=None), evaluator)
    line.resume(30.0, 1000)
    for k in range(201):
        now[0] = 100 + 20 * (k + 1) / 201
        line.update(30 + (k + 1) / 10, 0, 7, 3, 1)
    line.close()
    assert len(rows) == 201 and line.count == 1201
    assert line.summary() == "1,201 updates in 50.1 s (24 a second), train loss 0.2500"
    # Drawn every 0.2 s: the last time is after 199 updates.
    last = screen.getvalue().split("\r")[-1]
    assert "49.9/60" in last and "10 updates/s, staleness 3.0, loss 0.250" in last, last
