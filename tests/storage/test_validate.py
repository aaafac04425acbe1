"""Files that are whole HDF5 and yet no run file: refused when they are opened, in one line, and never half read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mpifl.errors import ConfigError
from mpifl.storage import RunWriter, open_run
from mpifl.storage.tables import UpdateRow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    attrs = {"name": "a", "algorithm": "area", "config": "name: a\n", "clock": "real", "hosts": '["h"]'}
    clients = {"samples": np.arange(3), "rank": np.ones(3), "rate": None}
    writer = RunWriter(tmp_path / "run.h5", attrs=attrs, clients=clients, x0=np.zeros(5), layout=[("w", (5,))])
    for k in range(10):
        writer.append(UpdateRow(float(k), k % 3, k, 0, 1, 8, 1.0))
    writer.close("completed", np.ones(5))
    return tmp_path / "run.h5"


def replaced(place: str, make: Callable[[h5py.Group, str], Any]) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        group, _, name = place.rpartition("/")
        del file[place]
        make(file[group or "/"], name)

    return change


def attribute(name: str, value: Any, owner: str = "/") -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file[owner].attrs.pop(name)
        if value is not None:
            file[owner].attrs[name] = value

    return change


CHANGES = [
    (replaced("updates", lambda g, n: None), "updates"),
    (replaced("updates", lambda g, n: g.create_dataset(n, data=1)), "column updates/time is missing"),
    (replaced("updates/time", lambda g, n: None), "column updates/time is missing"),
    (replaced("updates/time", lambda g, n: g.create_group(n)), "column updates/time is missing"),
    (replaced("updates/time", lambda g, n: g.create_dataset(n, data=np.zeros((10, 1)))), "time is not a column"),
    (
        replaced("updates/time", lambda g, n: g.create_dataset(n, data=["a"] * 10)),
        "/updates/time has values of variable",
    ),
    (replaced("updates/time", lambda g, n: g.create_dataset(n, data=h5py.Empty("f8"))), "time is not a column"),
    (
        replaced("updates/time", lambda g, n: g.create_dataset(n, (2**40,), "f8", maxshape=(None,))),
        "stores fewer rows than its shape",
    ),
    (replaced("updates/client", lambda g, n: g.create_dataset(n, data=np.zeros(10))), "client is not a column"),
    (replaced("clients/state", lambda g, n: g.create_dataset(n, data=np.zeros(3))), "/clients/state is not a column"),
    (
        replaced("clients/rank", lambda g, n: g.create_dataset(n, data=np.zeros(2, int))),
        "columns of clients differ in length",
    ),
    (replaced("model/x", lambda g, n: g.create_dataset(n, data="text")), "/model/x has values of variable length"),
    (replaced("model/x", lambda g, n: g.__setitem__(n, h5py.SoftLink("/model/x"))), ""),
    (attribute("status", None), "status None"),
    (attribute("status", "done"), "status done"),
    (attribute("schema", "new"), "attribute schema is not an integer"),
    (attribute("schema", 99), "schema 1 or older; this is schema 99"),
    (attribute("name", 3), "attribute name is not text"),
    (attribute("wall_seconds", "long"), "attribute wall_seconds is not a number"),
    (attribute("hosts", "{"), ""),
    (attribute("hosts", "3"), "attribute hosts is not a list"),
    (attribute("hosts", "[3]"), "attribute hosts is not a list of texts"),
    (attribute("layout", "[3]", "model/x"), ""),
    (attribute("layout", '[["w", ["a"]]]', "model/x"), "attribute layout is not a list of names and shapes"),
]


@pytest.mark.parametrize(("change", "text"), CHANGES)
def test_refused(path: Path, change: Callable[[h5py.File], None], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpifl.storage.reader.OPEN_INTERVAL", 0)
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(ConfigError, match=f"run file={path}: .*{text}"):
        open_run(path)


def test_whole(path: Path) -> None:
    with open_run(path) as run:
        assert run.count("updates") == 10 and run.model.all()
