"""Damaged checkpoints: every changed byte is noticed, and any content at all gives an array or a one-clause error."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpifl.checkpoint.sets import Checkpoint, newest, open_set
from mpifl.checkpoint.snapshot import FORMAT, SIGNATURE, Unusable, read_clients, write_part
from mpifl.errors import ConfigError
from tests.checkpoint.sets import check, content, current, make_valid, save
from tests.runfile.test_untrusted import Change, attribute, many_ways, replaced
from tests.tiers import examples, long

FILES = ("000002.rank0", "000002.rank1", "000002.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in (1, 2):
        save(tmp_path, number, size=3)
    return tmp_path


def fallen_back(folder: Path, name: str) -> str:
    """Checks that checkpoint 1 is used, complete, and that the message is one line that names the file; returns it."""
    checkpoint, (clause,) = newest(folder, "run")
    assert checkpoint is not None and checkpoint.number == 1
    assert clause.startswith("checkpoint 2 ") and name in clause and "\n" not in clause
    return clause


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [97, long(1)])  # bytes between two that are changed
@pytest.mark.parametrize("name", FILES)
def test_every_changed_byte_and_every_length_is_noticed(folder: Path, name: str, step: int) -> None:
    whole = (folder / name).read_bytes()
    for place in range(0, len(whole), step):
        for flip in range(1, 256, 7) if name.endswith("json") else (1, 0x10, 0x80):
            (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            with pytest.raises(Unusable, match=name):
                Checkpoint(folder, 2).check()
        if place % 1450 < step:
            fallen_back(folder, name)
        (folder / name).write_bytes(whole[:place])
        with pytest.raises(Unusable, match=f"is damaged: {name}"):
            Checkpoint(folder, 2).check()
        if place % 1450 < step:
            assert "is damaged" in fallen_back(folder, name)
        if name.endswith("rank0"):
            with pytest.raises(ConfigError, match=r"^checkpoint=.*rank0: .*is damaged"):
                open_set(folder, 2).server()
    for more in (b"\0", b"\n", whole):
        (folder / name).write_bytes(whole + more)
        fallen_back(folder, name)
    (folder / name).write_bytes(whole)
    checkpoint, passed = newest(folder, "run")
    assert checkpoint is not None and checkpoint.number == 2 and not passed
    check(checkpoint, 3)


@pytest.mark.parametrize("make", [None, Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name)])
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_missing_or_something_else(folder: Path, name: str, make: Any) -> None:
    (folder / name).unlink()
    if make:
        make(folder / name)
    if not make and name.endswith("json"):
        assert current(folder).number == 1, "a set without a manifest never was one"
    else:
        fallen_back(folder, name)


def test_nothing_is_left(folder: Path) -> None:
    (folder / "a.ckpt").write_text("a file")
    assert newest(folder / "a.ckpt", "run") == (None, [f"{folder}/a.ckpt cannot be read: Not a directory"])
    for number in (1, 2):
        (folder / f"00000{number}.rank1").unlink()
    missing = [f"checkpoint {number} is damaged: 00000{number}.rank1 is missing" for number in (2, 1)]
    assert newest(folder, "run") == (None, missing)


def test_parts_of_another_set_under_its_name(folder: Path) -> None:
    """All parts are complete, but they do not belong together."""
    shutil.copyfile(folder / "000001.rank0", folder / "000002.rank0")
    fallen_back(folder, "000002.rank0")
    save(folder, 2, size=3)
    shutil.copyfile(folder / "000001.json", folder / "000002.json")
    fallen_back(folder, "000002.json")


@pytest.mark.parametrize(("found", "which"), [(FORMAT + 1, "a newer"), (1, "an older")])
def test_a_checkpoint_of_another_format_is_named(folder: Path, found: int, which: str) -> None:
    """The first was the project's own binary format, with another manifest."""
    said = f"checkpoint 2 is of {which} format: 000002.{{}} has format {found}, this mpifl reads {FORMAT}"
    manifest = folder / "000002.json"
    content = {**json.loads(manifest.read_text()), "format": found}
    old = {"crc": 1, "format": 1, "number": 2, "facts": {"run": "run"}, "parts": {"0": [10, 10]}}
    manifest.write_text(json.dumps(old if found == 1 else content))
    assert fallen_back(folder, "000002.json") == said.format("json")
    with pytest.raises(ConfigError, match=f"is of {which} format"):
        open_set(folder, 2)
    (folder / "000002.rank2").write_bytes(b"\x89mpifl\r\n")
    save(folder, 3, size=3)
    assert not [name for name in os.listdir(folder) if name.startswith("000002")], "it goes as any damaged one does"
    save(folder, 2, size=3)
    forge(folder, h5(attribute("format", found)))
    assert fallen_back(folder, "000002.rank0") == said.format("rank0")


# -- right checksums, any content --------------------------------------------------------------------------------------
def forge(folder: Path, part: bytes, rank: int = 0) -> None:
    """`part` as the one of a rank in checkpoint 2, with a manifest that agrees."""
    (folder / f"000002.rank{rank}").write_bytes(part)
    make_valid(folder, 2, {rank: (len(part), zlib.crc32(part))})


def h5(change: Change = lambda file, folder: None, rank: int = 0) -> bytes:
    """A part that was changed by means of HDF5."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "part")
        write_part(path, 2, rank, content(2, rank, 3))
        with h5py.File(path, "r+") as opened:
            change(opened, Path(folder))
        return path.read_bytes()


def read(folder: Path, rank: int = 0) -> Any:
    """All of checkpoint 2 as a resumed run would read it, or the error's clause."""
    checkpoint, passed = newest(folder, "run")
    if checkpoint is None or checkpoint.number != 2:
        assert len(passed) == 1 and passed[0].startswith("checkpoint 2 ") and "\n" not in passed[0]
        with pytest.raises(ConfigError, match=r"^checkpoint="):
            open_set(folder, 2).clients(rank, []) if rank else open_set(folder, 2).server()
        return passed[0]
    return open_set(folder, 2).clients(rank) if rank else open_set(folder, 2).server()


def link(value: Any) -> Change:
    def change(file: h5py.File, folder: Path) -> None:
        file["algorithm/other"] = value

    return change


# Of what safe_hdf5 refuses one of each kind, a link and a dataset; the others are in test_untrusted.py.
BAD: dict[str, tuple[int, Change]] = {
    "an external link": (0, link(h5py.ExternalLink("/etc/passwd", "/"))),
    "a type": (0, link(np.dtype("f8"))),
    "objects": (0, replaced("algorithm/x", data=["a", "b"])),
    "chunks": (0, replaced("algorithm/x", data=[1.0, 2.0, 3.0], chunks=(3,))),
    "a giant": (0, replaced("algorithm/x", shape=2**40, dtype="f4")),
    "no data": (0, replaced("algorithm/x", data=h5py.Empty("f8"))),
    "a compound": (0, replaced("algorithm/x", shape=1, dtype=[("a", "f8")])),
    "many ways": (0, many_ways),
    "a missing group": (0, replaced("loop")),
    "other numbers": (0, replaced("loop/clients/rounds", data=[1.0])),
    "a table": (0, replaced("loop/clients/rounds", data=[[1]])),
    "texts": (0, replaced("loop/clients/state", data=[1, 2])),
    "a group for a list": (0, replaced("evaluator/pending/7/a", data=[1])),
    "an attribute of text": (0, attribute("time", "x")),
    "an array": (0, attribute("time", [1.0, 2.0])),
    "an object": (0, attribute("time", np.array(["x"], object))),
    "an empty attribute": (0, attribute("time", h5py.Empty("f8"))),
    "clients that are one": (1, replaced("state/client", data=[0, 0])),
    "too few clients": (1, replaced("state/client", data=[0])),
    "real clients": (1, replaced("state/client", data=[0.0, 11.0])),
    "too many rows": (1, replaced("state/values/count", data=[1, 2, 3])),
    "no rows": (1, replaced("state/values/count", data=1)),
    "no errors": (1, replaced("error")),
    "a missing field": (1, replaced("update/values/round")),
    "no numbers": (1, replaced("update_numbers/values/numbers")),
    "no vector": (1, lambda file, folder: file.move("update_vectors/values/0", "update_vectors/values/3")),
}


@pytest.mark.parametrize("how", BAD)
def test_content_that_makes_no_sense(folder: Path, how: str) -> None:
    rank, change = BAD[how]
    forge(folder, h5(change, rank), rank)
    if how in ("a missing field", "no numbers", "no vector"):  # found out when the clients are read
        with pytest.raises(Unusable) as raised:
            read_clients(folder / "000002.rank1")
        found = str(raised.value)
    else:
        found = read(folder, rank)
    assert f"is damaged: 000002.rank{rank} is not a part of a checkpoint" in found, found


def test_what_is_no_hdf5(folder: Path) -> None:
    for part in (b"", SIGNATURE[:7], b"x" * 100, b"\x89mpifl\r\n" + bytes(100)):
        forge(folder, part)
        assert "000002.rank0 is not an HDF5 file" in read(folder)
    for part in (SIGNATURE, SIGNATURE + bytes(100), h5()[:-1000], h5(rank=1)):
        forge(folder, part)
        assert "000002.rank0 is not a part of a checkpoint" in read(folder)
    forge(folder, h5())
    assert read(folder).rows == {"updates": 20}


KEYS = ["0", "1", "-1", "x", "١"]  # ranks, and what is none; int("١") is 1
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"9" * 5000)
def test_manifests_of_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "000001.json").write_bytes(content)
    checkpoint, passed = newest(folder, "run")
    assert checkpoint is None and passed[0].startswith("checkpoint 1 is damaged: 000001.json ")


def test_a_part_that_is_cut_off_after_it_was_checked(folder: Path) -> None:
    checkpoint = open_set(folder, 2)
    path = folder / "000002.rank0"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(ConfigError, match=r"^checkpoint=.*rank0: .*bytes instead of"):
        checkpoint.server()
    path.unlink()
    with pytest.raises(ConfigError, match=r"000002\.rank0 is missing"):
        checkpoint.server()
