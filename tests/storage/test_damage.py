"""Damaged checkpoints: every change of a byte is noticed, and no content whatever is more than a clause or an error."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifl.errors import ConfigError
from mpifl.storage.checkpoint_arrays import HEAD, MAGIC, Saved, Unusable
from mpifl.storage.checkpoint_set import Checkpoint, Part, commit, newest, open_set
from tests.storage.sets import check, facts, finished, save
from tests.tiers import examples, parameters

FILES = ("000002.rank0", "000002.rank1", "000002.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in (1, 2):
        save(tmp_path, number, size=3)
    return tmp_path


def fallen_back(folder: Path, name: str) -> str:
    """Checkpoint 1 is taken, whole, and what is said is one line that names the file; returns it."""
    checkpoint, (clause,) = newest(folder, "run")
    assert checkpoint is not None and checkpoint.number == 1
    assert clause.startswith("checkpoint 2 ") and name in clause and "\n" not in clause
    return clause


@pytest.mark.parametrize("name", parameters(FILES, [name for name in FILES if not name.endswith("json")]))
def test_every_changed_byte_is_noticed(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    for place in range(len(whole)):
        for flip in range(1, 256, 7) if name.endswith("json") else (1, 0x10, 0x80):
            (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            fallen_back(folder, name)
    (folder / name).write_bytes(whole)
    checkpoint, passed = newest(folder, "run")
    assert checkpoint is not None and checkpoint.number == 2 and not passed
    check(checkpoint, 3)


@pytest.mark.parametrize("name", FILES)
def test_every_length_is_noticed(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    for length in range(len(whole)):
        (folder / name).write_bytes(whole[:length])
        assert "is damaged" in fallen_back(folder, name)
        if name.endswith("rank0"):
            with pytest.raises(ConfigError, match=r"^checkpoint=.*rank0: .*is damaged"):
                open_set(folder, 2).part(0)
    for more in (b"\0", b"\n", whole):
        (folder / name).write_bytes(whole + more)
        fallen_back(folder, name)


def unlink(path: Path) -> None:
    path.unlink()


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize("change", [unlink, directory, pipe, circle])
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_something_else(folder: Path, name: str, change: Callable[[Path], None]) -> None:
    change(folder / name)
    checkpoint, passed = newest(folder, "run")
    assert checkpoint is not None and checkpoint.number == 1
    if change is unlink and name.endswith("json"):
        assert passed == [], "a set without a manifest never was one"
    else:
        fallen_back(folder, name)


def test_nothing_is_left(folder: Path) -> None:
    for number in (1, 2):
        (folder / f"00000{number}.rank1").unlink()
    missing = [f"checkpoint {number} is damaged: 00000{number}.rank1 is missing" for number in (2, 1)]
    assert newest(folder, "run") == (None, missing)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_text("a file")
    assert newest(tmp_path / "a.ckpt", "run") == (None, [f"{tmp_path}/a.ckpt cannot be read: Not a directory"])


def test_parts_of_another_set_under_its_name(folder: Path) -> None:
    """All are whole, but they do not belong together."""
    shutil.copyfile(folder / "000001.rank0", folder / "000002.rank0")
    fallen_back(folder, "000002.rank0")
    save(folder, 2, size=3)
    shutil.copyfile(folder / "000001.json", folder / "000002.json")
    fallen_back(folder, "000002.json")


def test_a_newer_version(folder: Path) -> None:
    manifest = (folder / "000002.json").read_text()
    (folder / "000002.json").write_text(manifest.replace('"format":1', '"format":2'))
    said = "is of a newer format: {} has format 2, this mpifl reads 1"
    assert fallen_back(folder, "000002.json") == "checkpoint 2 " + said.format("000002.json")
    with pytest.raises(ConfigError, match="is of a newer format"):
        open_set(folder, 2)
    part = (folder / "000002.rank0").read_bytes()
    forge(folder, part.replace(MAGIC + b"\1", MAGIC + b"\2"))
    assert fallen_back(folder, "000002.rank0") == "checkpoint 2 " + said.format("000002.rank0")


# -- right checksums, any content --------------------------------------------------------------------------------------
def forge(folder: Path, part: bytes) -> None:
    """`part` as the one of rank 0 in checkpoint 2, with a manifest that agrees."""
    (folder / "000002.rank0").write_bytes(part)
    commit(folder, 2, facts(2), {0: (len(part), zlib.crc32(part))})


def packed(index: bytes, data: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    return HEAD.pack(MAGIC, version, len(index) if length is None else length) + index + data


def read(folder: Path) -> Any:
    """All of checkpoint 2 as a resumed run would read it, or the clause that is told instead."""
    checkpoint, passed = newest(folder, "run")
    if checkpoint is None or checkpoint.number != 2:
        assert len(passed) == 1 and passed[0].startswith("checkpoint 2 ") and "\n" not in passed[0]
        with pytest.raises(ConfigError, match=r"^checkpoint="):
            open_set(folder, 2).part(0)
        return passed[0]
    part = open_set(folder, 2).part(0)
    return {name: part[name] for name in part.names()}


def index(content: Any) -> bytes:
    return json.dumps(content).encode()


BAD = [
    b"", b"{}", b'""', b"null", b"1", b"\xff", b"[", b"[],", b"[] []", b"{" * 100_000, b"[" * 100_000, b"9" * 5000,
    b'[["x","<f8",' + b"[" * 50_000,
    index({"arrays": []}), index({"x": ["<f8", [0]]}), index("abc"), index([3]), index([[]]), index(["x", "<f8", [0]]),
    index([["x"]]), index([["x", "<f8", [1], 0]]), index([None]), index([{"x": 0, "<f8": 0, "y": []}]),
    index([["x", "<f8", [1]]]), index([["x", "<f8", [2**63]]]), index([["x", "<f8", [2**200]]]),
    index([["x", "<f8", [-1]]]),
    index([["x", "<f8", [0, 2**62, 2**62]]]), index([["x", "<f8", [0, 2**70]]]), index([["x", "<f8", [0] * 70]]),
    index([["x", "<f8", [True]]]), index([["x", "<f8", [False]]]), index([["x", "<f8", [1.0]]]),
    index([["x", "<f8", "12"]]), index([["x", "<f8", None]]),
    index([["x", "|O", [0]]]), index([["x", "O", [0]]]), index([["x", "<f8,<f8", [0]]]), index([["x", ["<f8"], [0]]]),
    index([["x", "<f8", [0]], ["x", "<f8", [0]]]), index([[1, "<f8", [0]]]), index([["x", "|S8", [0]]]),
    index([["x", None, []]]),
]  # fmt: skip


@pytest.mark.parametrize("content", BAD, ids=range(len(BAD)))
def test_an_index_that_makes_no_sense(folder: Path, content: bytes) -> None:
    """Whether or not the file ends where arrays begin, so that the length is right for arrays without elements."""
    for data in (b"", bytes(-(HEAD.size + len(content)) % 64)):
        forge(folder, packed(content, data))
        assert "000002.rank0 has a broken index" in read(folder)


def test_a_head_that_makes_no_sense(folder: Path) -> None:
    for part in (b"", MAGIC, b"x" * 100, struct.pack("<8sIQ", b"\x89HDF\r\n\x1a\n", 1, 2) + b"{}"):
        forge(folder, part)
        assert "is not a part of a checkpoint" in read(folder)
    forge(folder, packed(index([]), length=2**64 - 1))
    assert "cut off" in read(folder)
    forge(folder, packed(index([["x", "<f8", [2]]]), bytes(64)))
    assert "broken index" in read(folder)
    good = index([["x", "|u1", [1]]])
    forge(folder, packed(good, bytes(-(HEAD.size + len(good)) % 64) + b"\7"))
    assert read(folder)["x"].tolist() == [7]
    forge(folder, packed(b"[]"))
    assert read(folder) == {}


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_mutated_parts_with_right_checksums(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Nothing but arrays of the size of the file, or one clause."""
    folder = tmp_path_factory.mktemp("mutated")
    save(folder, 1, size=3)
    save(folder, 2, size=3)
    part = bytearray((folder / "000002.rank0").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, min(len(part), 400)))
        stop = start + data.draw(st.integers(0, 8))
        part[start:stop] = data.draw(
            st.binary(max_size=8) | st.sampled_from([b"9", b"[", b"<f8", b'"', b"-1", b"1e9", b",[]"])
        )
    forge(folder, bytes(part))
    found = read(folder)
    if not isinstance(found, str):
        assert sum(array.nbytes for array in found.values()) <= len(part)


def resealed(content: Any) -> bytes:
    """A manifest of any content whose own checksum is right."""
    rest = {key: value for key, value in content.items() if key != "crc"}
    crc = zlib.crc32(json.dumps(rest, separators=(",", ":")).encode())
    return json.dumps({"crc": crc, **rest}, separators=(",", ":")).encode() + b"\n"


KEYS = ["0", "1", "-1", "x", "١"]  # ranks, and what is none; int("١") is 1
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(["format", "number", "facts", "parts"]), VALUES | st.just("absent"), st.booleans())
def test_mutated_manifests_with_right_checksums(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any, inside: bool
) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    for number in (1, 2):
        save(folder, number, size=3)
    content = json.loads((folder / "000002.json").read_text())
    if value == "absent":
        del content[key]
    elif inside and isinstance(content[key], dict):
        content[key]["0"] = value
    else:
        content[key] = value
    (folder / "000002.json").write_bytes(resealed(content))
    checkpoint, passed = newest(folder, "run")
    assert checkpoint is not None
    assert checkpoint.number == 2 or (checkpoint.number == 1 and len(passed) == 1)
    for rank in checkpoint.ranks:
        checkpoint.part(rank)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_manifests_of_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "000001.json").write_bytes(content)
    checkpoint, passed = newest(folder, "run")
    assert checkpoint is None and passed[0].startswith("checkpoint 1 is damaged: 000001.json ")


def test_a_manifest_nested_too_deep(folder: Path) -> None:
    for content in (b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000):
        (folder / "000002.json").write_bytes(content)
        fallen_back(folder, "000002.json")


def test_a_part_that_is_cut_off_after_it_was_opened(folder: Path) -> None:
    part = open_set(folder, 2).part(0)
    os.truncate(part.path, part.path.stat().st_size - 100)
    with pytest.raises(ConfigError, match=r"^checkpoint=.*rank0: a whole file"):
        for name in part.names():
            part[name]
    part.path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        part["x"]


def test_errors_are_the_ones_that_are_promised(folder: Path) -> None:
    (folder / "000002.rank0").write_bytes(b"")
    with pytest.raises(Unusable):
        Saved(folder / "000002.rank0")
    with pytest.raises(Unusable):
        Checkpoint(folder, 2).check()
    part = Part(folder, 0)
    part.save(3, {"x": np.zeros(2)})
    assert [w.error for w in finished(part)] == [""]
    part.close()
