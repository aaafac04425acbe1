"""rho of Tables 3 to 10 less the printed one, by the interval between evaluations: python jobs/area/grids.py

Prints Markdown: mean and root mean square over the cells that have a number (how many). Reads the completed runs of the
studies, which `mpifl reproduce area` has made, and leaves out evaluations: a run that evaluates less often has the same
models.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import numpy as np
import pandas as pd
from tabulate import tabulate

from mpifl.tools.reproduce.items import load_items
from mpifl.tools.reproduce.values import find
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.select import reported_groups

LEVEL = 0.8  # the accuracy whose time is rho
FACTORS = 1, 2, 5, 10, 25  # of the interval


def main() -> None:
    rows, all_errors = [], []
    for item in load_items(str(Path(__file__).parent))[1]:
        if not item.cells or item.page.spread is not None:
            continue
        groups = reported_groups(item.study, Index(item.study))[0]
        errors = []  # one list a cell, of one number a factor
        for cell in item.cells:
            value, ours = cell.values.get("rho"), find(groups, cell.labels)
            if value and isfinite(value.mean) and ours:
                mean = ours[0].curve("test_accuracy", hold=True)["mean"]
                errors.append([first_share(mean.iloc[::k], ours[0].horizon) - value.mean for k in FACTORS])
        interval = item.study.runs[0].job.evaluate.every
        rows.append([f"{item.page.title}, {interval:g} s", *map(describe, np.array(errors).T)])
        all_errors += errors
    columns = np.array(all_errors).T
    rows.append(["all", *map(describe, columns)])
    print(tabulate(rows, ["table, interval of its study", *(f"x {k}" for k in FACTORS)], "pipe", disable_numparse=True))
    means = [abs(column[np.isfinite(column)].mean()) for column in columns]
    print(f"\nOver all cells the mean is nearest to 0 in the column x {FACTORS[np.argmin(means)]}.")


def first_share(mean: pd.Series, horizon: float) -> float:
    """The share of the horizon at which the mean curve first has the level; inf: never."""
    reached = mean.index[mean >= LEVEL]
    return reached[0] / horizon if len(reached) else np.inf


def describe(errors: np.ndarray) -> str:
    """Mean and root mean square of the differences from the printed values, and the number of cells that have one."""
    known = errors[np.isfinite(errors)]
    return f"{known.mean():+.3f}, {np.sqrt((known**2).mean()):.3f} ({len(known)})" if len(known) else "-"


if __name__ == "__main__":
    main()
