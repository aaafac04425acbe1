"""Rows that a run may go on from: counted exactly, on the disk, and still those of the run file."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mpifl.errors import RunFailed
from mpifl.storage import open_run
from mpifl.storage import writer as writer_module
from mpifl.storage.tables import TABLES, EventRow, UpdateRow
from tests.storage.test_resumed import resumed
from tests.storage.test_writer import writer


def test_counts_are_exact_at_every_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "WRITE_INTERVAL", 0)  # s: the thread takes rows over all the time
    w = writer(tmp_path / "run.h5")
    for k in range(1, 20_001):
        w.append(UpdateRow(k, 0, 0, 0, 1, 0, 0))
        if k % 100 == 0:
            w.append(EventRow(k, "mark"))
        assert w.counts() == {"updates": k, "aggregations": 0, "evaluations": 0, "events": k // 100}
    w.close("completed")
    assert w.counts()["updates"] == 20_000


def test_durable_rows_are_in_the_file_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w, seen, fsync = writer(tmp_path / "run.h5"), [], os.fsync

    def look(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), (tmp_path / "run.h5").stat()):
            with open_run(tmp_path / "run.h5") as run:
                seen.append(len(run.updates))
        fsync(descriptor)

    monkeypatch.setattr(writer_module.os, "fsync", look)
    for k in (1, 2, 3):
        w.append(UpdateRow(k, 0, 0, 0, 1, 0, 0))
        w.durable(w.counts())
        assert seen == list(range(1, k + 1))
    monkeypatch.undo()
    w.close("completed")
    w.durable(w.counts())  # as it is


def test_the_run_shows_that_it_is_alive_while_the_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written, and so the file's time changes, while another thread waits until they are durable."""
    w, begun, over = writer(tmp_path / "run.h5"), threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        begun.set()
        assert over.wait(30)

    monkeypatch.setattr(writer_module.os, "fsync", slow)
    w.append(UpdateRow(1, 0, 0, 0, 1, 0, 0))
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(w.durable, w.counts())
        assert begun.wait(20)
        w.append(UpdateRow(2, 0, 0, 0, 1, 0, 0))
        try:
            pool.submit(w.flush).result(20)
            with open_run(tmp_path / "run.h5") as run:
                assert len(run.updates) == 2
            assert not waiting.done()
        finally:
            over.set()
        waiting.result(20)
    monkeypatch.undo()
    w.close("completed")


def test_a_run_that_was_closed_and_resumed_is_not_durable(tmp_path: Path) -> None:
    """Its last checkpoint comes after that: by then the file is another's, and the checkpoints are too."""
    w = writer(tmp_path / "run.h5")
    w.append(UpdateRow(1, 0, 0, 0, 1, 0, 0))
    w.close("interrupted")
    w.durable(w.counts())
    zero = dict.fromkeys(TABLES, 0)
    other = resumed(tmp_path / "run.h5", counts=zero, number=0)
    with pytest.raises(RunFailed, match="the file was replaced"):
        w.durable(w.counts())
    other.close("completed")
