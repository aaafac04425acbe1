"""Rows that are appended by one thread and taken by another, as packed records: they hold no Python objects."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpifl.errors import RunFailed
from mpifl.storage.tables import encode

CODES = {"f8": "d", "i8": "q", "i4": "i"}  # NumPy's type -> that of `struct`


class RowBuffer:
    """Rows of one table, of one value a column; text is cut to its column's bytes."""

    def __init__(self, columns: dict[str, str]) -> None:
        """columns: name -> NumPy's type, f8, i8, i4 or S and a number of bytes."""
        self._record = np.dtype([(name, f"<{type}") for name, type in columns.items()])  # without gaps
        self._sizes = [int(type[1:]) if type[0] == "S" else 0 for type in columns.values()]  # of text
        codes = [f"{size}s" if size else CODES[type] for type, size in zip(columns.values(), self._sizes, strict=True)]
        self._struct = struct.Struct(f"<{''.join(codes)}")
        self._pack = self._pack_text if any(self._sizes) else self._struct.pack
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes) // self._record.itemsize

    def append(self, row: tuple[Any, ...]) -> None:
        """Adds a row. Raises RunFailed for a value that its column cannot hold.

        Called for every update, so it packs the row itself.
        """
        try:
            self._bytes += self._pack(*row)
        except (struct.error, ValueError) as error:
            raise self._refused(row, error) from error

    def extend(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Adds rows in one step: `len` counts all of them or none. Raises RunFailed as `append` does."""
        self._bytes += b"".join(map(self._packed, rows))

    def _packed(self, row: tuple[Any, ...]) -> bytes:
        try:
            return self._pack(*row)
        except (struct.error, ValueError) as error:
            raise self._refused(row, error) from error

    def _refused(self, row: tuple[Any, ...], error: Exception) -> RunFailed:
        return RunFailed(f"the run file cannot hold {row}: {error}")

    def _pack_text(self, *row: Any) -> bytes:
        return self._struct.pack(*(encode(v, size) if size else v for v, size in zip(row, self._sizes, strict=True)))

    def take(self, count: int) -> dict[str, np.ndarray]:
        """Removes the first `count` rows, and returns an array (count,) for each column."""
        size = count * self._record.itemsize
        data = self._bytes[:size]
        del self._bytes[:size]
        records = np.frombuffer(data, self._record)
        return {name: np.ascontiguousarray(records[name]) for name in self._record.names or ()}
