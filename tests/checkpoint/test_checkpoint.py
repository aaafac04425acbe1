"""What is saved in a checkpoint is read back; which sets are kept; which one is used."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from mpifl.checkpoint.part import Written
from mpifl.checkpoint.sets import newest, open_set
from mpifl.checkpoint.snapshot import (
    FORMAT,
    ClientSnapshot,
    PartContent,
    UpdateSnapshot,
    check_part,
    read_clients,
    read_server,
    write_part,
)
from mpifl.errors import ConfigError
from mpifl.runfile.checkpoint_folder import folder_of, remove, sets
from tests.checkpoint.sets import check, content, make_valid, same, save, save_part, server
from tests.tiers import examples

ROOT = Path(__file__).parents[2]
TYPES = [np.dtype(t) for t in ("?", "i1", "u1", "<i2", ">i4", "<i8", ">u8", "<f2", "<f4", ">f4", "<f8", ">f8", "<c16")]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def through(folder: Path, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Saves the arrays as the server's state and as a client's; returns the client's as read back."""
    parts = {}
    state = {5: ClientSnapshot(arrays), 4: ClientSnapshot({}), 7: ClientSnapshot(arrays)}
    contents: list[PartContent] = [server(1, algorithm=arrays), state]
    for rank, each in enumerate(contents):
        written = save_part(folder, 1, rank, each)
        assert written == Written(1, (folder / f"000001.rank{rank}").stat().st_size, written.crc, "")
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
    base = np.random.default_rng(1).integers(0, 2, (70, 90, 31)).astype(dtype)
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
        assert found.shape == array.shape and found.dtype == dtype.newbyteorder("<") and (found == array).all(), name
        assert found.flags.writeable and found.flags.c_contiguous and found.flags.owndata


@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.sampled_from(TYPES[:12]).flatmap(lambda t: npst.arrays(t, npst.array_shapes(min_dims=0, min_side=0))),
        max_size=5,
    ),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.floats() | st.booleans(), max_size=4),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
)
def test_bits_come_back(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray], numbers: list[Any], text: str
) -> None:
    """NaNs with their payload and negative zeros too; numbers to the last bit, and any text."""
    folder = tmp_path_factory.mktemp("bits") / "a.ckpt"
    found = through(folder, arrays)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
    write_part(folder / "a", 3, 0, server(3, run=text, time=float(len(numbers)), wall_seconds=sum(map(float, numbers))))
    assert read_server(folder / "a").run == text
    update = UpdateSnapshot((), tuple(map(float, numbers)), 0, 0, 0, 0.0, 0.0, 0.0, 0.0, text, 0.0)
    write_part(folder / "b", 3, 1, {3: ClientSnapshot({}, {}, update, text)})
    assert same(read_clients(folder / "b"), {3: ClientSnapshot({}, {}, update, text)})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_clients_that_differ(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Names that some clients lack, other shapes, types and counts; each client gets its own back, all or some of
    them."""
    shapes, kinds = st.sampled_from([(), (2,), (3, 1), (0,), (20_000,)]), st.sampled_from(["f4", "f8", "i8", "?"])
    array = st.builds(lambda shape, kind, value: np.full(shape, value, kind), shapes, kinds, st.integers(0, 9))
    arrays = st.dictionaries(st.sampled_from("abc"), array, max_size=3)
    vectors = st.lists(array, max_size=2).map(tuple)
    numbers = st.lists(st.floats(), max_size=3).map(tuple)
    number, real, text = st.integers(0, 9), st.floats(), st.sampled_from(["", "a", "ünï"])
    update = st.builds(UpdateSnapshot, vectors, numbers, number, number, number, real, real, real, real, text, real)
    client = st.builds(ClientSnapshot, arrays, arrays, st.none() | update, text)
    client |= st.builds(ClientSnapshot, st.none(), error=st.just("could not be hosted"))
    clients = data.draw(st.dictionaries(st.integers(0, 20), client, max_size=6))
    path = tmp_path_factory.mktemp("clients") / "part"
    write_part(path, 1, 2, clients)
    check_part(path, 1, 2)
    wanted = data.draw(st.sets(st.integers(0, 20)))
    found = read_clients(path, wanted)
    assert found.keys() == clients.keys() & wanted
    for i, snapshot in found.items():
        assert same(sort(snapshot), sort(clients[i]))


def sort(snapshot: ClientSnapshot) -> ClientSnapshot:
    """With its names in order: it is that of the names among all clients."""
    state = None if snapshot.state is None else dict(sorted(snapshot.state.items()))
    return replace(snapshot, state=state, objective=dict(sorted(snapshot.objective.items())))


def test_objects_cannot_be_stored(tmp_path: Path) -> None:
    folder = tmp_path / "a.ckpt"
    through(folder, {})
    for bad in (np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]"), np.zeros(2, np.longdouble)):
        contents: list[PartContent] = [server(2, algorithm={"x": bad}), {1: ClientSnapshot({"x": bad})}]
        for each in contents:
            assert save_part(folder, 2, 1, each) == (2, 0, 0, f"x: an array of {bad.dtype} cannot be stored")
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


def test_numbers_may_grow_beyond_their_zeros(tmp_path: Path) -> None:
    for number in (999_999, 1_000_000, 1_000_001):
        save(tmp_path, number, 1, size=10)
    checkpoint, _ = newest(tmp_path, "run")
    assert checkpoint is not None and checkpoint.number == 1_000_001
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
    checkpoint, passed = newest(tmp_path, "mine")
    assert checkpoint is not None and checkpoint.number == 8 and not passed


def test_what_is_not_there(tmp_path: Path) -> None:
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


def test_the_folder_stands_beside_the_run_file() -> None:
    assert folder_of(Path("results/a.b.h5")) == Path("results/a.b.ckpt")
    assert folder_of(Path("a.v2")) == Path("a.v2.ckpt"), "two runs never share one"


def test_the_manifest_is_json(tmp_path: Path) -> None:
    save(tmp_path, 12, size=10)
    found = json.loads((tmp_path / "000012.json").read_text())
    rest = {name: value for name, value in found.items() if name != "crc32"}
    assert (found["format"], found["number"], found["run"], found["session"]) == (FORMAT, 12, "run", "session")
    assert found["crc32"] == zlib.crc32(json.dumps(rest, separators=(",", ":")).encode())
    part = (tmp_path / "000012.rank1").read_bytes()
    assert {*found["files"]} == {"0", "1"}
    assert found["files"]["1"] == {"name": "000012.rank1", "bytes": len(part), "crc32": zlib.crc32(part)}


def test_a_set_of_an_undone_part_is_not_the_one_before(tmp_path: Path) -> None:
    """The run went on from 4 as b, and wrote over 5 in vain: the 5 that is there again is of a, and goes with 6."""
    for number in (4, 5):
        save(tmp_path, number, session="a", resumed_from=0)
    save(tmp_path, 6, session="b", resumed_from=4)
    assert sets(tmp_path) == [4, 6]
    save(tmp_path, 7, session="b", resumed_from=4)
    assert sets(tmp_path) == [6, 7]


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
