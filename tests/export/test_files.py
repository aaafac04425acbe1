"""Each format is read back with its own reader and compared with the run file bit for bit."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import mpifl
from mpifl import cli
from mpifl.runfile.create import Start
from mpifl.runfile.tables import TABLES as SCHEMA
from mpifl.runfile.tables import EventRow, UpdateRow
from mpifl.runfile.writer import RunWriter
from mpifl.tools.export.scalars import Scalars
from tests.api.jobs import JOB

TABLES = (*SCHEMA, "clients")
OPTIONAL = ("client_evaluations", "metrics", "logged")  # without rows unless the job asks for them


@pytest.fixture
def run(tmp_path: Path) -> mpifl.Run:
    return mpifl.run(JOB, output=tmp_path / "a.h5")


def frame(run: mpifl.Run, table: str) -> pd.DataFrame:
    found: pd.DataFrame = getattr(run, table)
    return found.rename_axis("client").reset_index() if table == "clients" else found


def assert_same_bits(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert list(found) == list(expected) and len(found) == len(expected)
    for name in expected:
        a, b = found[name].to_numpy(), expected[name].to_numpy()
        if b.dtype.kind == "f":
            assert (np.isnan(a.astype(float)) == np.isnan(b)).all(), name
            a, b = a[~np.isnan(b)].astype(b.dtype).view(np.int64), b[~np.isnan(b)].view(np.int64)
        assert (a == b).all(), name


# -- tables ------------------------------------------------------------------------------------------------------------
def test_csv_and_parquet(run: mpifl.Run, tmp_path: Path) -> None:
    from pyarrow import parquet

    files = mpifl.export_run(run.path, "csv")
    mpifl.export_run(run.path, "parquet", tmp_path / "there")
    assert sorted(file.name for file in files) == sorted(f"{name}.csv" for name in (*TABLES, "attributes"))
    plain = {"i": "int", "f": "double"}
    for table in TABLES:
        expected, file = frame(run, table), tmp_path / "there" / f"{table}.parquet"
        assert len(expected) or table in OPTIONAL, table
        assert_same_bits(pd.read_csv(run.path.with_name("a-csv") / f"{table}.csv"), expected)
        assert_same_bits(pd.read_parquet(file), expected)
        types = {field.name: str(field.type) for field in parquet.read_schema(file)}
        for name in expected.select_dtypes("number"):
            dtype = expected[name].dtype
            assert types[str(name)] == (plain[dtype.kind] + (str(8 * dtype.itemsize) if dtype.kind == "i" else ""))
    attributes = pd.read_csv(run.path.with_name("a-csv") / "attributes.csv", keep_default_na=False, dtype=str)
    values = dict(zip(attributes.name, attributes.value, strict=True))
    assert values["id"] == run.id and json.loads(values["began"]) == run.attrs["began"]
    assert yaml.safe_load(values["config"]) == run.config


def test_text_is_escaped_in_csv_and_quoted_where_a_spreadsheet_would_compute_it(tmp_path: Path) -> None:
    texts = ['a "quoted", \x1b[31mred\nline', "=cmd|' /c calc'!A0", "@sum", "+a", "-2", "-b", "a=b", ""]
    path = written(tmp_path / "a.h5", events=[EventRow(0.5, "lost", 0, text) for text in texts])
    mpifl.export_run(path, "csv")
    found = pd.read_csv(tmp_path / "a-csv/events.csv", keep_default_na=False, dtype=str)
    escaped = ['a "quoted", \\x1b[31mred\nline', "'=cmd|' /c calc'!A0", "'@sum", "'+a", "-2", "'-b", "a=b", ""]
    assert found.text.tolist() == escaped and set(found.time) == {"0.5"}
    mpifl.export_run(path, "parquet")
    assert pd.read_parquet(tmp_path / "a-parquet/events.parquet").text.tolist() == texts


# -- models ------------------------------------------------------------------------------------------------------------
def test_safetensors_and_torch_of_a_numpy_model(tmp_path: Path) -> None:
    import torch
    from safetensors import safe_open
    from safetensors.numpy import load_file

    problem = {"data": "digits", "clients": 4, "model": {"name": "logistic", "bias": True}, "dtype": "float64"}
    run = mpifl.run(JOB, problem=problem, output=tmp_path / "a.h5")
    (file,) = mpifl.export_run(run.path, "safetensors")
    (state,) = mpifl.export_run(run.path, "torch")
    loaded, tensors = load_file(file), torch.load(state, weights_only=True)
    assert (file.name, state.name) == ("a.safetensors", "a.pt")
    shapes = dict(run.layout)
    assert set(loaded) == set(tensors) == {"x", *shapes} and len(shapes) == 2
    first = 0
    for name, shape in shapes.items():
        part = run.model[first : first + int(np.prod(shape))].reshape(shape)
        first += part.size
        for array in (loaded[name], tensors[name].numpy()):
            assert array.shape == shape and array.dtype == np.float64 and array.tobytes() == part.tobytes()
    assert loaded["x"].tobytes() == tensors["x"].numpy().tobytes() == run.model.tobytes()
    with safe_open(file, "np") as opened:
        facts = json.loads(opened.metadata()["mpifl"])
    assert facts["layout"] == [[name, list(shape)] for name, shape in run.layout]
    assert facts["id"] == run.id and facts["version"] == len(run.aggregations)


HOSTILE: list[list[Any]] = [
    [["w", [-2, -3]]], [["w", [2**40, 2**40]]], [["w", [5]]], [["w", [3]], ["w", [3]]], [["w", [7]], ["v", [-1]]],
    [["__metadata__", [6]]], [["x", [2]], ["y", [4]]],
]  # fmt: skip


@pytest.mark.damaged
@pytest.mark.parametrize("layout", HOSTILE, ids=str)
@pytest.mark.parametrize("to", ["safetensors", "torch"])
def test_a_layout_that_does_not_fit_is_refused(tmp_path: Path, layout: Any, to: str) -> None:
    path = written(tmp_path / "a.h5", x=np.zeros(6), layout=layout)
    with pytest.raises(mpifl.ConfigError, match=r"a\.h5: (its layout does not fit|x is the name of a part)"):
        mpifl.export_run(path, to)
    assert os.listdir(tmp_path) == ["a.h5"]


def test_a_run_without_a_final_model_has_tables_only(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", status="failed")
    for to in ("safetensors", "torch"):
        with pytest.raises(
            mpifl.ConfigError,
            match="the status is failed, and the file has no final model; expected a completed or interrupted run",
        ):
            mpifl.export_run(path, to)
    assert len(mpifl.export_run(path, "csv")) == len(TABLES) + 1


# -- TensorBoard -------------------------------------------------------------------------------------------------------
def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """(step, wall time, value) by tag, read by TensorBoard itself."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(e.step, e.wall_time, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_scalars_are_those_of_the_run_file(run: mpifl.Run) -> None:
    mpifl.export_run(run.path, "tensorboard")
    found = scalars(run.path.with_name("a-tensorboard"))
    evaluations, updates = run.evaluations, run.updates
    assert evaluations.updates.tolist() == [0, 20, 40, 60] and updates.staleness.sum() > 0
    for name in ("version", "train_loss", "age"):
        expected = [
            (step, run.attrs["began"] + when, float(np.float32(value)))
            for step, when, value in zip(evaluations.updates, evaluations.time, evaluations[name], strict=True)
        ]
        assert found[f"evaluations/{name}"] == expected
    assert "evaluations/gradient_norm" not in found, "never measured"
    parts = [updates.staleness[first : first + 20] for first in (0, 20, 40)]
    assert [value for *_, value in found["updates/staleness_mean"]] == [np.float32(p.sum() / 20) for p in parts]
    rates = 20 / np.diff(evaluations.time)
    assert [value for *_, value in found["updates/per_second"]] == [np.float32(rate) for rate in rates]
    assert [value for *_, value in found["clients/lost"]] == [0, 0, 0, 0]


def test_points_of_rows_in_blocks() -> None:
    """Worked out by hand; blocks may end anywhere, and a second evaluation of a step is no point."""
    course = Scalars()
    kinds = np.array([b"lost", b"checkpoint", b"aside"])
    course.add("events", {"time": np.array([1.5, 2.0, 9.0]), "kind": kinds})
    course.add("updates", {"staleness": np.array([1, 2], np.int32)})
    course.add("updates", {"staleness": np.array([3, 4, 5], np.int32)})
    names, values = np.array([b"auroc", b"mine:f", b"auroc", b"auroc"]), np.array([0.5, 3.0, 0.6, 0.7])
    course.add("metrics", {"evaluation": np.array([0, 0, 1, 3]), "metric": names, "value": values})
    row = dict.fromkeys(SCHEMA["evaluations"].columns, np.nan)
    first = course.evaluation({**row, "time": 2.0, "updates": 3, "train_loss": np.nan, "test_loss": 0.5})
    assert first and (first.step, first.time) == (3, 2.0)
    assert first.values == {"evaluations/auroc": 0.5, "evaluations/mine:f": 3, "evaluations/test_loss": 0.5,
                            "updates/per_second": 1.5, "updates/staleness_mean": 2.0,
                            "clients/lost": 1.0}  # fmt: skip
    assert course.evaluation({**row, "time": 3.0, "updates": 3}) is None, "the same step"
    assert course.evaluation({**row, "time": 3.0, "updates": 6}) is None, "an update that is not there"
    second = course.evaluation({**row, "time": 10.0, "updates": 5, "train_loss": np.inf})
    assert second and second.values["evaluations/train_loss"] == np.inf and second.values["clients/lost"] == 2
    assert np.isnan(second.values["evaluations/test_loss"]), "it has had a value"
    assert second.values["evaluations/auroc"] == 0.7, "not that of an evaluation which is no point"
    assert second.values["updates/staleness_mean"] == 4.5 and second.values["updates/per_second"] == 0.25


# -- outputs -----------------------------------------------------------------------------------------------------------
def test_nothing_is_overwritten_unless_asked(run: mpifl.Run, tmp_path: Path) -> None:
    for to in ("csv", "tensorboard", "safetensors"):
        files = mpifl.export_run(run.path, to)
        before = [file.read_bytes() for file in files]
        files[0].write_bytes(b"mine")
        with pytest.raises(mpifl.ConfigError, match="the file exists; choose another name, or overwrite=true"):
            mpifl.export_run(run.path, to)
        assert files[0].read_bytes() == b"mine"
        again = mpifl.export_run(run.path, to, overwrite=True)
        assert [file.read_bytes() for file in again] == before
        if to == "tensorboard":
            assert not files[0].exists(), "one event file a run: else each step would be there twice"
    other = tmp_path / "a-csv" / "mine.txt"
    other.touch()
    mpifl.export_run(run.path, "csv", overwrite=True)
    assert other.exists()


def test_outputs_of_the_wrong_kind(run: mpifl.Run, tmp_path: Path) -> None:
    before = run.path.read_bytes()
    (tmp_path / "file").touch()
    (tmp_path / "folder/updates.csv").mkdir(parents=True)
    (tmp_path / "link").symlink_to(run.path)
    for to, out, text in (
        ("torch", run.path, r"this is the run file itself; expected another file"),
        ("torch", tmp_path / "link", r"this is the run file itself; expected another file"),
        ("csv", run.path, r"this is the run file itself; expected another file"),
        ("csv", tmp_path / "file", r"this is a file; expected a folder"),
        ("torch", tmp_path / "folder", "this is a directory; expected the name of a file"),
        ("csv", tmp_path / "folder", "this is a directory; expected the name of a file"),
        ("csv", tmp_path / "file" / "below", "a place that can be written"),
        ("xls", None, "one of csv, parquet"),
    ):
        with pytest.raises(mpifl.ConfigError, match=text):
            mpifl.export_run(run.path, to, out, overwrite=True)
    assert run.path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["a.h5", "file", "folder", "link"]


def test_a_disk_that_is_full_at_the_last_file_leaves_no_new_file(
    run: mpifl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files reach the disk when they are synced, after all of them are written."""
    synced, sync, count = [], os.fsync, len(mpifl.export_run(run.path, "csv", tmp_path / "good"))

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(mpifl.ConfigError, match="No space left on device"):
        mpifl.export_run(run.path, "csv", tmp_path / "bad")
    assert count > 2 and len(synced) == count and not os.listdir(tmp_path / "bad")


def test_a_full_disk_leaves_what_was_there(run: mpifl.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    files = mpifl.export_run(run.path, "csv")
    before, blocks = [file.read_bytes() for file in files], iter("xx")

    def full(*_: object, **__: object) -> str:
        if text := next(blocks, ""):
            return text
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mpifl.tools.export.tables.ROWS_AT_ONCE", 5)
    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(mpifl.ConfigError, match="No space left on device"):
        mpifl.export_run(run.path, "csv", overwrite=True)
    assert [file.read_bytes() for file in files] == before
    assert len(os.listdir(files[0].parent)) == len(files)


@pytest.mark.parametrize(
    ("to", "package"),
    [("parquet", "pyarrow"), ("tensorboard", "tensorboard"), ("safetensors", "safetensors"), ("torch", "torch")],
)
def test_a_missing_package(
    run: mpifl.Run, to: str, package: str, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what Python does where there is none
    line = f"mpifl: to={to}: the package {package} is not installed; pip install {package}\n"
    assert refused("export", run.path, "--to", to) == line
    assert os.listdir(run.path.parent) == ["a.h5"]


def test_the_export_command_writes_a_file_or_says_what_is_wrong(
    run: mpifl.Run, tmp_path: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = str(run.path), str(tmp_path / "m.pt")
    assert cli.main(["export", path, "--to", "torch", "--out", out]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    for arguments, text in (
        ([path], "--to='': required; expected one of csv, parquet, tensorboard, safetensors, torch"),
        ([path, "--to", "torch", "--out", out], f"out={out}: the file exists; choose another name, or overwrite=true"),
        ([path, "--to", "torch", "seed=3"], "seed=3: not an option of mpifl export; expected overwrite=true"),
        ([path, "--to", "torch", "overwrite=3"], "overwrite=3: not an option of mpifl export; expected overwrite=true"),
        ([path, "--to", "csv", "--full"], "full=true: to=csv has tables; expected to=torch or safetensors"),
        (["--to", "torch"], "export='': no file; expected a RUN.h5 first, then key=value"),
        (
            [str(tmp_path / "no.h5"), "--to", "csv"],
            f"run file={tmp_path}/no.h5: cannot be read: No such file or directory",
        ),
    ):
        assert refused("export", *arguments).startswith(f"mpifl: {text}")
    assert cli.main(["export", path, "--to", "torch", "--out", out, "overwrite=true"]) == 0


# -- run files by hand -------------------------------------------------------------------------------------------------
TWO = np.ones(2)


def written(
    path: Path, x: np.ndarray = TWO, layout: Any = (("w", (2,)),), config: Any = None, events: Any = (),
    status: str = "completed",
) -> Path:  # fmt: skip
    attrs = {"name": "a", "algorithm": "area", "config": yaml.safe_dump(config or {}), "clock": "virtual"}
    clients = {"samples": [3, 4], "rank": [1, 1], "rate": None}
    writer = RunWriter(path, Start(attrs, clients, x, layout))
    writer.append(UpdateRow(0.5, 0, 0, 0, 1, 16, 0.0))
    for event in events:
        writer.append(event)
    writer.close(status, None if status == "failed" else x)
    return path
