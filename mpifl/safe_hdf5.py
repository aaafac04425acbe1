"""Checks the structure of an HDF5 file from elsewhere before any of it is read.

HDF5 follows links to other files, reads data that are stored in other files, and loads filters as plugins, wherever the
file says so. The sizes that a file states may be false as well.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import prod
from typing import Any, BinaryIO

import h5py
from h5py import h5d, h5z

MAX_DEPTH = 8  # nested groups
MAX_LINKS = 10_000  # links in a file; those of a group that is linked twice count twice
MAX_CHUNK = 1 << 26  # bytes: a chunk is read into memory as a whole
MAX_ATTRIBUTE = 1 << 26  # bytes that an attribute may take
HEAP = b"GCOL\x01\0\0\0"  # how a global heap begins
HEAP_SEARCH_BYTES = 1 << 22  # bytes searched at each end of the file
MAX_TEXTS = 100_000  # texts in the heaps
BUILT_IN = (h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32, h5z.FILTER_LZF)


class Refused(ValueError):
    """The structure of a file is not accepted, whether by damage or by intent."""


def check_heaps(file: BinaryIO) -> None:
    """Raises Refused if a global heap, which holds strings of attributes, is damaged: HDF5 may read it for ever.

    Searches the first and the last `HEAP_SEARCH_BYTES` bytes: mpifl writes heaps before all rows or after them.
    """
    size, left = file.seek(0, os.SEEK_END), MAX_TEXTS
    for start in {0, max(0, size - HEAP_SEARCH_BYTES) // 8 * 8}:
        file.seek(start)
        data = file.read(HEAP_SEARCH_BYTES + 8)
        place = data.find(HEAP)
        while place >= 0:
            if place % 8 == 0:
                left -= _follow_heap(data, place, left)
            place = data.find(HEAP, place + 1)


def _follow_heap(data: bytes, place: int, most: int) -> int:
    """Follows the objects of the heap at `place`, as HDF5 does; their number. Raises Refused for more than `most`."""
    end = min(len(data), place + int.from_bytes(data[place + 8 : place + 16], "little"))
    place, objects = place + 16, 0
    while place + 16 <= end:
        index = int.from_bytes(data[place : place + 2], "little")
        size = int.from_bytes(data[place + 8 : place + 16], "little")
        objects += 1
        if objects > most or not (index or size):
            raise Refused("a global heap, which holds strings, is damaged")
        place += 16 + -(-size // 8) * 8 if index else size
    return objects


def datasets(group: h5py.Group, first: Sequence[str] = (), most: int = MAX_LINKS) -> list[h5py.Dataset]:
    """The datasets below a group, all checked; arguments as of `check_links`. Raises Refused."""
    found = [value for value in check_links(group, first, most=most) if isinstance(value, h5py.Dataset)]
    for dataset in found:
        check_dataset(dataset)
    return found


def check_links(group: h5py.Group, first: Sequence[str] = (), soft: bool = False, most: int = MAX_LINKS) -> list[Any]:
    """The objects below a group. Raises Refused for a link that may lead out of the file, before any is followed.

    first  members of the group in the order in which they are opened, the others after them: HDF5 reads the extent of a
           dataset when it is first opened, also in a file that is being written
    soft   accept soft links; they lead to objects of the same file, as it has no external link
    most   links that are accepted
    """
    found: list[tuple[str, Any]] = []
    for path, link, member in _links(group, "", MAX_DEPTH, first):
        if len(found) == most:
            raise Refused(f"it has more than {most} links")
        if not isinstance(link, h5py.HardLink) and not (soft and isinstance(link, h5py.SoftLink)):
            kind = {h5py.ExternalLink: "a link to another file", h5py.SoftLink: "a soft link"}.get(type(link))
            raise Refused(f"{path} is {kind or 'a link of an unknown kind'}")
        found.append((path, member))
    return [group.get(path) if member is None else member for path, member in found]


def _links(group: h5py.Group, path: str, depth: int, first: Sequence[str] = ()) -> Iterator[tuple[str, Any, Any]]:
    """Every link below a group with its object, without following any but hard ones; the object of others is None."""
    if not depth:
        raise Refused(f"it has groups nested more than {MAX_DEPTH} deep")
    for name in sorted(group, key=lambda name: first.index(name) if name in first else len(first)):
        place = f"{path}/{name}"
        try:
            link = group.get(name, getlink=True)
        except TypeError:  # a kind of link that a program defines
            link = None
        member = group.get(name) if isinstance(link, h5py.HardLink) else None
        yield place, link, member
        if isinstance(member, h5py.Group):
            yield from _links(member, place, depth - 1)


def check_dataset(dataset: h5py.Dataset, filters: Collection[int] = ()) -> None:
    """Raises Refused unless the data are in the dataset's own file, pass no filter but these, and have a fixed size."""
    made = dataset.id.get_create_plist()
    if made.get_layout() == h5d.VIRTUAL or made.get_external_count():
        raise Refused(f"{dataset.name} has its data in another file")
    for k in range(made.get_nfilters()):
        code = made.get_filter(k)[0]
        if code not in filters:
            raise Refused(
                f"{dataset.name} passes through filter {code}, which is not accepted (h5repack -f NONE removes it)"
            )
    if dataset.dtype.hasobject:
        raise Refused(f"{dataset.name} has values of variable length, or references")
    if dataset.chunks and prod(dataset.chunks) * dataset.dtype.itemsize > MAX_CHUNK:
        raise Refused(f"{dataset.name} has chunks of more than {MAX_CHUNK} bytes")


def data_size(dataset: h5py.Dataset) -> int:
    """Bytes that the dataset takes in memory; 0 for one without a shape."""
    return prod(dataset.shape) * dataset.dtype.itemsize if dataset.shape is not None else 0


def check_sizes(file: h5py.File, found: Iterable[h5py.Dataset]) -> None:
    """Raises Refused where datasets of the file have more bytes than the file: they share data, or are not stored."""
    held, size = sum(map(data_size, found)), os.fstat(file.id.get_vfd_handle()).st_size
    if held > size:
        raise Refused(f"the tables have {held} bytes, and the file has {size}")


def read_attribute(owner: h5py.HLObject, name: str) -> Any:
    """An attribute: a number, a text, or a list of them. Raises KeyError, Refused."""
    held = owner.attrs.get_id(name)
    kind, size = held.dtype, prod(held.shape) if held.shape is not None else 0
    if (kind.hasobject and h5py.check_string_dtype(kind) is None) or kind.kind not in "biufSO":
        raise Refused(f"attribute {name} is neither a number nor a string")
    each = kind.itemsize
    if kind.hasobject and size > 1:  # each may be the one long text of the file
        each = os.fstat(owner.file.id.get_vfd_handle()).st_size
    if size * each > MAX_ATTRIBUTE:
        raise Refused(f"attribute {name} takes more than {MAX_ATTRIBUTE} bytes")
    return owner.attrs[name]


def build() -> str:
    """The versions of h5py and of the HDF5 library that it uses."""
    return f"h5py {h5py.version.version} with HDF5 {h5py.version.hdf5_version}"
