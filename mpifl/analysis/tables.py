"""The report's table: one row a group, for the terminal, Markdown and CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from tabulate import tabulate

from mpifl.analysis.trials import Group, format_value, unlike_conventions
from mpifl.untrusted import printable

NOTES = (
    "Accuracy and loss are those of each trial's last evaluation: mean (min-max) over the trials that have them.",
    "rho = t_80 / t_h: t_80 is the first evaluation at which the mean accuracy over the trials is 80 % or more, t_h",
    "the horizon stop.time (else the last evaluation); >1: 80 % is not reached. Updates/s are in the run's clock.",
)
PERSONAL = {"personal_accuracy_mean": "personal %", "personal_accuracy_best": "best personal %"}
CONVENTIONS_ADVICE = "Compare their effective steps, which mpifl check JOB.yaml prints, not their step_size."
PERSONAL_NOTE = "Personal: mean accuracy over the clients, own model on own test rows; best: the highest mean so far."


def has_personal_models(groups: Sequence[Group]) -> bool:
    """Whether any trial has tested personal models."""
    return any(len(group.last(metric)) for group in groups for metric in PERSONAL)


def table_notes(groups: Sequence[Group]) -> list[str]:
    """The notes below the table."""
    personal = [PERSONAL_NOTE] if has_personal_models(groups) else []
    unlike = format_conventions(unlike_conventions(groups))
    return [*NOTES, *personal, *([unlike] if unlike else [])]


def format_conventions(unlike: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """Formats the different conventions of the compared methods in one line; "" for none."""
    texts = []
    for option, methods in unlike.items():
        texts.append(f"{option} is " + ", ".join(f"{value} for {' and '.join(of)}" for value, of in methods.items()))
    return f"Conventions differ between these methods: {'; '.join(texts)}. {CONVENTIONS_ADVICE}" if texts else ""


def format_table(groups: Sequence[Group], style: str = "simple") -> str:
    """Formats the table as text, in a format that tabulate knows ("simple", "github", ...)."""
    rows, quote = [], escape_markdown if style == "github" else str
    for group in groups:
        row: dict[str, Any] = {quote(key): quote(format_value(value)) for key, value in group.labels.items()}
        row["trials"] = format_trials(group)
        row["accuracy %"] = format_range(100 * group.last("test_accuracy"), len(group.trials))
        for metric, title in PERSONAL.items() if has_personal_models(groups) else ():
            row[title] = format_range(100 * group.last(metric), len(group.trials))
        row["train loss"] = format_range(group.last("train_loss"), len(group.trials))
        row["rho"] = ">1" if group.rho == np.inf else format_number(group.rho, 2)
        row["global steps"] = format_counts([trial.global_steps for trial in group.trials])
        row["updates/s"] = format_number(known_mean([trial.rate for trial in group.trials]), 1)
        row["mean staleness"] = format_number(known_mean([trial.staleness for trial in group.trials]), 2)
        rows.append(row)
    left = len(groups[0].labels) + 1
    align = ["left"] * left + ["right"] * (len(rows[0]) - left)
    return tabulate(rows, headers="keys", tablefmt=style, colalign=align, disable_numparse=True)


def escape_markdown(text: str) -> str:
    """The text of a table's cell in Markdown that is shown as it is: no column, markup, link or HTML."""
    return re.sub(r"([\\`*\[\]<>|&$])", r"\\\1", text)


def format_csv(groups: Sequence[Group]) -> str:
    """Formats the table as CSV, with all digits.

    t_80 and rho are inf where 80 % is not reached; a cell without a value is empty.
    """
    rows = []
    for group in groups:
        labels = {key: printable(value) if isinstance(value, str) else value for key, value in group.labels.items()}
        row: dict[str, Any] = {**labels, "trials": len(group.trials)}
        row["completed"] = sum(trial.status == "completed" for trial in group.trials)
        for metric in ("test_accuracy", "train_loss", "test_loss", *(PERSONAL if has_personal_models(groups) else ())):
            values = group.last(metric)
            for name, of in (("mean", np.mean), ("min", np.min), ("max", np.max)):
                row[f"{metric}_{name}"] = of(values) if len(values) else np.nan
        row["t_80"], row["t_h"], row["rho"] = group.t_80, group.horizon, group.rho
        steps = [trial.global_steps for trial in group.trials]
        row["global_steps_mean"], row["global_steps_min"], row["global_steps_max"] = (
            np.mean(steps),
            min(steps),
            max(steps),
        )
        row["updates_per_second"] = known_mean([trial.rate for trial in group.trials])
        row["staleness_mean"] = known_mean([trial.staleness for trial in group.trials])
        rows.append(row)
    return pd.DataFrame(rows).to_csv(index=False)


def format_trials(group: Group) -> str:
    """Formats the number of trials, with those that did not complete."""
    other = Counter(trial.status for trial in group.trials if trial.status != "completed")
    marks = ", ".join(f"{count} {'running or killed' if s == 'running' else s}" for s, count in sorted(other.items()))
    return f"{len(group.trials)} ({marks})" if marks else str(len(group.trials))


def format_range(values: np.ndarray, trials: int) -> str:
    """Formats mean (min-max), or a single value; with a count where some trials have none (not evaluated, or NaN)."""
    if not len(values):
        return "-"
    middle = format_number(float(values.mean()), 2)
    ends = f" ({format_number(values.min(), 2)}-{format_number(values.max(), 2)})" if len(values) > 1 else ""
    return middle + ends + (f", {len(values)} of {trials}" if len(values) < trials else "")


def format_counts(counts: Sequence[int]) -> str:
    """Formats the mean (min-max) of counts, or the one count."""
    ends = f" ({min(counts)}-{max(counts)})" if min(counts) < max(counts) else ""
    return f"{np.mean(counts):.{1 if ends else 0}f}{ends}"


def format_number(value: float, digits: int) -> str:
    """Formats with fixed digits, or three significant ones where the value is huge or tiny; "-" for NaN."""
    if np.isnan(value):
        return "-"
    return f"{value:.{digits}f}" if value == 0 or 10**-digits <= abs(value) < 1e6 else f"{value:.3g}"


def known_mean(values: Sequence[float]) -> float:
    """The mean of the values that are not NaN; NaN if there is none."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
