"""A run file is resumed while others read it, and while the resuming process is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpifl.runfile import RunWriter, open_run
from mpifl.runfile import writer as writer_module
from mpifl.tools.analysis import show as show_module
from tests.runfile.resumer import counts
from tests.runfile.test_live import ROOT, Start, consistent, start
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


@pytest.mark.long
def test_a_row_is_read_or_not_whatever_is_resumed(start: Start) -> None:
    """A reader in another process never fails, nor sees a torn row, while the file is replaced again and again."""
    process, path = start()
    time.sleep(0.3)
    process.communicate(b"\n", timeout=30)
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.runfile.resumer", path], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        seen = []
        with open_run(path) as run:
            for _ in range(200):
                run.refresh()
                seen.append((run.status, consistent(run)))
    finally:
        other.kill()
        turns = len(other.communicate(timeout=10)[0].split())
    assert turns > 5 and {status for status, _ in seen} >= {"running", "interrupted"} and len(set(seen)) > 5


@pytest.mark.long
def test_killed_while_it_resumes(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any instant the old file or the new one exists, complete; the next resume removes what is left over."""
    process, path = start()
    time.sleep(0.3)
    process.communicate(b"\n", timeout=30)
    path.with_name("live.h5.ready").unlink()
    left = 0
    for trial in range(12):
        other = subprocess.Popen(
            [sys.executable, "-m", "tests.runfile.resumer", path], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        try:
            assert other.stdout is not None and other.stdout.readline()
            time.sleep(random.Random(trial).uniform(0, 0.04))
        finally:
            other.kill()
            other.communicate(timeout=10)
        left = max(left, len(os.listdir(path.parent)) - 1)
        with open_run(path) as run:
            rows = consistent(run)
    assert left > 0, "some must have been killed half-way"
    k = rows // 1000 * 1000
    monkeypatch.setattr(writer_module, "STALE_AGE", 0.0)  # they are all dead
    live(path, k).close("completed")
    assert os.listdir(path.parent) == ["live.h5"]


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
