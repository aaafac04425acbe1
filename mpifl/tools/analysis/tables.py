"""The report's table: one row a group, as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import ceil, log10
from typing import Any

import numpy as np
import pandas as pd
from tabulate import tabulate

from mpifl.safe_input import csv_text, printable
from mpifl.tools.analysis import latex
from mpifl.tools.analysis.options import CLIENTS, COMPUTED, Options, is_percentage, scale_of
from mpifl.tools.analysis.spread import SPREADS, half_width, mean_and_spread
from mpifl.tools.analysis.trials import PROGRESS, SCALES, Group, format_value, have_values, own_metrics

TITLES = {
    "train_loss": "train loss",
    "personal_accuracy_mean": "personal %",
    "personal_accuracy_best": "best personal %",
    "test_accuracy": "accuracy %",
    "client_accuracy_mean": "client %",
    "client_accuracy_worst": "worst 10 %",
    "client_accuracy_variance": "client variance",
    "global_steps": "global steps",
    "updates_per_second": "updates/s",
    "staleness": "mean staleness",
}
UNITS = {"time": "time to {} (s)", "updates": "updates to {}", "rounds": "rounds to {}", "bytes": "MB to {}",
         "local-steps": "local steps to {}"}  # fmt: skip
RHO_NOTE = (
    "rho = t_80 / t_h: t_80 is the first evaluation at which the mean accuracy over the trials is 80 % or more, t_h "
    "the horizon stop.time (else the last evaluation); >1: 80 % is not reached."
)
DIVERGED_NOTE = "Diverged: infinite or NaN at the last evaluation, finite at an earlier one."
RATE_NOTE = "Updates/s are in the run's clock."
PERSONAL = ("personal_accuracy_mean", "personal_accuracy_best")
# Options that change what a step_size does, and whose defaults differ between methods.
CONVENTIONS = ("algorithm.step_weights", "algorithm.trigger.every", "algorithm.reply")
CONVENTIONS_ADVICE = "Compare their effective steps, which mpifl check JOB.yaml prints, not their step_size."
PERSONAL_NOTE = "Personal: mean accuracy over the clients, own model on own test rows; best: the highest mean so far."
FAIRNESS = ("client_accuracy_mean", "client_accuracy_worst", "client_accuracy_variance")
FAIRNESS_NOTE = (
    "Client: accuracy on each client's own test rows: mean over the clients, mean over the worst 10 % of them, and "
    "variance (of percentages)."
)
DASH = "–"  # between the ends of a range; plain text has a hyphen


@dataclass(frozen=True)
class Table:
    """A table of plain text."""

    titles: list[str]
    rows: list[list[str]]
    left: int
    """number of first columns that are aligned left"""
    marked: list[bool]
    """rows of the best groups"""
    notes: list[str]
    best: frozenset[tuple[int, int]] = frozenset()
    """row and column of the best cells"""
    style: latex.Style | None = None
    """of the LaTeX table; None: the notes are its caption"""
    data: pd.DataFrame | None = None
    """of a pivot: statistics of each cell, with all digits"""

    def text(self) -> str:
        """The table for the terminal; the best rows have an asterisk in a further column."""
        rows = self._cells(lambda cell: f"{cell} *")
        if not any(self.marked):
            return self._tabulate(rows, self.titles, "simple")
        rows = [[*row, "*" if best else ""] for row, best in zip(rows, self.marked, strict=True)]
        return self._tabulate(rows, [*self.titles, "marked"], "simple")

    def markdown(self) -> str:
        """The table in Markdown; the best rows are bold."""
        rows = self._cells("**{}**".format, escape_markdown)
        rows = [[f"**{cell}**" for cell in row] if best else row for row, best in zip(rows, self.marked, strict=True)]
        table = self._tabulate(rows, list(map(escape_markdown, self.titles)), "github")
        return "\n".join([table, "", *map(escape_markdown, self.notes), ""])

    def latex(self) -> str:
        """The table in LaTeX; the best rows are bold, and the notes are the caption."""
        style = self.style or latex.Style(" ".join(self.notes))
        return latex.table(self.titles, self.rows, self.left, style, self.marked, self.best)

    def _cells(self, mark: Callable[[str], str], escape: Callable[[str], str] = str) -> list[list[str]]:
        """The rows as plain text, escaped, with the best cells marked."""
        rows = [[escape(cell.replace(DASH, "-")) for cell in row] for row in self.rows]
        for k, j in self.best:
            rows[k][j] = mark(rows[k][j])
        return rows

    def _tabulate(self, rows: list[list[str]], titles: list[str], style: str) -> str:
        align = ["left"] * self.left + ["right"] * (len(titles) - self.left)
        return tabulate(rows, headers=titles, tablefmt=style, colalign=align, disable_numparse=True)


def build_table(
    groups: Sequence[Group], options: Options, marked: Collection[int] = (), notes: Sequence[str] = ()
) -> Table:
    """The table of the groups; marked: the indices of the best; notes: further ones."""
    columns: dict[str, list[str]] = {}
    for name in groups[0].labels:
        columns[name] = [format_value(group.labels[name]) for group in groups]
    columns["trials"] = [format_trials(group) for group in groups]
    names = table_columns(groups, options)
    for name in names:
        columns[column_title(name)] = [_cell(group, name, options.spread) for group in groups]
    for accuracy in options.reach:
        for unit in options.reach_in:
            title = UNITS[unit].format(f"{100 * accuracy:g} %")
            columns[title] = [_reach_cell(group, accuracy, unit, options.spread) for group in groups]
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    best = [k in marked for k in range(len(groups))]
    return Table(list(columns), rows, len(groups[0].labels) + 1, best, [*_notes(groups, options, names), *notes])


def table_columns(groups: Sequence[Group], options: Options) -> list[str]:
    """The columns besides labels, trials and what it takes to reach an accuracy."""
    if options.columns:
        return list(options.columns)
    personal = PERSONAL if have_values(groups, *PERSONAL) else ()
    by_client = FAIRNESS if have_values(groups, "client_accuracy_worst") else ()
    return ["test_accuracy", *own_metrics(groups), *personal, *by_client, "train_loss", *COMPUTED]


def column_title(name: str) -> str:
    """The title of a column of the table."""
    if is_percentage(name) and name not in TITLES:
        return f"{name.replace('_', ' ')} %"
    return TITLES.get(name, name.replace("_", " "))


def _cell(group: Group, name: str, spread: str) -> str:
    trials = len(group.trials)
    if name == "rho":
        return ">1" if group.rho == np.inf else format_number(group.rho, 2)
    if name == "global_steps":
        return format_counts(np.array([trial.global_steps for trial in group.trials]), spread)
    if name == "updates_per_second":
        return format_number(known_mean([trial.rate for trial in group.trials]), 1)
    if name == "staleness":
        return format_number(known_mean([trial.staleness for trial in group.trials]), 2)
    values, diverged = group.last(name) * scale_of(name), sum(trial.diverged(name) for trial in group.trials)
    if not diverged:
        return format_spread(values, trials, spread)
    text = format_spread(values[np.isfinite(values)], trials - diverged, spread)
    return f"{text}, {diverged} of {trials} diverged" if diverged < trials else f"diverged, {trials} of {trials}"


def _reach_cell(group: Group, accuracy: float, unit: str, spread: str) -> str:
    trials, reached = len(group.trials), group.reached(accuracy, unit) * SCALES.get(unit, 1)
    if not len(reached):
        return f"never, 0 of {trials}" if have_values([group], "test_accuracy") else "-"
    if unit in ("time", "bytes"):
        return format_spread(reached, trials, spread)
    return format_counts(reached, spread) + (f", {len(reached)} of {trials}" if len(reached) < trials else "")


def _notes(groups: Sequence[Group], options: Options, names: Sequence[str]) -> list[str]:
    notes = [f"Metrics are those of each trial's last evaluation: {SPREADS[options.spread]} over the trials that have "
             "them."]  # fmt: skip
    if any(trial.diverged(name) for group in groups for trial in group.trials for name in names):
        notes.append(DIVERGED_NOTE)
    if options.reach:
        notes.append("What it takes to reach an accuracy is up to the first evaluation with it, over the trials that "
                     "reach it.")  # fmt: skip
        if "bytes" in options.reach_in:
            notes.append("MB are 10^6 bytes, of consumed updates and of the messages that they answer.")
    notes += [RHO_NOTE] if "rho" in names else []
    notes += [RATE_NOTE] if "updates_per_second" in names else []
    notes += [FAIRNESS_NOTE] if set(FAIRNESS) & set(names) else []
    notes += [PERSONAL_NOTE] if set(PERSONAL) & set(names) else []
    return [*notes, *_convention_notes(groups)]


def _convention_notes(groups: Sequence[Group]) -> list[str]:
    """A line on the options that decide what a step_size does, and in which the compared methods differ."""
    configs = [group.trials[0].config for group in groups]
    texts = []
    for key in CONVENTIONS:
        methods: dict[str, dict[str, None]] = {}  # methods by the value of the option; those without it are left out
        for config in configs:
            if config.get(key) is not None:
                methods.setdefault(format_value(config[key]), {})[str(config.get("algorithm.name"))] = None
        if len(methods) > 1 and len({name for names in methods.values() for name in names}) > 1:
            values = ", ".join(f"{value} for {' and '.join(names)}" for value, names in methods.items())
            texts.append(f"{key.removeprefix('algorithm.')} is {values}")
    return [f"Conventions differ between these methods: {'; '.join(texts)}. {CONVENTIONS_ADVICE}"] if texts else []


def escape_markdown(text: str) -> str:
    """The text of a cell or a sentence in Markdown that is shown as it is: no column, markup, link or HTML."""
    return re.sub(r"([\\`*\[\]<>|&$])", r"\\\1", text)


def summary(groups: Sequence[Group], options: Options, marked: Collection[int] = ()) -> pd.DataFrame:
    """The table with all digits: of each metric the number of trials that have it, mean, min, max, sd and ci95.

    ci95 is half the width of the mean's 95 % interval. t_80 and rho are inf where 80 % is not reached; a cell without a
    value is empty.
    """
    metrics = dict.fromkeys(["test_accuracy", "train_loss", "test_loss"])
    metrics |= dict.fromkeys(PERSONAL if have_values(groups, *PERSONAL) else ())
    metrics |= dict.fromkeys(own_metrics(groups))
    metrics |= dict.fromkeys(CLIENTS if have_values(groups, "client_accuracy_worst") else ())
    metrics |= dict.fromkeys(name for name in options.columns or () if name not in COMPUTED)
    rows = []
    for k, group in enumerate(groups):
        labels = {key: printable(value) if isinstance(value, str) else value for key, value in group.labels.items()}
        row: dict[str, Any] = {**labels, "trials": len(group.trials)}
        row["completed"] = sum(trial.status == "completed" for trial in group.trials)
        if marked:
            row["marked"] = k in marked
        for metric in metrics:
            row |= statistics(metric, group.last(metric))
        row["t_80"], row["t_h"], row["rho"] = group.t_80, group.horizon, group.rho
        row |= statistics("global_steps", np.array([trial.global_steps for trial in group.trials], float))
        row["updates_per_second"] = known_mean([trial.rate for trial in group.trials])
        row["staleness_mean"] = known_mean([trial.staleness for trial in group.trials])
        for accuracy in options.reach:
            for unit in options.reach_in:
                name = f"{PROGRESS[unit]}_to_{accuracy:g}"
                row |= statistics(name, group.reached(accuracy, unit))
        rows.append(row)
    return pd.DataFrame(rows)


def format_csv(table: pd.DataFrame) -> str:
    """Formats a table as CSV, text by `csv_text`."""
    table = table.copy()
    for name in [name for name, values in table.items() if values.dtype.kind not in "biuf"]:
        table[name] = table[name].map(lambda v: csv_text(v) if isinstance(v, str) else v)
    return table.rename(columns=csv_text).to_csv(index=False)


def statistics(name: str, values: np.ndarray) -> dict[str, float]:
    """The number of values, their mean, ends and spreads, by column."""
    found: dict[str, float] = {f"{name}_trials": len(values)}
    functions: dict[str, Callable[[np.ndarray], Any]] = {
        "mean": np.mean, "min": np.min, "max": np.max,
        "sd": lambda v: half_width(v, "sd"), "ci95": lambda v: half_width(v, "ci95"),
    }  # fmt: skip
    return found | {f"{name}_{key}": float(of(values)) if len(values) else np.nan for key, of in functions.items()}


def format_trials(group: Group) -> str:
    """Formats the number of trials, with those that did not complete."""
    other = Counter(trial.status for trial in group.trials if trial.status != "completed")
    marks = ", ".join(f"{count} {'running or killed' if s == 'running' else s}" for s, count in sorted(other.items()))
    return f"{len(group.trials)} ({marks})" if marks else str(len(group.trials))


def format_spread(values: np.ndarray, trials: int, spread: str) -> str:
    """Formats mean and spread, or a single value; with a count where some trials have none (not evaluated, or NaN)."""
    if not len(values):
        return "-"
    text = _format(values, spread, 2)
    return text + (f", {len(values)} of {trials}" if len(values) < trials else "")


def format_counts(counts: np.ndarray, spread: str) -> str:
    """Formats mean and spread of counts, or the one count."""
    if counts.min() == counts.max():
        return f"{counts[0]:.0f}"
    if spread == "range":
        return f"{counts.mean():.1f} ({counts.min():.0f}{DASH}{counts.max():.0f})"
    return _format(counts, spread, 1)


def _format(values: np.ndarray, spread: str, digits: int) -> str:
    middle, low, high = map(float, mean_and_spread(values, spread))
    text = format_number(middle, digits)
    if len(values) == 1:
        return text
    if spread == "range":
        return f"{text} ({format_number(low, digits)}{DASH}{format_number(high, digits)})"
    half = float(half_width(values, spread))
    if np.isnan(half):  # infinite values have no spread
        return text
    if 0 < half < 10**-digits:  # these digits would hide the spread
        digits = min(6, ceil(-log10(half)))
    return f"{format_number(middle, digits)} ± {format_number(half, digits)}"


def format_number(value: float, digits: int) -> str:
    """Formats with fixed digits, or three significant ones where the value is huge or tiny; "-" for NaN."""
    if np.isnan(value):
        return "-"
    return f"{value:.{digits}f}" if value == 0 or 10**-digits <= abs(value) < 1e6 else f"{value:.3g}"


def known_mean(values: Sequence[float]) -> float:
    """The mean of the values that are not NaN; NaN if there is none."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
