"""What is saved in a checkpoint is read back; which sets are kept; which one is used."""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifl.checkpoint import part as part_module
from mpifl.checkpoint import segments as rows_module
from mpifl.checkpoint import snapshot
from mpifl.checkpoint.part import PartStatus, PartWriter
from mpifl.checkpoint.segments import Segment, extend_segments, first_to_merge, keep_segments, row_counts
from mpifl.checkpoint.sets import Checkpoint, discard, newest, open_set
from mpifl.checkpoint.snapshot import ClientSnapshot, UpdateSnapshot
from mpifl.errors import ConfigError, RunFailed
from mpifl.runfile import durable as durable_module
from mpifl.runfile import writer as writer_module
from mpifl.runfile.checkpoint_folder import folder_of, remove, sets
from mpifl.runfile.reader import open_run
from mpifl.runfile.tables import TABLES, EventRow, UpdateRow
from mpifl.runfile.writer import RunWriter
from tests.checkpoint.sets import check, content, current, finished, make_valid, same, save, save_part, server
from tests.runfile.test_resumed import fill, resumed
from tests.runfile.test_writer import writer

TYPES = [np.dtype(t) for t in ("?", "i1", "u1", "<i2", ">i4", "<i8", ">u8", "<f2", "<f4", ">f4", "<f8", ">f8", "<c16")]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def through(folder: Path, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Saves the arrays as the server's state and as a client's; returns the client's as read back."""
    parts = {}
    state = {5: ClientSnapshot(arrays), 4: ClientSnapshot({}), 7: ClientSnapshot(arrays)}
    contents: list[snapshot.PartContent] = [server(1, algorithm=arrays), state]
    for rank, each in enumerate(contents):
        written = save_part(folder, 1, rank, each)
        assert written == PartStatus(rank, 1, (folder / f"000001.rank{rank}").stat().st_size, written.crc, "")
        parts[rank] = written.bytes, written.crc
    make_valid(folder, 1, parts)
    checkpoint, passed = newest(folder, "run")
    assert checkpoint is not None and not passed and checkpoint.ranks == [0, 1]
    assert same(checkpoint.server(), server(1, algorithm=arrays))
    found = checkpoint.clients(1, [4, 7, 9])
    assert same([found[4], found[7]], [state[4], state[7]]) and len(found) == 2
    assert found[7].state is not None
    return dict(found[7].state)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_arrays_of_every_kind_come_back(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    """Of any bits: NaNs with their payload too."""
    draw, shape = np.random.default_rng(1), (70, 90, 31)
    base = draw.integers(0, 2, shape).astype(dtype)
    if dtype.kind != "b":
        base = np.frombuffer(draw.bytes(base.nbytes), dtype).reshape(shape)
    arrays = {
        "plain": base,
        "": base[0, 0],
        "strided": base[::-3, 1::2, ::5],
        "fortran": np.asfortranarray(base),
        "spread": np.broadcast_to(base[0], (4, 90, 31)),
        "scalar": base[1, 2, 3],
        "0-d": np.array(base[3, 2, 1]),
        "empty": base[:, :0],
        "ünï/code\n": base[2],
        "client": base[:2],
        "%2F": base[3],
        ".": base[4],
    }
    saved = through(tmp_path / "a.ckpt", {name: np.asarray(array) for name, array in arrays.items()})
    assert list(saved) == list(arrays)
    for name, array in arrays.items():
        found = saved[name]
        plain = np.ascontiguousarray(array, dtype.newbyteorder("<"))
        assert found.shape == array.shape and found.dtype == plain.dtype and found.tobytes() == plain.tobytes(), name
        assert found.flags.writeable and found.flags.c_contiguous and found.flags.owndata


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.data())
@pytest.mark.long
def test_clients_that_differ(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Names that some clients lack, other shapes, types and counts; each client gets its own back, all or some of
    them."""
    shapes, kinds = st.sampled_from([(), (2,), (3, 1), (0,), (20_000,)]), st.sampled_from(["f4", "f8", "i8", "?"])
    array = st.builds(lambda shape, kind, value: np.full(shape, value, kind), shapes, kinds, st.integers(0, 9))
    arrays = st.dictionaries(st.sampled_from("abc") | TEXT, array, max_size=3)
    vectors = st.lists(array, max_size=2).map(tuple)
    numbers = st.lists(st.floats(), max_size=3).map(tuple)
    number, real = st.integers(0, 9), st.floats()
    update = st.builds(UpdateSnapshot, vectors, numbers, number, number, number, real, real, real, real, TEXT, real)
    client = st.builds(ClientSnapshot, arrays, arrays, st.none() | update, TEXT)
    client |= st.builds(ClientSnapshot, st.none(), error=st.just("could not be hosted"))
    clients = data.draw(st.dictionaries(st.integers(0, 20), client, max_size=6))
    path = tmp_path_factory.mktemp("clients") / "part"
    snapshot.write_part(path, 1, 2, clients)
    snapshot.check_part(path, 1, 2)
    wanted = data.draw(st.sets(st.integers(0, 20)))
    found = snapshot.read_clients(path, wanted)
    assert found.keys() == clients.keys() & wanted
    for i, read in found.items():
        assert same(sort(read), sort(clients[i]))


def sort(client: ClientSnapshot) -> ClientSnapshot:
    """With its names in order: it is that of the names among all clients."""
    state = None if client.state is None else dict(sorted(client.state.items()))
    return replace(client, state=state, objective=dict(sorted(client.objective.items())))


def test_objects_cannot_be_stored(tmp_path: Path) -> None:
    folder = tmp_path / "a.ckpt"
    through(folder, {})
    for bad in (np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]"), np.zeros(2, np.longdouble)):
        contents: list[snapshot.PartContent] = [
            server(2, algorithm={"x": bad}),
            {1: ClientSnapshot({"x": bad})},
        ]
        for each in contents:
            assert save_part(folder, 2, 1, each) == (1, 2, 0, 0, f"x: an array of {bad.dtype} cannot be stored")
    assert save_part(folder, 2, 1, server(2, rows={"rows": {1}})).error == "rows: a set cannot be stored"  # type: ignore[dict-item]
    assert names(folder) == ["000001.json", "000001.rank0", "000001.rank1"]


def test_the_last_two_complete_sets_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for number in range(1, 6):
        save(tmp_path, number, ranks=1 + number % 3, size=10)
    kept = {4: ["json", "rank0", "rank1"], 5: ["json", "rank0", "rank1", "rank2"]}
    assert names(tmp_path) == [*(f"{k:06d}.{end}" for k, ends in kept.items() for end in ends), "notes.txt"]
    (tmp_path / "000005.rank1").unlink()  # no longer complete: not one of the two
    for dead in ("000006.rank0", ".000006.rank0.0123abcd7", ".000007.rank1.0123abcd0", "000006.rank8", "000008.rank0"):
        (tmp_path / dead).write_text("of a writer that was killed")
    save(tmp_path, 7, ranks=1, size=10)
    assert names(tmp_path) == [
        "000004.json", "000004.rank0", "000004.rank1", "000007.json", "000007.rank0", "000008.rank0", "notes.txt"
    ]  # fmt: skip
    remove(tmp_path)
    assert names(tmp_path) == ["notes.txt"]
    (tmp_path / "notes.txt").unlink()
    remove(tmp_path)
    remove(tmp_path)
    assert not tmp_path.exists()


def test_a_future_that_was_undone_goes(tmp_path: Path) -> None:
    """A run that fell back from 5 to 3 writes 4 next; the old 5 must not be used after that."""
    for number in (3, 5):
        save(tmp_path, number, size=10)
    save(tmp_path, 4, size=10)
    checkpoint, passed = newest(tmp_path, "run")
    assert checkpoint is not None and checkpoint.number == 4 and not passed
    check(checkpoint, 10)
    assert "000005.json" not in names(tmp_path) and "000003.json" in names(tmp_path)
    save(tmp_path, 6, size=10)
    assert [name for name in names(tmp_path) if "5" in name] == []
    # The run went on from 4 as b, and wrote over 5 in vain: the 5 that is there again is of a, and goes with 6.
    for number in (4, 5):
        save(tmp_path / "b", number, session="a", resumed_from=0)
    save(tmp_path / "b", 6, session="b", resumed_from=4)
    assert sets(tmp_path / "b") == [4, 6]
    save(tmp_path / "b", 7, session="b", resumed_from=4)
    assert sets(tmp_path / "b") == [6, 7]


def test_numbers_may_grow_beyond_their_zeros(tmp_path: Path) -> None:
    for number in (999_999, 1_000_000, 1_000_001):
        save(tmp_path, number, 1, size=10)
    assert current(tmp_path).number == 1_000_001
    assert [name for name in names(tmp_path) if name.endswith("json")] == ["1000000.json", "1000001.json"]


def test_sets_of_another_run_are_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 2, run="mine", size=10)
    save(tmp_path, 1, run="other", size=10)
    assert newest(tmp_path, "mine") == (None, ["checkpoint 1 is of another run"])
    save(tmp_path, 7, run="mine", size=10)
    written = save_part(tmp_path, 9, 0, server(9, run=""))
    make_valid(tmp_path, 9, {0: (written.bytes, written.crc)}, run="")
    save(tmp_path, 8, run="mine", size=10)
    assert not {"000001.json", "000009.json"} & {*names(tmp_path)}
    assert current(tmp_path, "mine").number == 8


def test_what_is_not_there(tmp_path: Path) -> None:
    assert folder_of(Path("results/a.b.h5")) == Path("results/a.b.ckpt")
    assert folder_of(Path("a.v2")) == Path("a.v2.ckpt"), "two runs never share one"
    assert newest(tmp_path / "none.ckpt", "run") == (None, []) and newest(tmp_path, "run") == (None, [])
    with pytest.raises(ConfigError, match=r"^checkpoint=.*000003\.json: .*No such file"):
        open_set(tmp_path, 3)
    save(tmp_path, 3, size=10)
    with pytest.raises(ConfigError, match=r"checkpoint 3 has no part of rank 7; expected one of its parts"):
        open_set(tmp_path, 3).clients(7)
    with pytest.raises(OSError, match="No such file"):
        make_valid(tmp_path, 4, {0: (10, 10)})
    written = save_part(tmp_path, 4, 0, content(4, 0))
    with pytest.raises(OSError, match="does not have its"):
        make_valid(tmp_path, 4, {0: (written.bytes + 1, written.crc)})
    assert newest(tmp_path, "run")[0].number == 3  # type: ignore[union-attr]


def test_the_manifest_is_json(tmp_path: Path) -> None:
    save(tmp_path, 12, size=10)
    found = json.loads((tmp_path / "000012.json").read_text())
    rest = {name: value for name, value in found.items() if name != "crc32"}
    assert (found["format"], found["number"], found["run"], found["session"]) == (snapshot.FORMAT, 12, "run", "session")
    assert found["crc32"] == zlib.crc32(json.dumps(rest, separators=(",", ":")).encode())
    part = (tmp_path / "000012.rank1").read_bytes()
    assert {*found["files"]} == {"0", "1"}
    assert found["files"]["1"] == {"name": "000012.rank1", "bytes": len(part), "crc32": zlib.crc32(part)}


def test_overwrite_does_not_follow_a_linked_folder_or_file(tmp_path: Path) -> None:
    """The link is removed, its target stays; a link to a folder without checkpoints belongs to the user and is kept."""
    elsewhere, empty = tmp_path / "elsewhere", tmp_path / "scratch"
    elsewhere.mkdir()
    empty.mkdir()
    save(elsewhere, 1)
    kept = names(elsewhere)
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder = folder_of(tmp_path / "run.h5")
    folder.symlink_to(elsewhere, target_is_directory=True)
    remove(folder)
    assert not folder.exists() and not folder.is_symlink()
    assert names(elsewhere) == kept
    folder.mkdir()
    (folder / "000001.rank0").symlink_to(outside)
    (folder / "000001.json").symlink_to(outside)
    remove(folder)
    assert not folder.exists() and outside.read_text() == "mine"
    folder.symlink_to(empty, target_is_directory=True)
    remove(folder)
    assert folder.is_symlink() and empty.is_dir()


def test_a_part_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    """A folder of checkpoints from elsewhere may have links to any file of this machine."""
    save(tmp_path / "real", 1)
    (tmp_path / "run").mkdir()
    for name in names(tmp_path / "real"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "real" / name)
    checkpoint, passed = newest(tmp_path / "run", "run")
    assert checkpoint is None and passed == ["checkpoint 1 cannot be read: 000001.json: it is not a regular file"]


# -- a part is written without waiting for the disk --------------------------------------------------------------------
class SlowDisk:
    """Nothing is durable before `ready` is set, and only threads wait for that."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.ready, self._fsync = threading.Event(), threading.Event(), os.fsync
        patch.setattr(part_module.os, "fsync", self._wait)

    def _wait(self, descriptor: int) -> None:
        self.begun.set()
        assert self.ready.wait(20) and threading.current_thread() is not threading.main_thread()
        self._fsync(descriptor)


def test_arrays_may_change_once_they_are_saved_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are those at the time of `save`; a second save waits for its turn in the thread."""
    disk = SlowDisk(monkeypatch)
    part, x = PartWriter(tmp_path / "a.ckpt", 5), np.zeros(100_000)
    for number in (1, 2):
        x[:] = number
        part.save(number, lambda: {0: ClientSnapshot({"x": x})})
    x[:] = 9
    assert part.done() == [] and all(name.startswith(".") for name in names(tmp_path / "a.ckpt"))
    disk.ready.set()
    first, second = finished(part, 2)
    assert (first.number, second.number) == (1, 2) and first.bytes == second.bytes and first.crc != second.crc
    assert part.done() == [] and names(tmp_path / "a.ckpt") == ["000001.rank5", "000002.rank5"]
    monkeypatch.undo()
    make_valid(tmp_path / "a.ckpt", 2, {5: (second.bytes, second.crc)})
    state = open_set(tmp_path / "a.ckpt", 2).clients(5)[0].state
    assert state and (state["x"] == 2).all()
    part.close()


def test_closing_gives_up_what_was_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, part = SlowDisk(monkeypatch), PartWriter(tmp_path, 0)
    for number in (1, 2, 3):
        part.save(number, lambda: {0: ClientSnapshot({"x": np.zeros(10)})})
    assert disk.begun.wait(20)
    closing = threading.Thread(target=part.close)
    closing.start()
    while not part._closing:
        time.sleep(0.001)
    disk.ready.set()
    closing.join(20)
    given_up = "given up at the end"
    assert not closing.is_alive()
    assert [(w.number, w.error) for w in part.done()] == [(1, ""), (2, given_up), (3, given_up)]
    assert names(tmp_path) == ["000001.rank0"]
    part.close()
    with pytest.raises(ValueError, match="after close"):
        part.save(4, lambda: {})
    part = PartWriter(tmp_path / "a.ckpt", 0)  # of a rank that never saves
    part.close()
    assert part.done() == [] and names(tmp_path) == ["000001.rank0"]


# -- rows of a run in its checkpoints: read back while it goes on, stored in segments, merged, removed -----------------
EMPTY = dict.fromkeys(TABLES, 0)


def test_counts_are_exact_at_every_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "WRITE_INTERVAL", 0)  # s: the thread takes rows over all the time
    w = writer(tmp_path / "run.h5")
    for k in range(1, 20_001):
        w.append(UpdateRow(k, 0, 0, 0, 1, 0, 0))
        if k % 100 == 0:
            w.append(EventRow(k, "mark"))
        assert w.counts() == EMPTY | {"updates": k, "events": k // 100}
    w.close("completed")
    assert w.counts()["updates"] == 20_000
    with open_run(w.path) as run:  # many chunks
        assert (run.updates.time == np.arange(1, 20_001)).all() and run.clients.updates.tolist() == [20_000, 0, 0]


@pytest.mark.parametrize("closed", [False, True])
def test_rows_are_read_as_they_were_appended(tmp_path: Path, closed: bool) -> None:
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
@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.writer.close("completed")


class Run:
    """A run that writes `each` updates before each of its checkpoints, on one rank."""

    def __init__(self, folder: Path) -> None:
        self.writer: RunWriter = writer(folder / "run.h5")
        self.folder, self.each, self.number = folder / "run.ckpt", 10, 0
        self.segments: list[Segment] = []

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
        self.segments = self.extend()
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
def test_large_segments_are_left_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than a segment holds are written as several, and full ones are not merged."""
    monkeypatch.setattr(rows_module, "SEGMENT_BYTES", 100 * TABLES["updates"].row_bytes)
    run.each = 250
    run.save()
    assert [segment.rows["updates"] for segment in run.segments] == [100, 100, 50]
    first = run.segments[:2]
    for _ in range(5):
        run.save()
        run.check()
        assert run.segments[:2] == first


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


def test_no_rows_no_segment(run: Run) -> None:
    run.save()
    assert extend_segments(run.folder, 2, run.segments, run.writer.counts(), run.writer.read) == run.segments
    with pytest.raises(ValueError, match="rows, of which"):
        extend_segments(run.folder, 2, run.segments, EMPTY, run.writer.read)


def test_an_abandoned_checkpoint_leaves_no_rows_behind(run: Run) -> None:
    """And takes none that a valid one needs: also one whose own set was removed long ago."""
    for _ in range(6):
        run.save()
    early = {segment.name[:6] for segment in run.segments}
    run.extend()
    assert list(run.folder.glob("000007.rows*"))
    for number in range(1, 8):
        discard(run.folder, number)
    assert not list(run.folder.glob("000007.*")) and len(early) > 1 and sets(run.folder) == [5, 6]
    run.number -= 1
    assert current(run.folder).number == 6


def test_missing_and_truncated_segments_are_written_again_with_the_same_bytes(run: Run) -> None:
    """All segments get the present time, as file systems remove what is old."""
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


def test_a_segment_of_other_rows_is_damaged(run: Run) -> None:
    """The order of the manifest, or its numbers of rows, are not those of the files."""
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
