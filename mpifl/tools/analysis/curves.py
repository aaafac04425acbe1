"""Curves of run files: a column of the evaluations against another one, for notebooks and for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.errors import ConfigError
from mpifl.tools.analysis import style
from mpifl.tools.analysis.options import is_percentage, scale_of
from mpifl.tools.analysis.trials import PROGRESS, SCALES, Group, format_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

LOG_DECADES = 1.5  # a loss that spans more decades is drawn on a logarithmic axis
DIVERGED = 100.0  # values above this many times the largest first value are left out of the axes
LABELS = {"updates": "updates consumed",
          "version": "aggregations", "bytes": "traffic (MB)", "local_steps": "local steps",
          "train_loss": "training loss", "client_accuracy_variance": "variance of client accuracy (%²)"}  # fmt: skip


def plot_columns(
    evaluations: DataFrame, names: Sequence[str], x: str, virtual: bool, ax: Axes | None, **options: Any
) -> Axes:
    """Draws columns of one run's evaluations against its column x. Raises ConfigError for one that has no values."""
    curves = [column_pair(evaluations, x, name) for name in names]
    ax = ax or _new_axes()
    for name, curve in zip(names, curves, strict=True):
        line = {"linewidth": 1.6, "label": axis_label(name), "marker": "o" if len(curve) == 1 else None, **options}
        ax.plot(curve[x].to_numpy(), curve[name].to_numpy(), **line)
    ax.set_xlabel(axis_label(x, virtual))
    style.format_axes(ax)
    _log_if_wide(ax, names[0], [curve[name].to_numpy() for name, curve in zip(names, curves, strict=True)])
    if len(names) == 1:
        ax.set_ylabel(axis_label(names[0]))
    else:
        ax.legend(frameon=False)
    return ax


def plot_groups(
    groups: Sequence[Group], metric: str, x: str, spread: str, ax: Axes | None, trials: bool, **options: Any
) -> Axes:  # fmt: skip
    """Draws a metric of the evaluations, each group a line: its mean over the trials, and a band of the spread.

    trials: also a thin line for each trial.
    """
    for trial in groups[0].trials:
        column_pair(trial.evaluations, PROGRESS[x], metric, empty=True)
    if not any(len(trial.curve(metric, x)[0]) for group in groups for trial in group.trials):
        raise ConfigError("plot", metric, "the runs have no values in it", "another column")
    own = ax is None
    ax = ax or _new_axes()
    names = line_names(groups)
    curves = [plot_group(ax, group, metric, x, spread, trials, scale=1.0,
                         **{**style.line_style(k), "label": names[id(group)], **options})
              for k, group in enumerate(groups)]  # fmt: skip
    style.format_axes(ax)
    ax.set_xlabel(progress_label(x, groups))
    ax.set_ylabel(axis_label(metric))
    _log_if_wide(ax, metric, [curve["mean"].to_numpy() for curve in curves])
    if len(groups) > 1 and own and (figure := ax.get_figure(root=True)):
        style.add_legend(figure, style.handles([names[id(group)] for group in groups]), [ax], widen=True)
    elif len(groups) > 1:
        ax.legend(frameon=False, handlelength=3.2)
    return ax


def line_names(groups: Sequence[Group], *left_out: str | None) -> dict[int, str]:
    """The names of the groups by id, without these labels and those in which no group differs."""
    values = {label: {format_value(group.labels[label]) for group in groups} for label in groups[0].labels}
    same = [label for label, found in values.items() if len(found) == 1]
    return {id(group): group.without(*left_out, *same).name for group in groups}


def plot_group(
    ax: Axes, group: Group, metric: str, x: str, spread: str, trials: bool, scale: float | None = None, **line: Any
) -> DataFrame:
    """Draws the curve of one group with its band, by default accuracies in percent; returns what it drew.

    trials: also a thin line for each trial.
    """
    scale = scale_of(metric) if scale is None else scale
    curve = group.curve(metric, x, spread) * scale
    places = curve.index.to_numpy() * SCALES.get(x, 1.0)
    mean = np.where(np.isfinite(curve["mean"]), curve["mean"], np.nan)
    (drawn,) = ax.plot(places, mean, **{"label": style.plain(group.name), **style.mark_curve(line, places)})
    if len(group.trials) > 1:
        low, high = curve["low"], curve["high"]
        if is_percentage(metric):  # a standard deviation or an interval may lead out of the possible values
            low, high = low.clip(lower=0), high.clip(upper=scale)
        ax.fill_between(places, low, high, color=drawn.get_color(), alpha=style.BAND, linewidth=0)
        for xs, ys in (trial.curve(metric, x) for trial in (group.trials if trials else ())):
            ax.plot(xs * SCALES.get(x, 1.0), ys * scale, color=drawn.get_color(), linewidth=0.4, alpha=0.7)
    return curve


def column_pair(evaluations: DataFrame, x: str, y: str, empty: bool = False) -> DataFrame:
    """Two columns, in the rows where both have values. Raises ConfigError for an unknown one, and for no row."""
    for name in (x, y):
        if name not in evaluations:
            raise ConfigError("plot", name, "no such column", f"one of {', '.join(map(str, evaluations.columns))}")
    pair = evaluations[list(dict.fromkeys([x, y]))].dropna()
    if pair.empty and not empty:
        raise ConfigError("plot", y, "the run has no values in it", "another column")
    return pair


def progress_label(x: str, groups: Sequence[Group]) -> str:
    """The label of a quantity of PROGRESS, with its unit."""
    virtual = all(trial.clock.startswith("virtual") for group in groups for trial in group.trials)
    return axis_label(PROGRESS[x], virtual)


def metric_label(metric: str) -> str:
    """The label of a metric, with its unit."""
    text = metric.replace("_", " ") if ":" not in metric else metric
    return f"{text} (%)" if is_percentage(metric) else LABELS.get(metric, text)


def axis_label(name: str, virtual: bool = False) -> str:
    """The label of a column of the evaluations, with its unit."""
    if name == "time":
        return "virtual time (s)" if virtual else "time (s)"
    text = name.replace("_", " ")
    return LABELS.get(name, f"{text} (fraction)" if "accuracy" in name else text)


def scale_axis(ax: Axes, metric: str, curves: Sequence[DataFrame]) -> None:
    """Scales the axis of a metric: 0 to 100 % for a percentage; for a loss logarithmic, up to where runs diverge."""
    if is_percentage(metric):
        ax.set_ylim(0, 100)
        return
    shown = [np.asarray(line.get_ydata(), float) for line in ax.get_lines()]
    _log_if_wide(ax, metric, shown)
    first = [curve["mean"].iloc[0] for curve in curves if len(curve) and np.isfinite(curve["mean"].iloc[0])]
    known = [values[np.isfinite(values)] for values in shown]
    highest = max((float(values.max()) for values in known if len(values)), default=0.0)
    if first and 0 < DIVERGED * max(first) < highest:
        ax.set_ylim(top=DIVERGED * max(first))


def _new_axes() -> Axes:
    from matplotlib import pyplot as plt

    _, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    return ax


def _log_if_wide(ax: Axes, metric: str, values: Sequence[np.ndarray]) -> None:
    """Makes the axis logarithmic for a loss that spans several decades."""
    if not any(word in metric for word in ("loss", "gradient")) or not values:
        return
    from matplotlib.ticker import LogFormatterSciNotation

    known = np.concatenate(values)
    positive = known[np.isfinite(known) & (known > 0)]
    if len(positive) and np.log10(positive.max() / positive.min()) > LOG_DECADES:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(LogFormatterSciNotation())
