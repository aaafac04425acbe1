"""Whether an HDF5 file has what a run file has: HDF5 notices damage to its own structures only, and a file may come
from anywhere. After `check`, what is read has the types that `records.schema` says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import h5py

from mpifl.storage.layout import CLIENTS, LATER, STATUSES, TABLES

REQUIRED = {  # what every version wrote
    "updates": ("time", "client", "version", "staleness", "local_steps", "bytes", "norm"),
    "aggregations": ("time", "updates"),
    "evaluations": ("time", "updates", "version", "train_loss", "test_loss", "test_accuracy"),
    "events": ("time", "kind", "client", "text"),
    "clients": tuple(CLIENTS),
}
KINDS = {"f": "fiu", "i": "iu", "S": "SO"}  # of a column that should be floats, integers, text: NumPy's letters
TEXTS = (
    "mpifl_version", "name", "algorithm", "config", "clock", "mpi", "compute", "git_commit", "started",
    "finished", "id", "session",
)  # fmt: skip
WHOLE = ("schema", "seed", "clients", "ranks", "resumed_from")


def check(file: h5py.File, attrs: Mapping[str, Any], closed: bool) -> dict[str, int]:
    """The rows of each table. Raises ValueError, which says what is wrong.

    attrs   the root's, as plain values
    closed  whether the file was closed: all that it claims to hold is then there
    """
    _attributes(attrs)
    rows = {}
    # Tables that refer to others are counted first, so what they refer to is there.
    for table, columns in (*reversed(TABLES.items()), ("clients", CLIENTS)):
        group = _member(file, table, h5py.Group)
        held = {name: _column(group, name, kind, closed) for name, kind in columns.items() if name in group}
        if missing := [name for name in REQUIRED[table] if name not in held]:
            raise ValueError(f"no column {table}/{missing[0]}")
        rows[table] = min(column.shape[0] for column in held.values())
    if len({file["clients"][name].shape for name in CLIENTS}) > 1:
        raise ValueError("clients of different number")
    _model(file, closed)
    return rows


def _attributes(attrs: Mapping[str, Any]) -> None:
    if attrs.get("status") not in STATUSES:
        raise ValueError(f"status {attrs.get('status')}")
    wanted = {**dict.fromkeys(TEXTS, str), **dict.fromkeys(WHOLE, int)}
    wanted |= {name: float for name, kind in LATER.items() if kind == "f8"}
    for name, kind in wanted.items():
        if name in attrs and type(attrs[name]) is not kind:
            raise ValueError(f"attribute {name} is no {kind.__name__}")
    for name, kind in (("hosts", str), ("compute", dict)):
        if name in attrs and not all(isinstance(item, kind) for item in _list(attrs[name], name)):
            raise ValueError(f"attribute {name} is not what it was")


def _list(value: Any, name: str) -> list[Any]:
    """A list, or what its JSON text says."""
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, list):
        raise ValueError(f"attribute {name} is no list")
    return found


def _member(group: h5py.Group, name: str, kind: type) -> Any:
    found = group[name]
    if not isinstance(found, kind):
        raise ValueError(f"{name} is no {kind.__name__.lower()}")
    return found


def _column(group: h5py.Group, name: str, kind: str, closed: bool) -> h5py.Dataset:
    column = _member(group, name, h5py.Dataset)
    if column.shape is None or len(column.shape) != 1 or column.dtype.kind not in KINDS[kind[0]]:
        raise ValueError(f"{column.name} is no column of {kind}")
    if column.dtype.kind == "O" and h5py.check_string_dtype(column.dtype) is None:
        raise ValueError(f"{column.name} is no column of text")
    if closed and not _stored(column):
        raise ValueError(f"{column.name} holds less than it says")
    return column


def _stored(dataset: h5py.Dataset) -> bool:
    """Whether the file holds all that the dataset claims: HDF5 would make the rest up, in any amount."""
    filters = dataset.id.get_create_plist().get_nfilters()
    return bool(filters or dataset.id.get_storage_size() >= dataset.size * dataset.dtype.itemsize)


def _model(file: h5py.File, closed: bool) -> None:
    x = _column(_member(file, "model", h5py.Group), "x", "f8", closed)
    if x.dtype.kind != "f" or not isinstance(int(x.attrs["version"]), int):
        raise ValueError("model/x is no model")
    for name, shape in _list(x.attrs["layout"], "layout"):
        if not isinstance(name, str) or not all(type(size) is int for size in shape):
            raise ValueError("attribute layout is not what it was")
