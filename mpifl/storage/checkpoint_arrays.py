"""A file of named arrays: a part of a checkpoint.

    8 bytes        magic
    4 bytes        format number
    8 bytes        length of the index
    index          JSON: [[name, type, shape], ...]
    arrays         in the order of the index, little-endian, C order, each from the next multiple of 64 bytes

Offsets follow from types and shapes, and so does the length of the file: nothing in it can point anywhere else.
No pickle: types are numbers and truth values.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mpifl.errors import ConfigError
from mpifl.storage.durable import words

MAGIC = b"\x89mpifl\r\n"
FORMAT = 1
HEAD = struct.Struct("<8sIQ")
ALIGN = 64
BLOCK = 1 << 16  # elements of a strided array that are gathered at once
NAMES = ["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]
TYPES = {name: np.dtype(name) for name in NAMES}
BROKEN = (ValueError, TypeError, KeyError, OverflowError, RecursionError)  # what JSON of any kind can lead to


class Unusable(Exception):
    """A part or a manifest that cannot be used; a clause after "checkpoint 12": "is damaged: 000012.rank3 is ..." """


def dumps(value: Any) -> bytes:
    """JSON that gives every float back exactly, NaN and infinities included. TypeError for what is no JSON."""
    return json.dumps(value, default=_number, separators=(",", ":")).encode()


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no JSON")


def write(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes straight from the arrays' memory. OSError; TypeError for what cannot be stored."""
    values = {name: np.asarray(array) for name, array in arrays.items()}
    index = dumps([[name, _type(name, value).str, value.shape] for name, value in values.items()])
    file.write(HEAD.pack(MAGIC, FORMAT, len(index)))
    file.write(index)
    position = HEAD.size + len(index)
    for name, value in values.items():
        file.write(bytes(-position % ALIGN))
        _write_array(file, value, _type(name, value))
        position += -position % ALIGN + value.nbytes


def _type(name: str, value: np.ndarray) -> np.dtype[Any]:
    dtype = value.dtype.newbyteorder("<")
    if dtype.str not in TYPES:
        raise TypeError(f"{name}: an array of {value.dtype} cannot be stored")
    return dtype


def _write_array(file: BinaryIO, value: np.ndarray, dtype: np.dtype[Any]) -> None:
    if value.flags.c_contiguous and value.dtype == dtype:
        file.write(value.reshape(-1).view(np.uint8).data)
        return
    for first in range(0, value.size, BLOCK):
        file.write(value.flat[first : first + BLOCK].astype(dtype, copy=False).data)


class Saved:
    """One rank's part of a checkpoint. Its index is read at once, an array when it is asked for.

    path    of the file
    """

    path: Path

    def __init__(self, path: Path) -> None:
        """Raises Unusable."""
        self.path = path
        try:
            regular(path)
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._arrays = _index(path.name, file, size)
        except OSError as error:
            raise Unusable(f"cannot be read: {path.name}: {words(error)}") from error

    def names(self) -> list[str]:
        """Of the arrays, in the order in which they were saved."""
        return list(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __getitem__(self, name: str) -> np.ndarray:
        """A new array that can be written to. Raises ConfigError("checkpoint", ...)."""
        if name not in self._arrays:
            raise ConfigError("checkpoint", self.path, f"a part with {name} in it; this one has none")
        dtype, shape, offset = self._arrays[name]
        try:
            value = np.empty(shape, dtype)
            with self.path.open("rb") as file:
                file.seek(offset)
                whole = file.readinto(value.reshape(-1).view(np.uint8).data) == value.nbytes
        except OSError as error:
            raise ConfigError("checkpoint", self.path, f"a file that can be read ({words(error)})") from error
        if not whole:
            raise ConfigError("checkpoint", self.path, "a whole file; this one was cut off")
        return value


def regular(path: Path) -> int:
    """The size of a file. OSError where it is none: opening a pipe would wait for its other end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(None, "not a file")
    return found.st_size


def _index(name: str, file: BinaryIO, size: int) -> dict[str, Any]:
    """(type, shape, offset) by name; everything checked. OSError, Unusable."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise Unusable(f"is damaged: {name} is not a part of a checkpoint")
    _, version, length = HEAD.unpack(head)
    if version != FORMAT:
        raise newer(name, version, FORMAT)
    if length > size - HEAD.size:
        raise Unusable(f"is damaged: {name} is cut off")
    try:
        index = json.loads(file.read(length))
        arrays: dict[str, Any] = {}
        position = HEAD.size + length
        for key, kind, shape in index:
            _check(key, kind, shape, arrays)
            position += -position % ALIGN
            arrays[key] = TYPES[kind], tuple(shape), position
            position += prod(shape) * TYPES[kind].itemsize
            np.broadcast_to(TYPES[kind].type(), shape)  # ValueError for a shape that no array can have
        if not isinstance(index, list) or position != size:
            raise ValueError
    except BROKEN as error:
        raise Unusable(f"is damaged: {name} has a broken index") from error
    return arrays


def _check(key: Any, kind: Any, shape: Any, arrays: dict[str, Any]) -> None:
    if not isinstance(key, str) or key in arrays or kind not in TYPES or not isinstance(shape, list):
        raise ValueError
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError


def newer(name: str, version: int, known: int) -> Unusable:
    """What is said of a format that this version does not know."""
    return Unusable(f"is of a newer format: {name} has format {version}, this mpifl reads {known}")
