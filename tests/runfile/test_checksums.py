"""Checksums of the run file: every flipped bit of a value is found, and no undamaged file is reported."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpifl.errors import ConfigError
from mpifl.runfile import reader
from mpifl.runfile.reader import open_run
from mpifl.runfile.tables import CHECKSUMS, CLIENTS, TABLES, UpdateRow
from mpifl.runfile.writer import RunWriter
from tests.runfile.test_resumed import fill
from tests.runfile.test_writer import writer
from tests.tiers import examples


def blocks(path: Path, count: int) -> RunWriter:
    """A run file of blocks of one row."""
    w = writer(path)
    for k in range(count):
        fill(w, k, k + 1)
        w.flush()
    return w


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A completed run file of several blocks."""
    path = tmp_path_factory.mktemp("run") / "run.h5"
    w = blocks(path, 5)
    w.set_attr("wall_seconds", 2.5)
    w.close("completed", np.array([4, 3, 2, 1]))
    return path


def places(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, offset, bytes) of every value in the file: columns, the model, and text attributes."""
    content = path.read_bytes()
    with h5py.File(path) as file:
        for table, columns in {**TABLES, "clients": CLIENTS, "checksums": CHECKSUMS}.items():
            for name in columns.columns:
                dataset = file[table][name]
                offset = dataset.id.get_offset()
                for k in range(dataset.id.get_num_chunks() if dataset.chunks else 0):
                    offset = dataset.id.get_chunk_info(k).byte_offset
                    rows = min(dataset.chunks[0], len(dataset) - k * dataset.chunks[0])
                    yield f"{table}/{name}", offset, rows * dataset.dtype.itemsize
                if not dataset.chunks:
                    yield f"{table}/{name}", offset, dataset.size * dataset.dtype.itemsize
        yield "model/x", file["model/x"].id.get_offset(), file["model/x"].nbytes
        for item in (file, file["model/x"]):
            for name, value in item.attrs.items():
                text = value.encode() if isinstance(value, str) else np.asarray(value).tobytes()
                if len(text) > 6 and content.count(text) == 1:
                    yield f"@{name}", content.index(text), len(text)


def flipped(path: Path, to: Path, offset: int, bit: int) -> Path:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    to.write_bytes(content)
    return to


def damage(path: Path) -> str:
    """What is wrong with a file when it is opened and checked; "" if nothing is."""
    try:
        with open_run(path) as run:
            return run.checksums().wrong
    except ConfigError as error:
        return str(error)


def test_a_file_that_is_as_it_was_written(closed: Path) -> None:
    assert damage(closed) == ""
    with open_run(closed) as run:
        found = run.checksums()
        assert found.rows == dict.fromkeys(TABLES, 5)
        assert [row.first for row in found.blocks["updates"]] == [0, 1, 2, 3, 4]


def test_a_flipped_bit_in_every_column_and_attribute(
    closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "OPEN_INTERVAL", 0.0)
    draw, names = random.Random(1), set()
    for name, offset, size in places(closed):
        names.add(name)
        for _ in range(examples(50) // 10):
            place, bit = draw.randrange(size), draw.randrange(8)
            assert damage(flipped(closed, tmp_path / "bad.h5", offset + place, bit)), (name, place, bit)
    columns = {f"{t}/{c}" for t, table in {**TABLES, "clients": CLIENTS}.items() for c in table.columns}
    assert names >= columns | {"model/x", "@config", "@started", "@finished", "@status", "@id", "@wall_seconds"}


def test_the_message_names_the_rows(closed: Path, tmp_path: Path) -> None:
    at = {name: offset for name, offset, _ in places(closed)}
    for name, size, expected in [
        ("updates/norm", 8, "updates: the checksum of rows 3 to 3 is "),
        ("events/text", 512, "events: the checksum of rows 3 to 3 is "),
        ("model/x", 4, "model/x: its checksum is "),
        ("@config", 1, "attribute config: its checksum is "),
    ]:
        bad = flipped(closed, tmp_path / "bad.h5", at[name] + 3 * size, 0)
        assert damage(bad).startswith(expected), damage(bad)


def test_a_file_that_is_being_written(tmp_path: Path) -> None:
    """What no block covers yet is not damage; nor is the model while it is replaced."""
    w = blocks(tmp_path / "run.h5", 3)
    assert damage(w.path) == ""
    w.append(UpdateRow(9.0, 1, 3, 0, 1, 144, 1.0))
    w._write_rows("updates", 1)  # a kill follows: the block has no checksum yet
    w._file.flush()
    with open_run(w.path) as run:
        assert run.count("updates") == 4 and run.checksums().rows["updates"] == 3 and not run.checksums().wrong
    w._file["model/x"].attrs.modify("version", np.int64(-1))
    w._file["model/x"][...] = 7
    w._file.flush()
    assert damage(w.path) == ""
    w._file["updates/norm"][1] = 7.0
    w._file.flush()
    assert damage(w.path).startswith("updates: the checksum of rows 1 to 1 is ")
