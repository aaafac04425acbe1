"""What the server loop hands in for the run file: rows, until a thread takes them over as arrays, a column each."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np

from mpifl.storage.layout import TABLES, text

METRICS = dict.fromkeys(list(TABLES["evaluations"])[3:], nan)
BLOCK = 1024  # rows turned into arrays before the loop may have the interpreter again


class Rows:
    """Tuples in lists: the loop only appends, tens of thousands of times a second."""

    def gather(self, taken: Mapping[str, int]) -> None:
        """Begins, after so many rows of each table that are in the file already."""
        self._rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in TABLES}
        self._updates = self._rows["updates"]
        self._taken = dict(taken)  # rows that the thread took over, so far
        self._taking = threading.Lock()  # of the step between the two; never held while the file is touched

    def update(
        self,
        time: float,
        client: int,
        version: int,
        staleness: int,
        local_steps: int,
        bytes: int,
        norm: float,
        bytes_down: int = 0,
        compute: float = nan,
        exchange: float = nan,
    ) -> None:
        """One update that the server consumed."""
        row = (time, client, version, staleness, local_steps, bytes, norm, bytes_down, compute, exchange)
        self._updates.append(row)

    def aggregation(self, time: float, updates: int) -> None:
        """One global step, after `updates` updates in all."""
        self._rows["aggregations"].append((time, updates))

    def evaluation(self, time: float, updates: int, version: int, **metrics: float) -> None:
        """One evaluation of the model of `version`, after `updates` updates in all; metrics not given are NaN.

        KeyError for a metric that has no column.
        """
        if unknown := metrics.keys() - METRICS.keys():
            raise KeyError(*unknown)
        self._rows["evaluations"].append((time, updates, version, *({**METRICS, **metrics}).values()))

    def event(
        self, time: float, kind: str, client: int = -1, text: str = "", updates: int = -1, version: int = -1
    ) -> None:
        """Something worth telling; client -1: of no client. `kind` is cut to 32 bytes, `text` to 512.

        updates, version  consumed, and aggregations, before it; -1: not known
        """
        self._rows["events"].append((time, kind, client, text, updates, version))

    def counts(self) -> dict[str, int]:
        """Rows handed in so far, by table, those of the file that was resumed among them."""
        with self._taking:
            return {table: self._taken[table] + len(rows) for table, rows in self._rows.items()}

    def take(self, table: str, count: int) -> list[tuple[Any, ...]]:
        """The first rows that are left, `count` of them, which are there."""
        rows = self._rows[table][:count]
        with self._taking:
            del self._rows[table][:count]  # the loop only ever appends, so no row falls between this and the line above
            self._taken[table] += count
        return rows


def as_arrays(rows: Sequence[tuple[Any, ...]], types: Sequence[np.dtype[Any]]) -> list[np.ndarray]:
    """An array (rows,) of each type, from tuples of one value a type; strings are cut to their column's bytes."""
    arrays = [np.empty(len(rows), dtype) for dtype in types]
    for first in range(0, len(rows), BLOCK):
        for array, values in zip(arrays, zip(*rows[first : first + BLOCK], strict=True), strict=True):
            if array.dtype.kind == "S":
                values = tuple(text(value, array.itemsize) for value in values)
            array[first : first + BLOCK] = values
        if len(rows) > BLOCK:
            time.sleep(1e-4)
    return arrays
