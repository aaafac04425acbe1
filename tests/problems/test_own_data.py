"""Data by client: LEAF's JSON and folders of arrays, good and bad."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mpifl.errors import ConfigError
from mpifl.problems import ProblemConfig, load
from mpifl.problems.data import Folder, Leaf
from mpifl.problems.models import NonconvexLogistic
from mpifl.problems.partitions import Iid
from tests.problems.conftest import write_leaf


def test_leaf(tmp_path: Path) -> None:
    write_leaf(
        tmp_path / "set/train",
        {"u2": {"x": [[1, 2], [3, 4]], "y": [0, 1.0]}, "u1": {"x": [[5, 6]], "y": [2]}},
        "a.json",
    )
    write_leaf(tmp_path / "set/train", {"u0": {"x": [[7, 8]], "y": [1]}}, "b.json")
    write_leaf(tmp_path / "set/test", {"u2": {"x": [[0, 1]], "y": [1]}, "u1": {"x": [], "y": []}})
    problem = load(ProblemConfig(data=Leaf(path="set"), root=str(tmp_path)))
    assert problem.clients == 3 and problem.samples.tolist() == [2, 1, 1]
    x, y, x_own, y_own = problem.shard(0)
    assert x.tolist() == [[1, 2], [3, 4]] and y.tolist() == [0, 1]
    assert x_own.tolist() == [[0, 1]] and y_own.tolist() == [1] and len(problem.shard(1)) == 2
    assert problem.shard(2)[0].tolist() == [[7, 8]] and problem.d == 2 * 3
    assert problem.evaluate(np.zeros(6))["test_loss"] == pytest.approx(np.log(3))


@pytest.mark.parametrize("name", ["synthetic_0_0", "synthetic_0.5_0.5", "synthetic_1_1", "synthetic_iid"])
def test_published_leaf_files(data_root: Path, tmp_path: Path, name: str) -> None:
    source = data_root / "leaf" / name / "test"
    if not source.is_dir():
        pytest.skip(f"no leaf/{name} under MPIFL_DATA")
    for half in ("train", "test"):
        shutil.copytree(source, tmp_path / half)
    problem = load(ProblemConfig(data=Leaf(path=str(tmp_path))))
    rows = {"synthetic_0_0": 897, "synthetic_0.5_0.5": 912, "synthetic_1_1": 1084, "synthetic_iid": 805}[name]
    assert problem.clients == 30 and problem.samples.sum() == rows and problem.d == 60 * 10


def test_leaf_again_split(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train", {"u": {"x": [[1, 2]] * 6, "y": [0, 1] * 3}})
    problem = load(ProblemConfig(data=Leaf(path=str(tmp_path)), clients=3, partition=Iid()))
    assert problem.samples.tolist() == [2, 2, 2] and np.isnan(problem.evaluate(np.zeros(4))["test_accuracy"])


@pytest.mark.parametrize(
    "users",
    [
        {"u": {"x": ["to be or not"], "y": ["t"]}},
        {"u": {"x": [[1, 2], [3]], "y": [0, 1]}},
        {"u": {"x": [[1, 2]], "y": [0, 1]}},
        {"u": {"x": [[1, 2]], "y": [0.5]}},
        {"u": {"y": [1]}},
        {"u": {"x": [[1, 2]], "y": [0]}, "v": {"x": [[1, 2, 3]], "y": [0]}},
        {"u": {"x": [[1, float("nan")]], "y": [0]}},
        {"u": {"x": [[1, 2]], "y": [-3]}},
        {"u": {"x": [[1, 2]], "y": [1000000]}},
        {"u": {"x": [[1, 2]], "y": [1e300]}},
        {"u": {"x": [[1, 2]], "y": [float("inf")]}},
    ],
)
def test_bad_leaf(tmp_path: Path, users: dict[str, Any]) -> None:
    write_leaf(tmp_path / "train", users)
    with pytest.raises(ConfigError, match=f"data file={tmp_path}"):
        load(ProblemConfig(data=Leaf(path=str(tmp_path))))


def test_broken_leaf(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"problem.data.path=: a folder"):
        load(ProblemConfig(data=Leaf()))
    (tmp_path / "train").mkdir()
    with pytest.raises(ConfigError, match="at least one json file"):
        load(ProblemConfig(data=Leaf(path=str(tmp_path))))
    (tmp_path / "train/a.json").write_text('{"users": ["u"]')
    with pytest.raises(ConfigError, match=r"a.json"):
        load(ProblemConfig(data=Leaf(path=str(tmp_path))))
    for name in ("a.json", "b.json"):
        write_leaf(tmp_path / "train", {"u": {"x": [[1, 2]], "y": [0]}}, name)
    with pytest.raises(ConfigError, match=r"b.json: .*user u is there twice"):
        load(ProblemConfig(data=Leaf(path=str(tmp_path))))


def write(file: Path, **arrays: Any) -> None:
    if file.suffix.lower() == ".npz":
        with file.open("wb") as archive:  # a name would get another ending
            np.savez(archive, **arrays)
        return
    with h5py.File(file, "w") as content:
        for name, array in arrays.items():
            content[name] = array


@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_folder(tmp_path: Path, kind: str) -> None:
    write(tmp_path / f"b.{kind}", x=np.ones((4, 3), np.float32), y=np.array([0, 1, 2, 1]))
    write(tmp_path / f"a.{kind}", x=np.zeros((2, 3)), y=np.array([1, 1], np.uint8), x_test=np.ones((1, 3)), y_test=[2])
    (tmp_path / "notes.txt").write_text("not a client")
    problem = load(ProblemConfig(data=Folder(path=str(tmp_path)), clients=2))
    assert problem.samples.tolist() == [2, 4] and problem.d == 9
    assert problem.shard(1)[1].tolist() == [0, 1, 2, 1] and problem.shard(1)[0].all()
    assert problem.evaluate(np.zeros(9))["test_loss"] == pytest.approx(np.log(3))


def test_known_endings_are_read_in_any_case(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A client a file, of as many rows as its place in the order of names says; hidden files are not mentioned."""
    for rows, name in enumerate(["a.hdf5", "b.HDF5", "c.NPZ", "d.h5", "e.H5", "f.npz"], 1):
        write(tmp_path / name, x=np.ones((rows, 3)), y=np.zeros(rows, int))
    (tmp_path / ".hidden").write_text("")
    problem = load(ProblemConfig(data=Folder(path=str(tmp_path))))
    assert problem.samples.tolist() == [1, 2, 3, 4, 5, 6] and not caplog.messages


def test_files_that_are_left_out_are_named_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.npz", x=np.ones((1, 3)), y=[0])
    for name in ("b.csv", ".hidden", "c\x1b.parquet"):
        (tmp_path / name).write_text("")
    (tmp_path / "more").mkdir()
    load(ProblemConfig(data=Folder(path=str(tmp_path))))
    read = "those that are read end in .npz or .h5 or .hdf5"
    assert caplog.messages == [f"{tmp_path}: 2 files are left out, such as b.csv; {read}"]
    caplog.clear()
    (tmp_path / "b.csv").unlink()
    load(ProblemConfig(data=Folder(path=str(tmp_path))))
    assert caplog.messages == [f"{tmp_path}: 1 file is left out, such as c\\x1b.parquet; {read}"]
    (tmp_path / "a.npz").unlink()
    with pytest.raises(ConfigError, match=r"at least one file that ends in .*: it has 1 others, such as c"):
        load(ProblemConfig(data=Folder(path=str(tmp_path))))


def test_leaf_files_that_are_left_out_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for k, name in enumerate(("a.json", "b.JSON")):
        write_leaf(tmp_path / "train", {f"u{k}": {"x": [[1, 2]], "y": [0]}}, name)
    write_leaf(tmp_path / "test", {"u0": {"x": [[1, 2]], "y": [0]}}, "a.json")
    (tmp_path / "test/notes.txt").write_text("")
    problem = load(ProblemConfig(data=Leaf(path=str(tmp_path))))
    assert problem.samples.tolist() == [1, 1]
    assert caplog.messages == [
        f"{tmp_path}/test: 1 file is left out, such as notes.txt; those that are read end in .json"
    ]


def test_two_signs_are_two_classes(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", x=np.eye(2), y=np.array([-1, 1]))
    problem = load(ProblemConfig(data=Folder(path=str(tmp_path)), model=NonconvexLogistic()))
    assert problem.shard(0)[1].tolist() == [-1, 1] and problem.d == 2


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"x": np.ones((2, 3))}, "an array y"),
        ({"x": np.ones(3), "y": [0, 1, 1]}, "rows, features"),
        ({"x": np.ones((2, 3)), "y": [0.0, 1.0]}, "2 integers"),
        ({"x": np.ones((2, 3)), "y": [0, 1, 1]}, "2 integers"),
        ({"x": np.ones((2, 3)), "y": [0, -1]}, "0 and above"),
        ({"x": np.ones((2, 3)), "y": [0, 2**40]}, "y below 1000000"),
        ({"x": np.ones((2, 3)), "y": np.array([1, 2**64 - 1], np.uint64)}, "y below 1000000"),
        ({"x": np.full((2, 3), np.inf), "y": [0, 1]}, "finite"),
        ({"x": np.ones((2, 3)), "y": [0, 1], "x_test": np.ones((1, 3))}, "an array y_test"),
        ({"x": np.ones((0, 3)), "y": np.zeros(0, int)}, "at least one row"),
    ],
)
@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_bad_folder(tmp_path: Path, arrays: dict[str, Any], text: str, kind: str) -> None:
    write(tmp_path / f"a.{kind}", **arrays)
    with pytest.raises(ConfigError, match=f"data file={tmp_path}.*{text}"):
        load(ProblemConfig(data=Folder(path=str(tmp_path))))


@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_damaged_file(tmp_path: Path, kind: str) -> None:
    write(tmp_path / f"a.{kind}", x=np.random.default_rng(0).random((200, 3)), y=np.zeros(200, int))
    for content in ((tmp_path / f"a.{kind}").read_bytes()[:1500], b"nothing", b""):
        (tmp_path / f"a.{kind}").write_bytes(content)
        with pytest.raises(ConfigError, match=f"a.{kind}: an undamaged file"):
            load(ProblemConfig(data=Folder(path=str(tmp_path))))


def test_hdf5_with_what_is_no_array(tmp_path: Path) -> None:
    for x in (h5py.Empty("f8"), "text", h5py.SoftLink("/nowhere")):
        write(tmp_path / "a.h5", x=x, y=[0, 1])
        with pytest.raises(ConfigError, match=r"a\.h5: "):
            load(ProblemConfig(data=Folder(path=str(tmp_path))))


def test_numbers_beyond_the_type(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", x=np.full((2, 3), 1e300), y=[0, 1])
    with pytest.raises(ConfigError, match=r"dtype=float32: one that holds the data: they have numbers beyond 3\.4e"):
        load(ProblemConfig(data=Folder(path=str(tmp_path))))
    assert load(ProblemConfig(data=Folder(path=str(tmp_path)), dtype="float64")).shard(0)[0].max() == 1e300


def test_folder_without_files_or_with_a_client_without_rows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one file"):
        load(ProblemConfig(data=Folder(path=str(tmp_path))))
    write(tmp_path / "a.npz", x=np.ones((0, 3)), y=np.zeros(0, int))
    write(tmp_path / "b.npz", x=np.ones((1, 3)), y=np.zeros(1, int))
    with pytest.raises(ConfigError, match=r"a\.npz: at least one row of x"):
        load(ProblemConfig(data=Folder(path=str(tmp_path))))
    write(tmp_path / "a.npz", x=np.ones((2, 3)), y=np.zeros(2, int))
    with pytest.raises(ConfigError, match=r"problem.clients=5: 2, as the data have them"):
        load(ProblemConfig(data=Folder(path=str(tmp_path)), clients=5))
