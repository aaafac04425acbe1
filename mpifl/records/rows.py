"""Rows that the loop handed in, as arrays that a table's columns take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpifl.records.schema import text

BLOCK = 1024  # rows turned into arrays before the loop may have the interpreter again


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
