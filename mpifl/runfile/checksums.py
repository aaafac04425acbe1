"""Checksums in the run file: CRC-32 of rows, columns, the model and attributes, in the table /checksums.

HDF5 has checksums of its own structures only. `check` finds a flipped bit in a value.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5s

from mpifl.runfile.tables import CHANGING, CHECKSUMS, CLIENTS, CLIENTS_CHANGING, TABLES, ChecksumRow, append_rows
from mpifl.safe_hdf5 import read_attribute

ROWS_AT_ONCE = 1 << 16  # rows read at once, at least a block


def crc(arrays: Iterable[np.ndarray], before: int = 0) -> int:
    """CRC-32 of the arrays' values one after the other, little endian; before: of what precedes them."""
    for array in arrays:
        before = zlib.crc32(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data, before)
    return before


def plain(value: Any) -> Any:
    """An attribute from h5py as a string, number or list."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    return value.item() if isinstance(value, np.generic) else value


# -- writing -----------------------------------------------------------------------------------------------------------
def append(file: h5py.File, rows: Sequence[ChecksumRow]) -> None:
    """Appends rows to /checksums."""
    append_rows(file["checksums"], CHECKSUMS.arrays(rows))


def replace(file: h5py.File, row: ChecksumRow) -> None:
    """Changes the checksum of the same object in place."""
    (index,) = np.flatnonzero(file["checksums/object"][...] == row.object.encode())
    file["checksums/crc"][index] = row.crc


def of_start(file: h5py.File) -> list[ChecksumRow]:
    """The checksums of what does not change after the start, and of the first model."""
    rows = [_of_attribute(file, name) for name in file.attrs if name not in CHANGING]
    rows += [_of_dataset(file, f"clients/{name}") for name in CLIENTS.columns if name not in CLIENTS_CHANGING]
    if "best" in file["model"]:
        rows.append(_of_dataset(file, "model/best"))
    for path, name in (("model/x", "layout"), ("model/constants", "entries")):
        rows += [_of_attribute(file, name, path), _of_dataset(file, path)]
    return rows


def of_end(file: h5py.File) -> list[ChecksumRow]:
    """The checksums of what changes until the end."""
    rows = [_of_attribute(file, name) for name in CHANGING]
    return rows + [_of_dataset(file, f"clients/{name}") for name in CLIENTS_CHANGING]


def of_table(file: h5py.File, table: str) -> list[ChecksumRow]:
    """The checksums of all rows of a table that grows, in blocks."""
    rows, before = [], 0
    columns = [file[table][name] for name in TABLES[table].columns]
    for first in range(0, len(columns[0]), ROWS_AT_ONCE):
        arrays = [_bytes_of(column, first, first + ROWS_AT_ONCE) for column in columns]
        before = crc(arrays, before)
        rows.append(ChecksumRow(table, first, len(arrays[0]), before))
    return rows


def running(file: h5py.File) -> dict[str, int]:
    """The CRC of all rows of each table that grows."""
    found = dict.fromkeys(TABLES, 0)
    for name, value in zip(file["checksums/object"][...].tolist(), file["checksums/crc"][...].tolist(), strict=True):
        if name.decode() in found:
            found[name.decode()] = value
    return found


def _of_attribute(file: h5py.File, name: str, path: str = "") -> ChecksumRow:
    return ChecksumRow(f"{path}@{name}", 0, 1, _crc_of_value(read_attribute(file[path or "/"], name)))


def _of_dataset(file: h5py.File, path: str) -> ChecksumRow:
    values = _bytes_of(file[path], 0, file[path].size)
    return ChecksumRow(path, 0, values.size, crc([values]))


def _bytes_of(dataset: h5py.Dataset, first: int, stop: int) -> np.ndarray:
    """Rows of a column as they are stored: h5py would drop what follows the first null of a text."""
    count = min(stop, len(dataset)) - first
    if dataset.dtype.kind != "S" or not count:
        return np.asarray(dataset[first:stop])
    values, space = np.empty(count, dataset.dtype), dataset.id.get_space()
    space.select_hyperslab((first,), (count,))
    dataset.id.read(h5s.create_simple((count,)), space, values, mtype=dataset.id.get_type())
    return values


def _crc_of_value(value: Any) -> int:
    return zlib.crc32(json.dumps(plain(value)).encode())


# -- checking ----------------------------------------------------------------------------------------------------------
class Coverage(NamedTuple):
    """What the checksums of a file cover, and the first contradiction."""

    rows: dict[str, int]  # number of rows with a checksum in each table that grows, from the first row on
    blocks: dict[str, list[ChecksumRow]]  # checksums of each table that grows
    wrong: str = ""  # what disagrees with its checksum; "": nothing


def check(file: h5py.File, count: int, closed: bool) -> Coverage:
    """Compares an open run file with its first `count` checksums. Raises what h5py raises for a damaged file.

    closed: whether the file was closed, so that every row must have a checksum
    """
    blocks: dict[str, list[ChecksumRow]] = {name: [] for name in TABLES}
    values, seen = [], set[str]()
    for row in _stored(file, count):
        if row.object not in blocks:
            if row.object in seen:
                return Coverage(dict.fromkeys(TABLES, 0), blocks, f"checksums: two rows for {row.object!r}")
            seen.add(row.object)
            values.append(row)
        elif not set(file[row.object]) - set(TABLES[row.object].columns):  # else it has columns of a newer version
            blocks[row.object].append(row)
    rows = {table: rows[-1].first + rows[-1].rows if rows else 0 for table, rows in blocks.items()}
    wrong = (text for table, rows in blocks.items() for text in _wrong_blocks(file, table, rows, closed))
    text = next(wrong, "") or next((text for row in values if (text := _wrong_value(file, row))), "")
    return Coverage(rows, blocks, text)


def _stored(file: h5py.File, count: int) -> list[ChecksumRow]:
    """The first rows of /checksums."""
    if not count:
        return []
    columns = [_bytes_of(file["checksums"][name], 0, count).tolist() for name in CHECKSUMS.columns]
    return [ChecksumRow(name.decode("utf-8", "replace"), *rest) for name, *rest in zip(*columns, strict=True)]


def _wrong_blocks(file: h5py.File, table: str, blocks: Sequence[ChecksumRow], closed: bool) -> Iterator[str]:
    """What is wrong with the blocks of a table that grows."""
    if TABLES[table].added and table not in file:
        return
    columns = [file[table][name] for name in TABLES[table].columns if name in file[table]]
    length, stop, found = min(map(len, columns)), 0, 0
    start, arrays = 0, [np.empty(0)]  # the rows that are in memory
    for _, first, rows, expected in blocks:
        if first != stop or rows <= 0 or first + rows > length:
            yield f"checksums: a block of {table} has rows {first} to {first + rows - 1}, expected the first at {stop}"
            return
        stop = first + rows
        if stop > start + len(arrays[0]):
            start, end = first, max(stop, first + ROWS_AT_ONCE)
            arrays = [_bytes_of(column, start, end) for column in columns]
        found = crc((array[first - start : stop - start] for array in arrays), found)
        if found != expected:
            yield f"{table}: the checksum of rows {first} to {stop - 1} is {found:08x}, expected {expected:08x}"
            return
    if closed and blocks and stop < length:
        yield f"checksums: rows {stop} to {length - 1} of {table} have none"


def _wrong_value(file: h5py.File, row: ChecksumRow) -> str:
    """What is wrong with a column, the model or an attribute; "" if nothing is."""
    path, at, name = row.object.partition("@")
    item = None if "\0" in row.object else file.get(path or "/")  # HDF5 would stop reading the name there
    if item is None or (at and name not in item.attrs) or not (at or isinstance(item, h5py.Dataset)):
        return f"checksums: a row for {row.object!r}, which the file does not have"
    for model, number in (("model/x", "version"), ("model/best", "evaluation")):
        if row.object == model and item.attrs[number] < 0:  # the model was being replaced
            return ""
    found = _of_attribute(file, name, path) if at else _of_dataset(file, path)
    shown = f"attribute {name}" + (f" of {path}" if path else "") if at else path
    if found[:3] != row[:3]:
        return f"checksums: the row for {shown} covers {row.rows} items from {row.first}, expected {found.rows} from 0"
    return "" if found == row else f"{shown}: its checksum is {found.crc:08x}, expected {row.crc & 0xFFFFFFFF:08x}"
