"""Brings what clients are about to compute with into the processor's caches.

Of a million clients nothing is in the caches when one computes, and each of its arrays is waited for in turn. Of the
next hundred clients these waits overlap if their rows are read by one operation.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

LINE = 64  # bytes of memory that are read at once
SMALL = 4 << 20  # bytes of a table that is in the caches anyway
MOST = 512  # bytes of a row; in longer ones the processor itself reads ahead


class Prefetch:
    """Called with the numbers of clients (k,) int64, reads their rows of some tables."""

    def __init__(self, tables: Iterable[np.ndarray]) -> None:
        """tables: arrays (n, ...) with a row for each client; small ones and those with long rows are left out."""
        self.columns = [column for table in tables for column in _columns(table)]

    def __call__(self, clients: np.ndarray) -> None:
        for column in self.columns:
            column[clients]


def _columns(table: np.ndarray) -> list[np.ndarray]:
    """(n,) bytes each, of which every cache line of a row has at least one."""
    size = table.nbytes // max(1, len(table))
    if table.nbytes <= SMALL or size > MOST or not table.flags.c_contiguous:
        return []
    rows = table.reshape(len(table), -1).view(np.uint8)
    return [rows[:, k] for k in dict.fromkeys([*range(0, size, LINE), size - 1])]
