"""Run files that were changed on purpose, with checksums that agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from mpifl.storage import checksums
from mpifl.storage.tables import CHECKSUMS, TABLES


@contextmanager
def changing(path: Path) -> Iterator[h5py.File]:
    """The file, to be changed; afterwards all checksums are those of what it holds then."""
    with h5py.File(path, "r+", libver="latest") as file:
        yield file
        for name in CHECKSUMS.columns:
            file["checksums"][name].resize((0,))
        blocks = [row for table in TABLES for row in checksums.of_table(file, table)]
        checksums.append(file, [*checksums.of_start(file), *blocks, *checksums.of_end(file)])
