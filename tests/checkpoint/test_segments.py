"""Rows of a run in its checkpoints: read back while it goes on, stored in segments, merged, removed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mpifl.checkpoint import segments as rows_module
from mpifl.checkpoint.segments import Segment, extend_segments, first_to_merge, keep_segments, row_counts
from mpifl.checkpoint.sets import Checkpoint, discard, newest
from mpifl.errors import RunFailed
from mpifl.runfile import RunWriter, open_run
from mpifl.runfile import durable as durable_module
from mpifl.runfile import writer as writer_module
from mpifl.runfile.checkpoint_folder import sets
from mpifl.runfile.tables import TABLES, EventRow, UpdateRow
from tests.checkpoint.sets import make_valid, save
from tests.runfile.test_resumed import fill, resumed
from tests.runfile.test_writer import writer

EMPTY = dict.fromkeys(TABLES, 0)


# -- reading them back -------------------------------------------------------------------------------------------------
def test_counts_are_exact_at_every_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "WRITE_INTERVAL", 0)  # s: the thread takes rows over all the time
    w = writer(tmp_path / "run.h5")
    for k in range(1, 20_001):
        w.append(UpdateRow(k, 0, 0, 0, 1, 0, 0))
        if k % 100 == 0:
            w.append(EventRow(k, "mark"))
        assert w.counts() == dict.fromkeys(TABLES, 0) | {"updates": k, "events": k // 100}
    w.close("completed")
    assert w.counts()["updates"] == 20_000


@pytest.mark.parametrize("closed", [False, True])
def test_rows_are_read_as_they_were_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    monkeypatch.setattr(writer_module, "ROWS_READ", 7)
    w = writer(tmp_path / "run.h5")
    fill(w, 0, 50)
    if closed:
        w.close("interrupted")
    assert w.read("updates", 3, 20)["time"].tolist() == [k / 10 for k in range(3, 20)]
    assert w.read("events", 48, 50)["kind"].tolist() == [b"kind 48", b"kind 49"]
    assert w.read("events", 49, 50)["text"].tolist() == ["tëxt 49".encode()]
    assert not len(w.read("updates", 50, 50)["time"])
    with pytest.raises(RunFailed, match="51 rows of updates were not appended"):
        w.read("updates", 49, 51)
    with pytest.raises(RunFailed):
        w.check()


def test_the_run_shows_that_it_is_alive_while_the_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written, and so the file's time changes, while another thread waits until they are durable."""
    w, begun, over = writer(tmp_path / "run.h5"), threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        begun.set()
        assert over.wait(30)

    monkeypatch.setattr(durable_module.os, "fsync", slow)
    w.append(UpdateRow(1, 0, 0, 0, 1, 0, 0))
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(extend_segments, tmp_path, 1, [], w.counts(), w.read)
        assert begun.wait(20)
        w.append(UpdateRow(2, 0, 0, 0, 1, 0, 0))
        try:
            pool.submit(w.flush).result(20)
            with open_run(tmp_path / "run.h5") as run:
                assert len(run.updates) == 2
            assert not waiting.done()
        finally:
            over.set()
        (segment,) = waiting.result(20)
        assert segment.rows == {**EMPTY, "updates": 1}
    monkeypatch.undo()
    w.close("completed")


def test_a_run_that_was_closed_and_resumed_has_no_more_checkpoints(tmp_path: Path) -> None:
    """Its last checkpoint comes after that: by then the file is another's, and the checkpoints are too."""
    w = writer(tmp_path / "run.h5")
    w.append(UpdateRow(1, 0, 0, 0, 1, 0, 0))
    w.close("interrupted")
    w.check_not_replaced()
    other = resumed(tmp_path / "run.h5", counts=EMPTY, rows=[])
    with pytest.raises(RunFailed, match="the file was replaced"):
        w.check_not_replaced()
    with pytest.raises(RunFailed, match="the file was replaced"):
        w.read("updates", 0, 1)
    other.close("completed")


# -- segments ----------------------------------------------------------------------------------------------------------
class Run:
    """A run that writes `each` updates before each of its checkpoints, on one rank."""

    def __init__(self, folder: Path, each: int = 10) -> None:
        self.writer: RunWriter = writer(folder / "run.h5")
        self.folder, self.each, self.number = folder / "run.ckpt", each, 0
        self.segments: list[Segment] = []
        self.written = 0  # bytes

    def extend(self) -> list[Segment]:
        """The rows of the next checkpoint."""
        for k in range(self.each):
            self.writer.append(UpdateRow(self.number + k / 7, k % 3, k, 1, 1, 8, 0.5))
        self.writer.append(EventRow(self.number, "mark", -1, f"text {self.number}"))
        self.number += 1
        self.folder.mkdir(exist_ok=True)
        return extend_segments(self.folder, self.number, self.segments, self.writer.counts(), self.writer.read)

    def save(self) -> None:
        """Writes the next checkpoint, complete."""
        before, self.segments = {s.name for s in self.segments}, self.extend()
        self.written += sum(segment.bytes for segment in self.segments if segment.name not in before)
        save(self.folder, self.number, ranks=1, size=3, segments=self.segments)

    def check(self) -> None:
        """The rows of the newest checkpoint are those of the run."""
        checkpoint, passed = newest(self.folder, "run")
        assert checkpoint is not None and checkpoint.number == self.number and not passed
        blocks = list(checkpoint.rows())
        counts = self.writer.counts()
        assert row_counts(checkpoint.manifest.segments) == counts
        for table in TABLES:
            for name, values in self.writer.read(table, 0, counts[table]).items():
                found = np.concatenate([block[table][name] for block in blocks])
                assert found.dtype == values.dtype and found.tobytes() == values.tobytes(), f"{table}/{name}"


@pytest.mark.long
def test_segments_stay_few_and_each_row_is_written_a_few_times(tmp_path: Path) -> None:
    """300 checkpoints of equal length: at most 3 segments of each power of 4, and a row is written once for each."""
    run = Run(tmp_path, each=500)
    most = 0
    for _ in range(300):
        run.save()
        most = max(most, len(run.segments))
    levels = np.log(300) / np.log(4)
    assert most <= 3 * np.ceil(levels) + 1
    rows = 300 * (500 * TABLES["updates"].row_bytes + TABLES["events"].row_bytes)
    overhead = run.segments[-1].bytes - sum(n * TABLES[table].row_bytes for table, n in run.segments[-1].rows.items())
    assert run.written < (np.ceil(levels) + 1) * (rows + 300 * overhead)
    run.check()
    stored = {path.name for path in run.folder.glob("*.rows*")}
    before = Checkpoint(run.folder, 299).manifest.segments
    assert stored == {segment.name for segment in [*run.segments, *before]}, "those of two sets, and no others"
    run.writer.close("completed")


@pytest.mark.long
def test_large_segments_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than a segment holds are written as several, and full ones are not merged."""
    monkeypatch.setattr(rows_module, "SEGMENT_BYTES", 100 * TABLES["updates"].row_bytes)
    run = Run(tmp_path, each=250)
    run.save()
    assert [segment.rows["updates"] for segment in run.segments] == [100, 100, 50]
    first = run.segments[:2]
    for _ in range(5):
        run.save()
        run.check()
        assert run.segments[:2] == first
    run.writer.close("completed")


@pytest.mark.parametrize(
    ("sizes", "new", "first"),
    [
        ([], 5, 0),
        ([10], 29, 1),
        ([10], 30, 0),
        ([90, 10, 10], 10, 3),  # 30 are 3 times 10; the 90 has 30 after it
        ([10, 10, 10], 10, 0),
        ([120, 10, 10, 10], 10, 1),
        ([40, 40, 40, 10, 10, 10], 10, 0),  # 40 are 3 times 10, and 120 are 3 times 40
        ([120, 40, 40, 10, 10, 10], 10, 3),
        ([1 << 26, 1, 1, 1], 1, 1),
    ],
)
def test_which_segments_are_merged(sizes: list[int], new: int, first: int) -> None:
    assert first_to_merge(sizes, new) == first


def test_no_rows_no_segment(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save()
    assert extend_segments(run.folder, 2, run.segments, run.writer.counts(), run.writer.read) == run.segments
    with pytest.raises(ValueError, match="rows, of which"):
        extend_segments(run.folder, 2, run.segments, EMPTY, run.writer.read)
    run.writer.close("completed")


def test_an_abandoned_checkpoint_leaves_no_rows_behind(tmp_path: Path) -> None:
    """And takes none that a valid one needs: also one whose own set was removed long ago."""
    run = Run(tmp_path)
    for _ in range(6):
        run.save()
    early = {segment.name[:6] for segment in run.segments}
    run.extend()
    assert list(run.folder.glob("000007.rows*"))
    for number in range(1, 8):
        discard(run.folder, number)
    assert not list(run.folder.glob("000007.*")) and len(early) > 1 and sets(run.folder) == [5, 6]
    run.number -= 1
    checkpoint, passed = newest(run.folder, "run")
    assert checkpoint is not None and checkpoint.number == 6 and not passed
    run.writer.close("completed")


def test_missing_and_truncated_segments_are_written_again_with_the_same_bytes(tmp_path: Path) -> None:
    """All segments get the present time, as file systems remove what is old."""
    run = Run(tmp_path)
    for _ in range(7):
        run.save()
    paths = [run.folder / segment.name for segment in run.segments]
    assert len(paths) == 3
    before = [path.read_bytes() for path in paths]
    for path in paths:
        os.utime(path, (1e9, 1e9))
    paths[1].unlink()
    os.truncate(paths[2], 100)
    began = time.time()
    assert keep_segments(run.folder, run.segments, run.writer.read) == run.segments
    assert [path.read_bytes() for path in paths] == before
    assert all(min(path.stat().st_atime, path.stat().st_mtime) > began - 1 for path in paths)
    run.check()
    run.writer.close("completed")


def test_a_segment_of_other_rows_is_damaged(tmp_path: Path) -> None:
    """The order of the manifest, or its numbers of rows, are not those of the files."""
    run = Run(tmp_path)
    for _ in range(2):
        run.save()
    parts = Checkpoint(run.folder, 2).manifest.parts
    assert len(run.segments) == 2

    def refused(segments: list[Segment]) -> str:
        make_valid(run.folder, 2, dict(parts), segments=segments)
        _, (clause,) = newest(run.folder, "run")
        return clause

    assert "rows0 is not a segment of rows (updates does not begin with row 0)" in refused(run.segments[::-1])
    fewer: Mapping[str, int] = {**run.segments[1].rows, "updates": 9}
    one = Segment(run.segments[1].name, run.segments[1].bytes, run.segments[1].crc, fewer)
    assert "(updates does not have 9 rows of its columns)" in refused([run.segments[0], one])
    os.truncate(run.folder / run.segments[0].name, 100)
    assert "000001.rows0 has 100 bytes instead of" in newest(run.folder, "run")[1][0]
    run.writer.close("completed")
