"""Checks a file against the run-file schema.

HDF5 detects damage to its own structures only, and a file may come from anywhere: after `check`, all that is read has
the types of `tables`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py

from mpifl.runfile.tables import ATTRIBUTES, CHECKSUMS, CLIENTS, STATUSES, TABLES
from mpifl.safe_hdf5 import read_attribute
from mpifl.safe_input import parse_json

KINDS = {"f": "fiu", "i": "iu", "S": "S"}  # column of floats, integers, text -> dtype kinds that are accepted
VALUES = {"f": "numbers", "i": "integers", "S": "text"}  # words for the values of a column in errors
SINGULARS = {int: "an integer", float: "a number", str: "text"}  # words for attributes in errors
PLURALS: dict[type, str] = {str: "texts", dict: "objects"}


def check(
    file: h5py.File, attrs: Mapping[str, Any], closed: bool, datasets: Mapping[str, h5py.Dataset]
) -> dict[str, int]:  # fmt: skip
    """Checks the attributes, tables and model; the number of rows of each table.

    That is 0 where a file of an older version has no such table. Raises ValueError with the reason.

    attrs     root attributes as plain values
    closed    whether the file was closed, so that every row must be stored
    datasets  the file's datasets by path
    """
    _attributes(attrs)
    rows = {}
    # Tables that refer to others are counted first, so what they refer to is there.
    for name, table in (("checksums", CHECKSUMS), *reversed(TABLES.items()), ("clients", CLIENTS)):
        if table.added and name not in file:
            rows[name] = 0
            continue
        lengths = set()
        for field, column in table.columns.items():
            if (found := datasets.get(f"/{name}/{field}")) is not None:
                _column(found, column.dtype, closed)
                lengths.add(len(found))
            elif column.missing is None:
                raise ValueError(f"column {name}/{field} is missing")
        if name == "clients" and len(lengths) > 1:
            raise ValueError("columns of clients differ in length")
        rows[name] = min(lengths)
    if (model := datasets.get("/model/x")) is None:
        raise ValueError("model/x is missing")
    _model(model, closed)
    if (best := datasets.get("/model/best")) is not None:
        _column(best, "f8", closed)
        if (
            best.dtype != model.dtype
            or best.shape != model.shape
            or int(read_attribute(best, "evaluation")) >= rows["evaluations"]
        ):
            raise ValueError("model/best is not a vector like model/x with an evaluation of the file")
    if (constants := datasets.get("/model/constants")) is not None:
        _constants(constants, closed)
    return rows


def _attributes(attrs: Mapping[str, Any]) -> None:
    if attrs.get("status") not in STATUSES:
        raise ValueError(f"status {attrs.get('status')} is not one of {', '.join(STATUSES)}")
    for name, attribute in ATTRIBUTES.items():
        if name not in attrs:
            continue
        if attribute.items:
            if not all(isinstance(item, attribute.items) for item in _list(attrs[name], name)):
                raise ValueError(f"attribute {name} is not a list of {PLURALS[attribute.items]}")
        elif type(attrs[name]) is not attribute.kind:
            raise ValueError(f"attribute {name} is not {SINGULARS[attribute.kind]}")


def _list(value: Any, name: str) -> list[Any]:
    """A list, or the one in a JSON text."""
    found = parse_json(value) if isinstance(value, str) else value
    if not isinstance(found, list):
        raise ValueError(f"attribute {name} is not a list")
    return found


def _column(column: h5py.Dataset, kind: str, closed: bool) -> None:
    if column.shape is None or len(column.shape) != 1 or column.dtype.kind not in KINDS[kind[0]]:
        raise ValueError(f"{column.name} is not a column of {VALUES[kind[0]]}")
    # HDF5 would fill in rows that are not stored, however many.
    if closed and column.id.get_storage_size() < column.size * column.dtype.itemsize:
        raise ValueError(f"{column.name} stores fewer rows than its shape")


def _model(x: h5py.Dataset, closed: bool) -> None:
    _column(x, "f8", closed)
    if x.dtype.kind != "f" or not isinstance(int(read_attribute(x, "version")), int):
        raise ValueError("model/x is not a vector of floats with a version")
    for name, shape in _list(read_attribute(x, "layout"), "layout"):
        if not isinstance(name, str) or not all(type(size) is int for size in shape):
            raise ValueError("attribute layout is not a list of names and shapes")


def _constants(constants: h5py.Dataset, closed: bool) -> None:
    _column(constants, "i8", closed)
    entries = _list(read_attribute(constants, "entries"), "entries")
    for key, dtype, shape, part, size in entries:
        texts = isinstance(key, str) and isinstance(dtype, str) and isinstance(part, str | None)
        if not texts or not all(type(number) is int and number >= 0 for number in (*shape, size)):
            raise ValueError("attribute entries is not a list of keys, types, shapes, parts and sizes")
    if constants.dtype != "u1" or sum(entry[-1] for entry in entries) != constants.size:
        raise ValueError("model/constants does not have the bytes that its attribute entries states")
