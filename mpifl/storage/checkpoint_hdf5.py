"""Trees of named values in HDF5 files: written straight from the arrays' memory, read with everything checked.

A tree's branches are groups, its numbers and texts are attributes of their group, its arrays are datasets: contiguous,
without filters, of numbers, booleans or fixed-length UTF-8 text. Formats are those of HDF5 1.10, checksums included.

HDF5 makes the file's structure in memory, with room for every dataset but no data. Structure and data are then written
by plain system calls: HDF5 copies no array, holds its lock for milliseconds, and never meets a full disk.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5d, h5g, h5p, h5s, h5t

GATHERED = 1 << 16  # elements of a strided array that are copied at once
PAGE = 1 << 12  # bytes
LINK = 8  # bytes that a link takes at least
DEPTH = 8  # of groups in a file that is read
KINDS = "biufcS"
VERSIONS = ("v110", "v110")


class Rows(list[np.ndarray]):
    """Arrays of one shape and type that make one dataset, (rows, *shape)."""


def write(file: BinaryIO, tree: Mapping[str, Any]) -> None:
    """Makes `file`, which is empty, an HDF5 file.

    tree  bool, int, float, str, array, `Rows` or tree, by name
    Raises OSError; TypeError or ValueError for what cannot be stored.
    """
    image, data = _Image(), list[tuple[int, list[np.ndarray], np.dtype[Any]]]()
    with h5py.File(image, "w", libver=VERSIONS) as h5:
        _write_group(h5.id, tree, data)
    file.truncate(image.size)
    for number, page in sorted(image.pages.items()):
        file.seek(number * PAGE)
        file.write(page[: max(0, image.size - number * PAGE)])
    for offset, arrays, dtype in data:
        file.seek(offset)
        for array in arrays:
            _write_array(file, array, dtype)


def _write_group(group: h5g.GroupID, tree: Mapping[str, Any], data: list[Any]) -> None:
    """Writes all but the datasets' data, which are added to `data`: (offset, arrays, type)."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            made = h5g.create(group, _link(name), lcpl=_properties().link, gcpl=_properties().group)
            _write_group(made, value, data)
        elif isinstance(value, (np.ndarray, Rows)):
            _lay_out(group, name, value, data)
        else:
            attributes = h5py.Group(group).attrs
            if isinstance(value, str):
                raw = np.array(value.encode())
                attributes.create(name, raw, dtype=h5py.string_dtype("utf-8", max(1, raw.itemsize)))
            elif isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
                attributes.create(name, value)
            else:
                raise TypeError(f"{name}: a {type(value).__name__} cannot be stored")


def _lay_out(group: h5g.GroupID, name: str, value: np.ndarray | Rows, data: list[Any]) -> None:
    rows = value if isinstance(value, Rows) else [value]
    dtype = rows[0].dtype.newbyteorder("<")
    if dtype.kind not in KINDS or (dtype.itemsize > 16 and dtype.kind != "S") or dtype.char in "gG":
        raise TypeError(f"{name}: an array of {rows[0].dtype} cannot be stored")
    if any(row.shape != rows[0].shape or row.dtype != rows[0].dtype for row in rows):
        raise TypeError(f"{name}: rows of several shapes or types")
    shape = ((len(rows),) if isinstance(value, Rows) else ()) + rows[0].shape
    kind = h5t.py_create(h5py.string_dtype("utf-8", max(1, dtype.itemsize)) if dtype.kind == "S" else dtype, logical=1)
    space = h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
    dataset = h5d.create(group, _link(name), kind, space, dcpl=_properties().dataset, lcpl=_properties().link)
    if prod(shape) and dtype.itemsize:
        data.append((dataset.get_offset(), list(rows), dtype))


def _write_array(file: BinaryIO, array: np.ndarray, dtype: np.dtype[Any]) -> None:
    if array.flags.c_contiguous and array.dtype == dtype:
        file.write(array.reshape(-1).view(np.uint8).data)
        return
    for first in range(0, array.size, GATHERED):
        file.write(array.flat[first : first + GATHERED].astype(dtype, copy=False).data)


class _Properties:
    """Creation properties: no time stamps, UTF-8 names, creation order kept, space allocated early, no fill values."""

    def __init__(self) -> None:
        self.link = h5p.create(h5p.LINK_CREATE)
        self.link.set_char_encoding(h5t.CSET_UTF8)
        self.group = h5p.create(h5p.GROUP_CREATE)
        self.group.set_link_creation_order(h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED)
        self.group.set_obj_track_times(False)
        self.dataset = h5p.create(h5p.DATASET_CREATE)
        self.dataset.set_layout(h5d.CONTIGUOUS)
        self.dataset.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        self.dataset.set_fill_time(h5d.FILL_TIME_NEVER)
        self.dataset.set_obj_track_times(False)


_made: list[_Properties] = []


def _properties() -> _Properties:
    if not _made:
        _made.append(_Properties())
    return _made[0]


def _link(name: str) -> bytes:
    """The HDF5 link name of a tree's name: only what has a meaning in HDF5 is escaped."""
    if name in ("", "."):
        return f"%{name and '2E'}".encode()
    return re.sub("[%/\0]", lambda found: f"%{ord(found[0]):02X}", name).encode()


def _name(link: str) -> str:
    """Inverse of `_link`."""
    return "" if link == "%" else re.sub("%(25|2F|00|2E)", lambda found: chr(int(found[1], 16)), link)


class _Image(io.RawIOBase):
    """A sparse file in memory, with the methods that h5py calls."""

    def __init__(self) -> None:
        self.size = self._position = 0
        self.pages: dict[int, bytearray] = {}

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        self.size = self._position if size is None else size
        return self.size

    def flush(self) -> None: ...

    def _pieces(self, length: int) -> Iterator[tuple[int, int, int]]:
        """(page, first byte in it, bytes) of the next `length` bytes; advances past them."""
        while length:
            number, first = divmod(self._position, PAGE)
            count = min(length, PAGE - first)
            yield number, first, count
            self._position += count
            length -= count

    def readinto(self, buffer: Any) -> int:
        done = 0
        for number, first, count in self._pieces(len(buffer)):
            page = self.pages.get(number)
            buffer[done : done + count] = page[first : first + count] if page else bytes(count)
            done += count
        return done

    def write(self, buffer: Any) -> int:
        done = 0
        for number, first, count in self._pieces(len(buffer)):
            page = self.pages.setdefault(number, bytearray(PAGE))
            page[first : first + count] = buffer[done : done + count]
            done += count
        self.size = max(self.size, self._position)
        return done


# -- reading -----------------------------------------------------------------------------------------------------------
class Stored:
    """A dataset of an open file."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset = dataset
        self.shape, self.dtype = dataset.shape, dataset.dtype
        self.nbytes = self.dtype.itemsize * prod(self.shape)

    def read(self) -> np.ndarray:
        """A new array."""
        value = np.empty(self.shape, self.dtype)
        if value.size:
            self._dataset.read_direct(value)
        return value

    def row(self, k: int) -> np.ndarray:
        """Row k, a new array."""
        value = np.empty(self.shape[1:], self.dtype)
        if value.size:
            self._dataset.read_direct(value, np.s_[k])
        return value


@contextmanager
def opened(path: Path) -> Iterator[dict[str, Any]]:
    """The tree of a file, with `Stored` for arrays, as long as the block lasts.

    Raises OSError, and ValueError for what `write` does not make; HDF5 may raise anything for a file that is damaged.
    """
    with h5py.File(path, "r", locking=False) as h5:
        room = [path.stat().st_size]
        yield _read_group(h5, DEPTH, room)


def _read_group(group: h5py.Group, depth: int, room: list[int]) -> dict[str, Any]:
    """room: bytes that links and data may still take; nothing is larger than the file, however often it is linked."""
    if not depth:
        raise ValueError("groups are nested too deeply")
    tree: dict[str, Any] = {}
    for name in group.attrs:
        kind, shape = group.attrs.get_id(name).dtype, group.attrs.get_id(name).shape
        if kind.kind not in KINDS or shape or kind.itemsize > room[0]:
            raise ValueError(f"attribute {name} is neither a number nor a string")
        value = group.attrs[name]
        tree[name] = bytes(value).decode() if kind.kind == "S" else value.item()
    for link in group:
        room[0] -= LINK
        if room[0] < 0:
            raise ValueError("it has more links than bytes")
        if not isinstance(group.get(link, getlink=True), h5py.HardLink):
            raise ValueError(f"{link} is not a hard link")
        value = group[link]
        if isinstance(value, h5py.Group):
            tree[_name(link)] = _read_group(value, depth - 1, room)
        elif isinstance(value, h5py.Dataset):
            _check(value, room)
            tree[_name(link)] = Stored(value)
        else:
            raise ValueError(f"{link} is neither a group nor a dataset")
    return tree


def _check(dataset: h5py.Dataset, room: list[int]) -> None:
    properties = dataset.id.get_create_plist()
    plain = properties.get_layout() == h5d.CONTIGUOUS and not properties.get_external_count()
    if not plain or properties.get_nfilters() or dataset.dtype.kind not in KINDS or dataset.shape is None:
        raise ValueError(f"{dataset.name} is not a contiguous dataset of numbers or text")
    room[0] -= dataset.dtype.itemsize * prod(dataset.shape)
    if room[0] < 0:
        raise ValueError(f"{dataset.name} has more elements than the file has bytes")
