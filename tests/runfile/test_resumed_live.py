"""A run file is resumed while others read it, and while the resuming process is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpifl.runfile import RunWriter, open_run
from mpifl.tools.analysis import show as show_module
from tests.runfile.test_live import Start, consistent, start
from tests.runfile.test_resumed import attributes, fill, resumed, rows_of
from tests.runfile.test_writer import writer

__all__ = ["start"]

LIVE: dict[str, Any] = {
    "clients": {"samples": np.arange(7), "rank": np.zeros(7), "rate": None},
    "states": ["live"] * 7,
    "x": np.zeros(1000, np.float32),
    "version": 0,
    "layout": [("w", (10, 100))],
}


def counts(updates: int) -> dict[str, int]:
    """Rows of each table after so many updates."""
    return {"updates": updates, "aggregations": updates // 10, "evaluations": updates // 100, "client_evaluations": 0,
            "logged": 0, "metrics": 0, "events": updates // 1000}  # fmt: skip


def live(path: Path, rows: int) -> RunWriter:
    """Resumes the file of `live_writer` after so many updates."""
    kept, session = attributes(path, 1)
    attrs = {"name": "live", "config": "name: live\n", **kept}
    return RunWriter.resumed(path, **LIVE, attrs=attrs, rows=[rows_of(path, counts(rows))], session=session)


def test_a_killed_run_goes_on(start: Start) -> None:
    for trial in range(3):
        process, path = start(f"killed{trial}.h5", 0.002)
        time.sleep(random.Random(trial).uniform(0.1, 0.4))
        process.kill()
        process.wait(timeout=10)
        with open_run(path) as run:
            rows = consistent(run)
        k = rows // 2 // 1000 * 1000
        w = live(path, k)
        w.close("interrupted")
        with open_run(path) as run:
            assert consistent(run) == k <= rows and run.status == "interrupted"
            assert run.clients.updates.sum() == k


def test_a_follower_goes_on_with_the_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lines = tmp_path / "run.h5", []
    attrs = {"name": "followed", "hosts": "[]"}
    old, new = writer(path, attrs=attrs), []
    fill(old, 0, 30)
    old.flush()

    def steps() -> Iterator[None]:
        new.append(resumed(path, attrs=attrs))
        yield
        fill(new[0], 23, 60)
        new[0].flush()
        yield
        new[0].close("completed")
        yield

    waits = steps()
    monkeypatch.setattr(show_module, "time", SimpleNamespace(sleep=lambda _: next(waits)))
    show_module.show(path, follow=True, write=lines.append)
    assert lines[-1] == "completed" and len(lines) == 39, "the page, evaluations 23 to 59, the end"
    assert "updates 59" in lines[-2] and "updates 23" in lines[1]
