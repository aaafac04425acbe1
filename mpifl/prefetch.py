"""Reads the memory of clients that will compute soon, so that it is in the processor's caches by then.

With a million clients each access is a cache miss. The misses of a hundred clients overlap if one operation of NumPy
reads all their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

LINE, ALIGNED = 64, 16  # bytes of a cache line, and at a multiple of which NumPy's arrays begin
CACHED_BYTES = 1 << 18  # bytes of a table up to which it is assumed to stay in the caches
MAX_ROW_BYTES = 512  # bytes of a row; longer ones are left to the processor's own prefetching


class Prefetch:
    """Called with the numbers of clients, reads their rows of some tables."""

    def __init__(self, tables: Iterable[np.ndarray]) -> None:
        """tables: arrays (n, ...) with a row for each client; small ones and those with long rows are left out."""
        self.columns = [column for table in tables for column in _columns(table)]

    def __call__(self, clients: Sequence[int]) -> None:
        if self.columns:
            rows = np.array(clients, int)
            for column in self.columns:
                column[rows]  # to read it is the purpose


def _columns(table: np.ndarray) -> list[np.ndarray]:
    """Columns of bytes (n,), such that each cache line of a row contains one of them."""
    size = table.nbytes // max(1, len(table))
    if table.nbytes <= CACHED_BYTES or size > MAX_ROW_BYTES or not table.flags.c_contiguous:
        return []
    rows = table.reshape(len(table), -1).view(np.uint8)
    last = [] if ALIGNED % size == 0 else [size - 1]  # such a row is in one cache line
    return [rows[:, k] for k in dict.fromkeys([*range(0, size, LINE), *last])]
