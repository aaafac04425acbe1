"""The rows of the run file's tables in the checkpoints: immutable HDF5 files, from which a run file is made anew.

    000012.rows0, 000012.rows1, ...   segments: rows that checkpoint 12 was the first to need

HDF5's own metadata are not consistent after a power cut, so a resume takes no row from the run file. The segments of a
checkpoint follow one another and hold all rows up to it; most were written with earlier checkpoints. Small ones are
merged: their number grows with the logarithm of the rows, or with the rows once there are `SEGMENT_BYTES` of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.checkpoint.snapshot import FORMAT, opened_file
from mpifl.runfile.checkpoint_folder import segment_name
from mpifl.runfile.durable import checksum, durable_file
from mpifl.runfile.tables import TABLES, RowBlock
from mpifl.safe_input import regular_size

SEGMENT_BYTES = 1 << 26  # maximum for the rows of a table in a segment, and for segments that are merged
RATIO = 3  # a segment is merged with those after it once they have so many times its bytes

ReadRows = Callable[[str, int, int], Mapping[str, np.ndarray]]  # table, first row, row after the last one


@dataclass(frozen=True)
class Segment:
    """A file of rows, as a manifest lists it."""

    name: str
    bytes: int
    crc: int
    rows: Mapping[str, int]  # number of rows of each table


def row_counts(segments: Sequence[Segment]) -> dict[str, int]:
    """Rows of each table in all these segments."""
    return {table: sum(segment.rows[table] for segment in segments) for table in TABLES}


def extend_segments(
    folder: Path, number: int, segments: Sequence[Segment], counts: Mapping[str, int], read: ReadRows
) -> list[Segment]:
    """The segments that hold the first `counts` rows of each table: those of an earlier checkpoint and new ones.

    The new ones, of checkpoint `number`, are written durably but for their names in `folder`. Small segments of the
    earlier checkpoint are replaced by new ones with their rows; their files stay. Waits for the disk.

    read  returns rows of the run
    Raises OSError, and what `read` raises; files of new segments may then be left.
    """
    stored = row_counts(segments)
    size = sum((counts[table] - stored[table]) * TABLES[table].row_bytes for table in TABLES)
    if any(counts[table] < stored[table] for table in TABLES):
        raise ValueError(f"{counts} rows, of which {stored} are stored")
    if not size:
        return list(segments)
    kept = list(segments[: first_to_merge([segment.bytes for segment in segments], size)])
    first, new = row_counts(kept), list[Segment]()
    while first != dict(counts):
        stop = {t: min(counts[t], first[t] + SEGMENT_BYTES // TABLES[t].row_bytes) for t in TABLES}
        new.append(_write(folder / segment_name(number, len(new)), first, stop, read))
        first = stop
    return kept + new


def keep_segments(folder: Path, segments: Sequence[Segment], read: ReadRows) -> list[Segment]:
    """Sets the times of these segments to now, and writes again those that are missing or truncated.

    File systems that remove old files go by their times. A segment that is written again has the same bytes, and so the
    same checksum, unless the version of HDF5 is another one; it is listed as it is now. Waits for the disk.

    read  returns rows of the run
    Raises OSError, and what `read` raises.
    """
    kept = list[Segment]()
    for segment in segments:
        path, first = folder / segment.name, row_counts(kept)
        with contextlib.suppress(OSError):  # it is missing, or somebody else's
            os.utime(path, follow_symlinks=False)
        try:
            whole = regular_size(path, follow_links=False) == segment.bytes
        except FileNotFoundError:
            whole = False
        stop = {table: first[table] + segment.rows[table] for table in TABLES}
        kept.append(segment if whole else _write(path, first, stop, read))
    return kept


def first_to_merge(sizes: Sequence[int], new: int) -> int:
    """The first of the segments of these sizes (bytes) that are merged with `new` bytes of rows; their number: none."""
    rest, found = new, len(sizes)
    for k in reversed(range(len(sizes))):
        if rest + sizes[k] > SEGMENT_BYTES:
            break
        if rest >= RATIO * sizes[k]:
            found = k
        rest += sizes[k]
    return found


def _write(path: Path, first: Mapping[str, int], stop: Mapping[str, int], read: ReadRows) -> Segment:
    from mpifl.checkpoint.hdf5 import write

    tables = {table: {"first": first[table], **read(table, first[table], stop[table])} for table in TABLES}
    with durable_file(path) as file:
        write(Path(file.name), {"format": FORMAT, "number": int(path.stem), **tables})
        size, crc = checksum(file)
    return Segment(path.name, size, crc, {table: stop[table] - first[table] for table in TABLES})


@contextlib.contextmanager
def opened_segment(path: Path, segment: Segment, first: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """The tables of a segment, a dataset for each column. Raises Unusable.

    first  the number of its first row in each table
    """
    with opened_file(path, "a segment of rows") as tree:
        tables = {table: _columns(tree, table, first[table], segment.rows[table]) for table in TABLES}
        yield tables


def read_segment(path: Path, segment: Segment, first: Mapping[str, int]) -> RowBlock:
    """The rows of a segment; arguments as of `opened_segment`. Raises Unusable."""
    with opened_segment(path, segment, first) as tables:
        return {table: {name: np.asarray(stored) for name, stored in tables[table].items()} for table in TABLES}


def _columns(tree: Mapping[str, Any], table: str, first: int, rows: int) -> dict[str, Any]:
    """The datasets of a table. Raises ValueError for what is not as it was written."""
    group = dict(tree[table]) if isinstance(tree.get(table), dict) else {}
    if group.pop("first", None) != first:
        raise ValueError(f"{table} does not begin with row {first}")
    expected = {name: (np.dtype(column.dtype), (rows,)) for name, column in TABLES[table].columns.items()}
    found = {name: (getattr(stored, "dtype", None), getattr(stored, "shape", ())) for name, stored in group.items()}
    if found != expected:
        raise ValueError(f"{table} does not have {rows} rows of its columns")
    return group
