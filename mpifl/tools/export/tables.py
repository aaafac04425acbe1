"""The tables of a run file as CSV and Parquet: one file for each table, and one for the root attributes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from mpifl.errors import ConfigError
from mpifl.runfile.reader import Run
from mpifl.runfile.tables import TABLES
from mpifl.safe_input import csv_text, printable

if TYPE_CHECKING:
    from pandas import DataFrame

ROWS_AT_ONCE = 1 << 16  # rows that are converted to text together


def csv_files(run: Run) -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
    """UTF-8, a line with the columns' names first; a number reads back to the same bits, NaN is an empty field."""
    for name, frame in frames(run):
        yield f"{name}.csv", partial(_write_csv, frame)


def parquet_files(run: Run) -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
    """Columns have the types of the run file, text is UTF-8."""
    for name, frame in frames(run):
        yield f"{name}.parquet", partial(_write_parquet, run, name, frame)


def frames(run: Run) -> Iterator[tuple[str, DataFrame]]:
    """The tables by name; /clients gets a column `client`, and the root attributes are a table of names and values."""
    from pandas import DataFrame

    for name in TABLES:
        yield name, _native(getattr(run, name))
    yield "clients", _native(run.clients).rename_axis("client").reset_index()
    values = [value if isinstance(value, str) else json.dumps(value) for value in run.attrs.values()]
    yield "attributes", DataFrame({"name": list(run.attrs), "value": values}, dtype=object)


def _native(frame: DataFrame) -> DataFrame:
    """The columns in this machine's byte order, which pandas and pyarrow want."""
    orders = {name: values.dtype.newbyteorder("=") for name, values in frame.items()
              if isinstance(values.dtype, np.dtype) and not values.dtype.isnative}  # fmt: skip
    return frame.astype(orders)


def _write_csv(frame: DataFrame, file: BinaryIO) -> None:
    text = [name for name, values in frame.items() if values.dtype.kind not in "biuf"]
    for first in range(0, max(1, len(frame)), ROWS_AT_ONCE):
        block = frame.iloc[first : first + ROWS_AT_ONCE]
        shown = block.assign(**{str(name): block[name].map(_shown) for name in text}).rename(columns=csv_text)
        file.write(shown.to_csv(index=False, header=first == 0, lineterminator="\n").encode())


def _shown(value: object) -> str:
    return csv_text(printable(value, lines=True))


def _write_parquet(run: Run, name: str, frame: DataFrame, file: BinaryIO) -> None:
    import pyarrow
    from pyarrow import parquet

    try:
        parquet.write_table(pyarrow.Table.from_pandas(frame, preserve_index=False), file)
    except (pyarrow.ArrowException, TypeError, UnicodeError) as error:  # the file has types that mpifl never writes
        raise ConfigError(
            "run file", run.path, f"Parquet cannot hold its table {name}: {error}", "an undamaged run file"
        ) from error
