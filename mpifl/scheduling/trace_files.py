"""Reads trace files: CSV files with a row for each contact or on period of a client.

The layout is the same for delays and availability: UTF-8, a header line, the column `client` (from 0) and columns of
times in seconds; other columns are ignored, and a client's rows follow in its own order. docs/guides/availability.md
describes it. The content is data from others: every value is checked, and an error names its line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from mpifl.errors import ConfigError, error_text
from mpifl.safe_input import printable, read_file

LONGEST_TIME = 1e9  # s that a contact may take, or a trace may cover: 30 years
PACKAGED = "package:"  # prefix of the name of a trace that comes with mpifl
FOLDER = Path(__file__).with_name("traces")


def packaged_traces() -> list[str]:
    """The names of the traces that come with mpifl."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


def read_trace(path: str, columns: tuple[str, ...], clients: int) -> list[list[tuple[int, tuple[float, ...]]]]:
    """The rows of each client, in their order: line number and the values of `columns`.

    path: a file, or package:NAME. Raises ConfigError("path", ...) for a file that cannot be read, a column that is
    missing, an unknown client, a time that is no number from 0 to LONGEST_TIME, and a client without rows.
    """
    found: list[list[tuple[int, tuple[float, ...]]]] = [[] for _ in range(clients)]
    try:
        text = read_file(_located(path)).decode()
        for line, client, times in _rows(text, columns):
            if not 0 <= client < clients or not all(0 <= time <= LONGEST_TIME for time in times):
                expected = f"0 <= client < {clients} and times from 0 to {LONGEST_TIME:g}"
                raise wrong(path, line, f"it has client {client}, {_named(columns, times)}", expected)
            found[client].append((line, times))
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        expected = f"a readable CSV file with the columns client, {', '.join(columns)}"
        text = printable(error_text(error), most=200)
        raise ConfigError("path", path or "''", f"cannot be read: {text}", expected) from error
    if missing := [i for i, rows in enumerate(found) if not rows]:
        raise ConfigError("path", path, f"client {missing[0]} has no row", "at least one for every client")
    return found


def wrong(path: str, line: int, text: str, expected: str) -> ConfigError:
    """The error for a line of a trace file; the header is line 1."""
    return ConfigError("path", path, f"line {line}: {text}", expected)


def _located(path: str) -> Path:
    if not path.startswith(PACKAGED):
        return Path(path)
    name = path.removeprefix(PACKAGED)
    if name not in packaged_traces():
        raise ConfigError(
            "path", path, "no such trace", f"a file, or {PACKAGED}NAME with one of {', '.join(packaged_traces())}"
        )
    return FOLDER / f"{name}.csv"


def _rows(text: str, columns: tuple[str, ...]) -> Iterator[tuple[int, int, tuple[float, ...]]]:
    """Line number, client and times of every row. Raises ValueError with the line in it."""
    rows = csv.reader(io.StringIO(text, newline=""))
    values: list[str] = []
    try:
        header = next(rows, [])
        if missing := [column for column in ("client", *columns) if header.count(column) != 1]:
            raise ValueError(f"the header {','.join(header)!r} has not one column {missing[0]}")
        places = [header.index(column) for column in ("client", *columns)]
        for values in rows:
            if values:  # the line is not empty
                client, *times = (values[place] for place in places)
                yield rows.line_num, int(client), tuple(map(float, times))
    except (ValueError, IndexError, csv.Error) as error:
        reason = f"{len(values)} values" if isinstance(error, IndexError) else error
        raise ValueError(f"line {max(1, rows.line_num)}: {reason}") from error


def _named(columns: tuple[str, ...], times: tuple[float, ...]) -> str:
    return ", ".join(f"{column} {time:g}" for column, time in zip(columns, times, strict=True))
