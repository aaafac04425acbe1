"""Curves of run files: a column of the evaluations against another one, for notebooks and for the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.analysis.trials import Group
from mpifl.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

# Okabe and Ito's colours, which people with colour blindness tell apart; with line styles for more groups than colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
LOG_DECADES = 1.5  # a loss that spans more is drawn on a logarithmic axis
LABELS = {"updates": "updates consumed", "version": "global steps"}


def plot_columns(
    evaluations: DataFrame, names: Sequence[str], x: str, virtual: bool, ax: Axes | None, **style: Any
) -> Axes:
    """Draws columns of one run's evaluations against its column x. Raises ConfigError for one that has no values."""
    curves = [column_pair(evaluations, x, name) for name in names]
    ax = ax or _new_axes()
    for name, curve in zip(names, curves, strict=True):
        line = {"linewidth": 1.6, "label": axis_label(name), "marker": "o" if len(curve) == 1 else None, **style}
        ax.plot(curve[x].to_numpy(), curve[name].to_numpy(), **line)
    ax.set_xlabel(axis_label(x, virtual))
    _format_axes(ax, [curve[name].to_numpy() for name, curve in zip(names, curves, strict=True)], _is_loss(names[0]))
    if len(names) == 1:
        ax.set_ylabel(axis_label(names[0]))
    else:
        ax.legend(frameon=False)
    return ax


def plot_groups(groups: Sequence[Group], name: str, ax: Axes | None, scale: float = 1.0, **style: Any) -> Axes:
    """Draws a column of the evaluations against time: each group's mean, and a band from its least to its greatest."""
    for trial in groups[0].trials:
        column_pair(trial.evaluations, "time", name, empty=True)
    ax = ax or _new_axes()
    curves = [group.curve(name) * scale for group in groups]
    for k, (group, curve) in enumerate(zip(groups, curves, strict=True)):
        line = {
            "color": COLOURS[k % len(COLOURS)],
            "linestyle": STYLES[k // len(COLOURS) % len(STYLES)],
            "linewidth": 1.6,
            "label": group.name.replace("$", r"\$"),  # else a formula
            "marker": "o" if len(curve) == 1 else None,
            **style,
        }
        (drawn,) = ax.plot(curve.index, curve["mean"], **line)
        ax.fill_between(curve.index, curve["min"], curve["max"], color=drawn.get_color(), alpha=0.18, linewidth=0)
    ax.set_xlabel(axis_label("time", all(trial.clock.startswith("virtual") for g in groups for trial in g.trials)))
    ax.set_ylabel(axis_label(name))
    _format_axes(ax, [curve["mean"].to_numpy() for curve in curves], _is_loss(name))
    return ax


def column_pair(evaluations: DataFrame, x: str, y: str, empty: bool = False) -> DataFrame:
    """Two columns, in the rows where both have values. Raises ConfigError for an unknown one, and for no row."""
    for name in (x, y):
        if name not in evaluations:
            raise ConfigError("plot", name, f"one of {', '.join(map(str, evaluations.columns))}")
    pair = evaluations[list(dict.fromkeys([x, y]))].dropna()
    if pair.empty and not empty:
        raise ConfigError("plot", y, "a column in which this run has values")
    return pair


def axis_label(name: str, virtual: bool = False) -> str:
    """A column of the evaluations with its unit."""
    if name == "time":
        return "virtual time (s)" if virtual else "time (s)"
    text = name.replace("_", " ")
    return LABELS.get(name, f"{text} (fraction)" if "accuracy" in name else text)


def draw_report(groups: Sequence[Group], out: Path, formats: Sequence[str]) -> list[Path]:
    """Writes accuracy.* (%) and loss.* into `out`; what no run file holds is left out. Returns what it wrote."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    written = []
    for stem, column, scale in (("accuracy", "test_accuracy", 100.0), ("loss", "train_loss", 1.0)):
        if not any(np.isfinite(group.curve(column)["mean"]).any() for group in groups):
            continue
        with rc_context({"font.size": 10}):
            figure = Figure(figsize=(6.4, 4.0), layout="constrained")  # without pyplot, whose backend is the user's
            ax = plot_groups(groups, column, figure.subplots(), scale)
            if stem == "accuracy":
                ax.set_ylabel("test accuracy (%)")
                ax.set_ylim(0, 100)
            if len(groups) > 1:
                columns = 1 if max(len(group.name) for group in groups) > 34 else 2
                figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
                figure.set_size_inches(6.4, 4.0 + 0.1 * len(groups))
            for suffix in formats:
                figure.savefig(out / f"{stem}.{suffix}", dpi=200)
                written.append(out / f"{stem}.{suffix}")
    return written


def _new_axes() -> Axes:
    from matplotlib import pyplot as plt

    _, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    return ax


def _format_axes(ax: Axes, values: Sequence[np.ndarray], loss: bool) -> None:
    """Grid and margins; a logarithmic axis for a loss over several decades."""
    from matplotlib.ticker import LogFormatterSciNotation

    ax.margins(x=0.01)
    ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    known = np.concatenate(values)
    positive = known[np.isfinite(known) & (known > 0)]
    if loss and len(positive) and np.log10(positive.max() / positive.min()) > LOG_DECADES:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(LogFormatterSciNotation())


def _is_loss(name: str) -> bool:
    return "loss" in name or "gradient" in name
