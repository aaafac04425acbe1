"""Reads a paper's published numbers, and judges whether the runs reproduce them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.errors import ConfigError
from mpifl.safe_input import open_regular
from mpifl.tools.reproduce.spec import Page
from mpifl.tools.reproduce.values import RANGE_OF_TEN, Summary, matches

FILE = "published.csv"
COLUMNS = ("paper", "item", "cell", "measure", "mean", "min", "max", "trials", "printed")


@dataclass(frozen=True)
class Value:
    """One published number."""

    mean: float
    """NaN where none is printed, or a bound such as >1"""
    low: float
    """value of the smallest trial; NaN if not printed"""
    high: float
    """value of the largest trial; NaN if not printed"""
    trials: int
    """number of trials; 0: not printed"""
    printed: str
    """as it stands in the paper"""

    @property
    def deviation(self) -> float:
        """Standard deviation over the trials, from the range of ten of them; NaN if that is not printed."""
        return (self.high - self.low) / RANGE_OF_TEN if self.trials == 10 else math.nan


@dataclass(frozen=True)
class Cell:
    """The published numbers of one row of a table."""

    labels: dict[str, str]
    """values by axis"""
    values: dict[str, Value]
    """published numbers by measure"""


@dataclass(frozen=True)
class Verdict:
    """The comparison of one of our values with the published one."""

    text: str
    """"" if the value meets its rule, else what is wrong"""
    z: float
    """difference of the means in standard errors; NaN if one is not known"""


def read_published(path: Path, paper: str, item: str) -> list[Cell]:
    """The cells of one item of a paper, in the order of the file. Raises ConfigError."""
    cells: dict[str, Cell] = {}
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restval="")
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise ConfigError("published", path, "other columns", f"a table with the columns {','.join(COLUMNS)}")
            for row in reader:
                if (row["paper"], row["item"]) == (paper, item):
                    cell = cells.setdefault(row["cell"], Cell(_labels(path, row["cell"]), {}))
                    cell.values[row["measure"]] = _value(path, row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError("published", path, f"cannot be read: {error}", "a readable CSV file") from None
    if not cells:
        raise ConfigError("page.published", item, f"{path} has no such item of {paper}", "one of its items")
    return list(cells.values())


def _labels(path: Path, text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(";")]
    if not all(name.strip() and equal for name, equal, _ in pairs):
        raise ConfigError("published", path, f"a cell is {text!r}", "labels, as in method=AREA; step_size=100")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _value(path: Path, row: Mapping[str, Any]) -> Value:
    try:
        mean, low, high = (float(row[key]) if row[key] else math.nan for key in ("mean", "min", "max"))
        return Value(mean, low, high, int(row["trials"] or 0), row["printed"] or "-")
    except (TypeError, ValueError):
        raise ConfigError(
            "published", path, f"the row {row['cell']} {row['measure']} has something else than numbers", "numbers"
        ) from None


def judge(page: Page, cell: Cell, name: str, ours: Summary) -> Verdict:
    """The verdict on one measure of a cell. A bound, such as >1, has none."""
    value, digits = cell.values[name], page.measures[name].digits
    if math.isnan(value.mean):
        return Verdict("", math.nan)
    if ours.diverged:
        return Verdict(f"{name} diverged in {ours.diverged} of {len(ours.values)} trials", math.nan)
    within = rule(page, cell, name)
    mean = round(ours.mean, digits) if math.isfinite(ours.mean) else ours.mean
    if math.isnan(mean):
        return Verdict(f"{name} missing", math.nan)
    if within == "range" and not value.low <= mean <= value.high:
        distance = mean - (value.low if mean < value.low else value.high)
        place = f"{abs(distance):.{digits}f} {'below' if distance < 0 else 'above'} the published range"
        return Verdict(f"{name} {place}", z_score(value, ours))
    if isinstance(within, int | float) and not abs(mean - value.mean) <= within + 1e-9:
        place = f"{abs(mean - value.mean):.{digits}f} {'below' if mean < value.mean else 'above'} the published mean"
        return Verdict(f"{name} {place}", z_score(value, ours))
    return Verdict("", z_score(value, ours))


def rule(page: Page, cell: Cell, name: str) -> Any:
    """The rule for a measure of a cell: "range", a greatest distance, or None."""
    for strict in page.strict:
        if name in strict.within and matches(cell.labels, strict.cells):
            return strict.within[name]
    return page.measures[name].within


def z_score(value: Value, ours: Summary) -> float:
    """The difference of the means over its standard error, by both standard deviations; NaN if one is not known."""
    here = ours.deviation if len(ours.values) > 1 else value.deviation
    error = np.sqrt(value.deviation**2 / max(1, value.trials) + here**2 / max(1, len(ours.values)))
    return float((ours.mean - value.mean) / error) if error > 0 and np.isfinite(ours.mean) else math.nan
