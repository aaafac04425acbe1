"""The live line of a run on a terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from mpifl.server import progress
from mpifl.storage.tables import UpdateRow


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rate_and_staleness_are_those_since_the_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """201 updates of staleness 3 in 20 s are 10 a second, whatever came before the resume."""
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
    # Drawn every 0.2 s: the last time is after 199 updates.
    last = screen.getvalue().split("\r")[-1]
    assert "49.9/60" in last and "10 updates/s, staleness 3.0, loss 0.250" in last, last
