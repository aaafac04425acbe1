"""Data by client, LEAF's JSON and folders of files: each folder of the zoo, and what it has not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import mpifl
from mpifl.config.read import job_from_dict, job_to_dict
from mpifl.problems import ProblemConfig, load
from mpifl.problems.data import Folder, Leaf
from mpifl.problems.problem import Rows
from mpifl.problems.rows import _check_range
from tests.mpi.conftest import write
from tests.problems.conftest import refusal
from tests.problems.zoo.folders import CASES, GOOD, WRONG, Client


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


def test_missing_and_damaged_leaf_files_are_refused(tmp_path: Path) -> None:
    with refusal(r"problem.data.path=: missing; expected the path of a folder"):
        load(ProblemConfig(data=Leaf()))
    with refusal(r"problem.data.path=~nobody-of-this-name/x: there is no such folder"):
        load(ProblemConfig(data=Leaf(path="~nobody-of-this-name/x")))
    (tmp_path / "train").mkdir()
    (tmp_path / "train/a.json").write_text('{"users": ["u"]')
    with refusal(f"data file={tmp_path}/train/a.json: "):
        load(ProblemConfig(data=Leaf(path=str(tmp_path))))


def test_files_that_are_left_out_are_named_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((1, 3)), y=[0])
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
    with refusal(r"no file ends in .*; it has 2 others, such as c"):
        load(ProblemConfig(data=Folder(path=str(tmp_path))))


def test_hdf5_with_what_is_no_array(tmp_path: Path) -> None:
    for x in (h5py.Empty("f8"), "text", h5py.SoftLink("/nowhere")):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"], file["y"] = x, [0, 1]
        with refusal(r"a\.h5: "):
            load(ProblemConfig(data=Folder(path=str(tmp_path))))


@pytest.mark.parametrize(("name", "shape"), [("x", (2, 3, 3)), ("x_test", (2, 3))])
def test_numbers_beyond_the_type_are_named_by_their_file_and_place(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    """The largest number that rounds to one of float32 is right; the next file's second row is not."""
    x = np.full(shape, float(np.finfo(np.float32).max) * (1 + 2**-26))
    arrays = {"x": x, "y": [0, 1], "x_test": x, "y_test": [0, 1]}
    np.savez(tmp_path / "a.npz", **arrays)
    beyond = x.copy()
    beyond[1, 2] = -1e300
    np.savez(tmp_path / "b.npz", **{**arrays, name: beyond})
    at = rf"{name}\[1, 2\]" if len(shape) == 2 else rf"an entry of {name}\[1\]"
    with refusal(rf"b\.npz: {at} is -1e\+300, beyond 3.4e\+38; .*problem.dtype=float64"):
        load(ProblemConfig(data=Folder(path=str(tmp_path))))
    assert load(ProblemConfig(data=Folder(path=str(tmp_path)), dtype="float64")).shard(0)[0].max() == x.max()
    rows = Rows(np.array([[1.0], [1e300]]), np.zeros(2, int), np.empty((0, 1)), np.empty(0, int), 2)
    with refusal(r"dtype=float32: row 1 of x has 1e\+300, beyond .*; expected float64"):
        _check_range(rows, np.dtype("float32"))


def test_a_number_of_clients_or_a_target_that_the_files_have_not_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3)), y=np.zeros(2, int))
    with refusal(r"problem.clients=5: the data have 1; expected 1, or null"):
        load(ProblemConfig(data=Folder(path=str(tmp_path)), clients=5))
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3)), y=[0, 1])
    with refusal(r"problem.data.target=kind: .* has no .csv file, .*; expected null"):
        load(ProblemConfig(data=Folder(path=str(tmp_path), target="kind")))


def test_labels_that_are_numbers_may_be_named_and_come_back_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=[30, 7, 30])
    for labels, right, classes in (("sorted", [1, 0, 1], 2), ({7: 4, 30: 0}, [0, 4, 0], 5)):
        problem = load(ProblemConfig(data=Folder(path=str(tmp_path), labels=labels)))
        assert problem.shard(0)[1].tolist() == right and problem.d == 2 * classes
    data = {"name": "folder", "path": "sites", "labels": {"cat": 0, 7: 1}}
    job = mpifl.load_job(
        {"name": "x", "seed": 0, "problem": {"data": data}, "algorithm": {"name": "fedavg", "step_size": 1},
         "stop": {"updates": 1}, "output": "x.h5"}
    )  # fmt: skip
    assert isinstance(job.problem.data, Folder) and job.problem.data.labels == {"cat": 0, "7": 1}
    assert job_from_dict(job_to_dict(job)) == job


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ("sort", "labels=sort: neither a section, sorted nor numbers; expected {label: class"),
        ({}, "labels={}: neither"),
        ({True: 0}, "labels that YAML reads as true or false; expected names; write such names in quotes"),
        ({"cat": -1}, "labels.cat=-1: not a class; expected an integer from 0"),
        ({"cat": "0"}, "labels.cat=0: not a class"),
    ],
)
def test_wrong_classes_of_labels(labels: Any, says: str) -> None:
    with refusal(says):
        Folder(path="x", labels=labels)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
    np.savez(tmp_path / "north/a.npz", x=np.ones((1, 3)), y=[0])
    with refusal(f"data file={tmp_path}/south: no file ends in .*; expected the files of a"):
        load(ProblemConfig(data=Folder(path=str(tmp_path))))


JOB = {
    "seed": 0,
    "problem": {"data": {"name": "folder", "path": ""}, "model": {"name": "logistic"}},
    "algorithm": {"name": "fedavg", "step_size": 0.5},
    "stop": {"updates": 4},
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write(tmp_path, "job", JOB)


def written(job: Path, name: str) -> tuple[list[Client], str]:
    """Writes a folder; the rows of its clients, and the override with which a job reads it."""
    path = job.with_name(name)
    path.mkdir()
    return CASES[name].write(path), f"problem.data={ {'name': 'folder', 'path': str(path), **CASES[name].data} }"


@pytest.mark.parametrize("name", GOOD)
def test_a_folder_is_read_as_it_is_meant(job: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    clients, data = written(job, name)
    problem = load(mpifl.load_job(job, data).problem)
    assert len(caplog.messages) == bool(CASES[name].line) and CASES[name].line in "".join(caplog.messages)
    assert problem.clients == len(clients)
    for i, rows in enumerate(clients):
        for found, expected in zip(problem.shard(i), rows, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", WRONG)
def test_a_folder_is_refused_in_one_line(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, job: Path, name: str
) -> None:
    _, data = written(job, name)
    monkeypatch.chdir(job.parent)
    assert CASES[name].refused in refused("run", job, data, f"output={name}.h5")
    assert not job.with_name(f"{name}.h5").exists() and not job.with_name("unpickled").exists()
