"""Run files from elsewhere: no other file is read, no filter runs, no size is believed, memory and time are bounded.

HDF5 files that are no run files are refused when they are opened, in one line.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from mpifl.cli import main
from mpifl.errors import ConfigError
from mpifl.runfile.create import Start
from mpifl.runfile.reader import DamagedRun, open_run
from mpifl.runfile.tables import EvaluationRow, EventRow, UpdateRow
from mpifl.runfile.writer import RunWriter
from tests.problems.test_untrusted_data import bound_socket, pipe

SECRET = b"a line of another file\n" * 20
Change = Callable[[h5py.File, Path], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run file, and beside it a private file, as text and as HDF5."""
    (tmp_path / "secret.txt").write_bytes(SECRET)
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.arange(5.0)
        file["text"] = np.array([SECRET] * 10, "S512")
    attrs = {"name": "a", "algorithm": "area", "config": "name: a\n", "clock": "real", "hosts": '["h"]'}
    clients = {"samples": np.arange(3), "rank": np.ones(3), "rate": None}
    writer = RunWriter(tmp_path / "run.h5", Start(attrs, clients, np.zeros(5), [("w", (5,))]))
    for k in range(10):
        writer.append(UpdateRow(float(k), k % 3, k, 0, 1, 8, 1.0))
        writer.append(EventRow(float(k), "lost", k, "a text"))
        writer.append(EvaluationRow(float(k), k, k))
    writer.close("completed", np.ones(5))
    return tmp_path / "run.h5"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("make", [pipe, bound_socket])
def test_what_is_no_file_is_refused_in_one_line(
    tmp_path: Path, make: Callable[[Path], None], refused: Callable[..., str]
) -> None:
    file = tmp_path / "a.h5"
    make(file)
    says = f"mpifl: run file={file}: cannot be read: it is not a regular file; expected a readable run file\n"
    commands = ("show", "verify", "report", "resume", "replay", "show --follow", "verify --replay", "export --to csv")
    for command in commands:
        assert refused(*command.split(), file) == says


@pytest.mark.timeout(30)
def test_a_folder_with_what_is_no_file(path: Path, printed: Callable[..., Any]) -> None:
    """It is named, and the others are shown."""
    folder = path.parent / "runs"
    folder.mkdir()
    path.rename(folder / "run.h5")
    for make, name in ((pipe, "a.h5"), (bound_socket, "b.h5"), (Path.mkdir, "c.h5")):
        make(folder / name)
    (folder / "d.h5").symlink_to("nowhere")
    (folder / "e.h5").symlink_to("e.h5")
    shown = dict(line.split()[:2] for line in printed("show", folder).out.splitlines()[2:8])
    assert shown == {"run.h5": "completed", **{f"{name}.h5": "damaged" for name in "abcde"}}
    for named in (str(folder), f"{folder}/*.h5"):
        out = printed("report", named).out
        left_out = [line.split("/")[-1].split(":")[0] for line in out.splitlines() if line.startswith("Left out: ")]
        assert left_out == [f"{name}.h5" for name in ("abcde" if named == str(folder) else "abde")]


def replace(place: str, make: Callable[[h5py.Group, str, h5py.Dataset, Path], Any]) -> Change:
    def change(file: h5py.File, folder: Path) -> None:
        group, _, name = place.rpartition("/")
        old = file[place]
        del file[place]
        make(file[group or "/"], name, old, folder)

    return change


def external_link(group: h5py.Group, name: str, old: h5py.Dataset, folder: Path) -> None:
    group[name] = h5py.ExternalLink(str(folder / "secret.h5"), "/x" if name == "x" else "/text")


def external_storage(group: h5py.Group, name: str, old: h5py.Dataset, folder: Path) -> None:
    size = old.size * old.dtype.itemsize
    group.create_dataset(name, old.shape, old.dtype, external=[(str(folder / "secret.txt"), 0, size)])


def virtual(group: h5py.Group, name: str, old: h5py.Dataset, folder: Path) -> None:
    layout = h5py.VirtualLayout(old.shape, old.dtype)
    layout[...] = h5py.VirtualSource(str(folder / "secret.h5"), "x" if name == "x" else "text", old.shape)
    group.create_virtual_dataset(name, layout)


def soft(group: h5py.Group, name: str, old: h5py.Dataset, folder: Path) -> None:
    group[f"{name}-before"] = old
    group[name] = h5py.SoftLink(f"{group.name}/{name}-before")


def circle(file: h5py.File, folder: Path) -> None:
    for k in range(40):
        file["updates"][f"again{k}"] = file["updates"]


def linked_group(file: h5py.File, folder: Path) -> None:
    file["more"] = h5py.ExternalLink(str(folder / "secret.h5"), "/")


def shared_chunks(file: h5py.File, folder: Path) -> None:
    """Columns that are one and the same data under many names: more rows than the file has bytes."""
    big = file.create_dataset("big", data=np.zeros(10_000))
    for k in range(200):
        file["updates"][f"more{k}"] = big


def attribute(name: str, value: Any, owner: str = "/") -> Change:
    def change(file: h5py.File, folder: Path) -> None:
        file[owner].attrs.pop(name, None)
        if value is not None:
            file[owner].attrs[name] = value

    return change


def replaced(place: str, **values: Any) -> Change:
    """Puts another dataset in the place of an object, if there is one; without values it is only removed."""

    def change(file: h5py.File, folder: Path) -> None:
        if place in file:
            del file[place]
        if values:
            file.create_dataset(place, **values)

    return change


OUTSIDE: list[Any] = [
    pytest.param(replace(place, make), says, id=f"{place}-{make.__name__}")
    for make, says in (
        (external_link, "is a link to another file"), (external_storage, "has its data in another file"),
        (virtual, "has its data in another file"),
    )
    for place in ("events/text", "events/kind", "model/x", "clients/state")
] + [pytest.param(linked_group, "/more is a link to another file", id="linked-group")]  # fmt: skip
SIZES: list[Any] = [
    (replaced("events/text", shape=2**27, dtype="S512", chunks=2**20, compression="gzip"), "passes through filter 1"),
    (replaced("updates/norm", shape=10, dtype=h5py.ref_dtype), "norm has values of variable length, or references"),
    (replace("updates/norm", soft), "/updates/norm is a soft link"),
    (replaced("updates/norm", data=np.zeros(10), chunks=2**24, maxshape=(None,)), "norm has chunks of more than"),
    (replace("events", soft), "/events is a soft link"),
    (circle, "groups nested more than 8 deep"),
    (lambda *places: many_ways(*places), "more than 10000 links"),
    (shared_chunks, "the tables have .* bytes, and the file has"),
    (attribute("notes", ["x" * 1_000_000] * 100), "attribute notes takes more than"),
]


def change(path: Path, how: Change) -> None:
    with h5py.File(path, "r+", libver="latest") as file:
        how(file, path.parent)


@pytest.mark.parametrize(("how", "says"), OUTSIDE)
def test_another_file_is_never_read(path: Path, how: Change, says: str, refused: Callable[..., str]) -> None:
    change(path, how)
    for command in ("show", "report", "replay"):
        err = refused(command, path)
        assert err.startswith("mpifl: run file=") and says in err and "a line of another" not in err


def test_an_attribute_without_a_value_is_none_of_mpifls(path: Path) -> None:
    change(path, attribute("notes", h5py.Empty("f8")))
    open_run(path).close()


SCHEMA: list[tuple[Change, str]] = [
    (replaced("updates"), "updates"),
    (replaced("updates/time"), "column updates/time is missing"),
    (replaced("updates/time", data=np.zeros((10, 1))), "time is not a column"),
    (replaced("updates/time", data=["a"] * 10), "/updates/time has values of variable"),
    (replaced("updates/time", shape=(2**40,), dtype="f8", maxshape=(None,)), "stores fewer rows than its shape"),
    (replaced("updates/client", data=np.zeros(10)), "client is not a column"),
    (replaced("clients/state", data=np.zeros(3)), "/clients/state is not a column"),
    (replaced("clients/rank", data=np.zeros(2, int)), "columns of clients differ in length"),
    (replaced("model/x"), "model/x is missing"),
    (replaced("model/x", data="text"), "/model/x has values of variable length"),
    (attribute("status", None), "status None"),
    (attribute("status", "done"), "status done"),
    (attribute("schema", "new"), "attribute schema is not an integer"),
    (attribute("schema", 99), r"it has schema 99; expected a run file of schema 1 or older; update mpifl"),
    (attribute("name", 3), "attribute name is not text"),
    (attribute("wall_seconds", "long"), "attribute wall_seconds is not a number"),
    (attribute("hosts", "{"), ""),
    (attribute("hosts", "3"), "attribute hosts is not a list"),
    (attribute("hosts", "[3]"), "attribute hosts is not a list of texts"),
    (attribute("compute", "[1]"), "attribute compute is not a list of objects"),
    (attribute("layout", "[3]", "model/x"), ""),
    (attribute("layout", '[["w", ["a"]]]', "model/x"), "attribute layout is not a list of names and shapes"),
    (attribute("entries", '[["w", "float32", [-1], null, 0]]', "model/constants"), "attribute entries is not a list"),
    (attribute("entries", '[["w", "float32", [1], null, 4]]', "model/constants"), "does not have the bytes that"),
    (attribute("entries", "[3]", "model/constants"), ""),
    *((attribute(name, "[" * 100_000 + "]" * 100_000), "nested too deeply") for name in ("hosts", "compute")),
]


@pytest.mark.parametrize(("how", "text"), SIZES + SCHEMA)
def test_what_mpifl_does_not_write_is_refused(
    path: Path, how: Change, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpifl.runfile.reader.OPEN_INTERVAL", 0)
    change(path, how)
    begin = time.process_time()
    with pytest.raises(ConfigError, match=f"run file={path}: .*{text}"):
        open_run(path)
    assert time.process_time() - begin < 5


def many_ways(file: h5py.File, folder: Path) -> None:
    """Six groups, each with 30 links to the next: 30**5 ways to the last."""
    for k in range(5):
        below = file.require_group(f"{k + 1}")
        for i in range(30):
            file.require_group(f"{k}")[f"{i}"] = below


BOMBS = {
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "merges": "a: &a {k: 1}\n"
    + "\n".join(f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "circle": "a: &a [*a]",
    "many": f"a: [{'1,' * 200_000}]",
    "long": f"a: {'x' * 5_000_000}",
    "deep": f"a: {'[' * 50_000}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_configuration_is_bounded(path: Path, bomb: str) -> None:
    change(path, attribute("config", BOMBS[bomb]))
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with open_run(path) as run, pytest.raises(ConfigError, match="its configuration cannot be read: "):
        assert not run.config
    assert time.process_time() - begin < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB


@pytest.mark.parametrize("train_every", ["x", 0, -3, 1.5, [1], float("nan"), 10**30, True, None])
def test_a_section_evaluate_that_no_job_has(path: Path, train_every: Any) -> None:
    """It is read as if it were not there."""
    for evaluate in ({"every": train_every, "train_every": train_every}, train_every):
        with h5py.File(path, "r+", libver="latest") as file:
            file.attrs["config"] = yaml.safe_dump(yaml.safe_load(file.attrs["config"]) | {"evaluate": evaluate})
        for command in ("report", "show"):
            assert main([command, str(path)]) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308, -1e308])
@pytest.mark.parametrize("column", ["updates/time", "evaluations/time", "updates/exchange"])
def test_a_time_that_no_run_has_is_refused_where_it_is_read(
    path: Path, column: str, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure that needs it is left out of a report, with the reason; a duration may be unknown."""
    with h5py.File(path, "r+", libver="latest") as file:
        file[column][:] = value
    table, _, name = column.partition("/")
    with open_run(path) as run:
        if name == "exchange" and np.isnan(value):
            assert run.updates.exchange.isna().all()
            return
        with pytest.raises(DamagedRun, match=f"{column} has a time that is no number of at most 1e\\+18 s"):
            run.rows(table, name, 0, 10)
    out = path.parent / "out"
    code = main(["report", str(path), "--out", str(out)])
    said = capsys.readouterr()
    if name == "exchange":
        assert code == 0 and "No figure timeline: run file=" in said.out and (out / "staleness.png").exists()
    else:
        assert code == 2 and said.err.count("\n") == 1 and not out.exists()
