"""Trees of named values in HDF5 files, read with everything checked.

A tree's branches are groups, its numbers and texts are attributes of their group, its arrays are datasets: contiguous,
without filters, of numbers, booleans or fixed-length UTF-8 text. Formats are those of HDF5 1.10, checksums included.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpifl.errors import error_text
from mpifl.runfile.create import abandon
from mpifl.safe_hdf5 import Refused, check_sizes, datasets, read_attribute

BLOCK_BYTES = 1 << 20  # rows are written and read in blocks of at most so many bytes
LINK_BYTES = 8  # a link takes at least so many bytes
KINDS = "biufcS"
RESERVE = 1 << 20  # bytes that stay free on the disk: else what is tried in vain would leave the run file no room


def write(path: Path, tree: Mapping[str, Any]) -> None:
    """Makes the HDF5 file `path`.

    tree  bool, int, float, str, array, list of arrays that are the rows of one dataset, or tree, by name
    Raises OSError, also where the disk would be full then; TypeError or ValueError for what cannot be stored.
    """
    if (size := _size(tree)) + RESERVE > (free := shutil.disk_usage(path.parent).free):
        needed = f"{size / 1e6:.3g} MB are needed and {RESERVE / 1e6:.3g} MB are to stay free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed}, of {free / 1e6:.3g} MB")
    file = h5py.File(path, "w", libver=("v110", "v110"), locking=False)
    descriptor = file.id.get_vfd_handle()
    try:
        _write_group(file, tree)
        file.flush()
    except BaseException as error:
        abandon(file, descriptor)
        if isinstance(error, RuntimeError):  # h5py's where the disk is full
            raise OSError(None, error_text(error)) from error
        raise
    file.close()


def _size(value: Any) -> int:
    """The bytes of the arrays of a tree."""
    if isinstance(value, Mapping | list):
        return sum(map(_size, value.values() if isinstance(value, Mapping) else value))
    return value.nbytes if isinstance(value, np.ndarray) else 0


def _write_group(group: h5py.Group, tree: Mapping[str, Any]) -> None:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _write_group(group.create_group(_link(name), track_order=True), value)
        elif isinstance(value, list):
            _write_rows(group, name, value)
        elif isinstance(value, np.ndarray):
            dtype = _stored_type(name, value)  # text is marked as UTF-8, which a copy alone takes over
            group.create_dataset(_link(name), data=value.astype(dtype, copy=dtype.kind == "S"), dtype=dtype)
        elif isinstance(value, str):
            raw = np.array(value.encode())
            group.attrs.create(name, raw, dtype=h5py.string_dtype("utf-8", max(1, raw.itemsize)))
        elif isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
            group.attrs.create(name, value)
        else:
            raise TypeError(f"{name}: a {type(value).__name__} cannot be stored")


def _write_rows(group: h5py.Group, name: str, rows: list[np.ndarray]) -> None:
    if any(row.shape != rows[0].shape or row.dtype != rows[0].dtype for row in rows):
        raise TypeError(f"{name}: rows of several shapes or types")
    dataset = group.create_dataset(_link(name), (len(rows), *rows[0].shape), _stored_type(name, rows[0]))
    for block in _blocks(dataset):
        if dataset.size:
            dataset[block] = np.stack(rows[block])


def _stored_type(name: str, array: np.ndarray) -> np.dtype[Any]:
    """The little-endian type of an array in a file. Raises TypeError for an array that cannot be stored."""
    dtype = array.dtype.newbyteorder("<")
    if dtype.kind == "S":
        return h5py.string_dtype("utf-8", max(1, dtype.itemsize))
    if dtype.kind not in KINDS or dtype.itemsize > 16 or dtype.char in "gG":
        raise TypeError(f"{name}: an array of {array.dtype} cannot be stored")
    return dtype


def _blocks(dataset: h5py.Dataset) -> Iterator[slice]:
    """Rows of a dataset in blocks of at most `BLOCK_BYTES`, or of one row."""
    count = max(1, BLOCK_BYTES // max(1, dataset.dtype.itemsize * prod(dataset.shape[1:])))
    for first in range(0, len(dataset), count):
        yield slice(first, min(first + count, len(dataset)))


def _link(name: str) -> str:
    """The HDF5 link name of a tree's name: only what has a meaning in HDF5 is escaped."""
    if name in ("", "."):
        return f"%{name and '2E'}"
    return re.sub("[%/\0]", lambda found: f"%{ord(found[0]):02X}", name)


def _name(link: str) -> str:
    """Inverse of `_link`."""
    return "" if link == "%" else re.sub("%(25|2F|00|2E)", lambda found: chr(int(found[1], 16)), link)


# -- reading -----------------------------------------------------------------------------------------------------------
def rows_of(dataset: h5py.Dataset, wanted: Collection[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Each of these rows of a dataset: its number, and a new array."""
    for block in _blocks(dataset):
        if here := [k for k in range(block.start, block.stop) if k in wanted]:
            values = dataset[block]
            yield from ((k, values[k - block.start, ...].copy()) for k in here)


@contextmanager
def opened(path: Path) -> Iterator[dict[str, Any]]:
    """The tree of a file, with h5py's datasets for arrays, as long as the block lasts.

    Raises OSError, and ValueError for what `write` does not make; HDF5 may raise anything for a file that is damaged.
    """
    with h5py.File(path, "r", locking=False) as file:
        found = datasets(file, most=path.stat().st_size // LINK_BYTES)
        check_sizes(file, found)
        for dataset in found:
            if dataset.chunks or dataset.shape is None or dataset.dtype.kind not in KINDS:
                raise Refused(f"{dataset.name} is not a contiguous dataset of numbers or text")
        yield _read_group(file)


def _read_group(group: h5py.Group) -> dict[str, Any]:
    """The tree of a group whose links and datasets have been checked."""
    tree: dict[str, Any] = {}
    for name in group.attrs:
        stored = group.attrs.get_id(name)
        if stored.dtype.kind not in KINDS or stored.shape != ():
            raise Refused(f"attribute {name} is neither a number nor a string")
        value = read_attribute(group, name)
        tree[name] = bytes(value).decode() if stored.dtype.kind == "S" else value.item()
    for link, value in group.items():
        if isinstance(value, h5py.Group):
            tree[_name(link)] = _read_group(value)
        elif isinstance(value, h5py.Dataset):
            tree[_name(link)] = value
        else:
            raise Refused(f"{link} is neither a group nor a dataset")
    return tree
