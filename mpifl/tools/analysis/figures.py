"""The figures of a report: curves, distributions, sensitivity to the step size, timelines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.errors import ConfigError
from mpifl.tools.analysis import style
from mpifl.tools.analysis.curves import metric_label, plot_group, progress_label, scale_axis
from mpifl.tools.analysis.options import CURVES, FIGURES, PICTURES, Options, scale_of
from mpifl.tools.analysis.ranking import RankTest, performance_profile
from mpifl.tools.analysis.spread import mean_and_spread
from mpifl.tools.analysis.trials import Group, format_value, label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

PERCENT = np.linspace(0, 100, 101)  # percentages of the clients
MAX_TIMELINES = 4  # panels in a figure of timelines
MAX_TICKS = 7  # step sizes that have a tick each
MAX_BINARY = 64.0  # the largest factor of a performance profile whose axis has powers of 2
LONG_TAIL = 10.0  # a staleness above this many times the 90 % quantile makes the axis logarithmic


class _Nothing(Exception):
    """There is nothing to draw. The message is the reason, if it is worth a note."""


def draw_report(
    groups: Sequence[Group], out: Path, options: Options, candidates: Sequence[Group] = ()
) -> tuple[list[Path], list[str]]:
    """Writes the figures into `out`; returns the files, and a line about each figure that cannot be drawn.

    candidates: all groups of a study, before its selection: what the step sizes are compared over; else `groups`.
    Without `options.figures`, figures that the runs have no values for are left out without a line.
    """
    formats = [name for name in options.formats if name in PICTURES]
    written, notes = [], []
    for stem, make in _wanted(groups, options, candidates or groups).items() if formats else ():
        try:
            with style.paper_style():
                written += style.save(make(), out, stem, formats)
        except _Nothing as reason:
            if options.figures or str(reason):
                notes.append(f"No figure {stem}: {str(reason) or 'no run has values for it'}.")
    return written, notes


def draw_figure(kind: str, groups: Sequence[Group], options: Options, candidates: Sequence[Group] = ()) -> Figure:
    """One figure of a report: one of FIGURES, or a metric. Raises ConfigError where there is nothing to draw."""
    options = replace(options, figures=(kind,))
    make = next(iter(_wanted(groups, options, candidates or groups).values()))
    try:
        with style.paper_style():
            return make()
    except _Nothing as reason:
        wrong = str(reason) or "the runs have no values for it"
        raise ConfigError("figure", kind, wrong, "a figure that can be drawn of the runs") from None


def _wanted(
    groups: Sequence[Group], options: Options, candidates: Sequence[Group]
) -> dict[str, Callable[[], Figure]]:  # fmt: skip
    """The figures to draw by file name."""
    made: dict[str, Callable[[], Figure]] = {}
    for kind in options.figures or FIGURES:
        if kind == "staleness":
            made[kind] = partial(staleness_figure, groups, options)
        elif kind == "client-updates":
            made[kind] = partial(client_updates_figure, groups, options)
        elif kind == "timeline":
            made[kind] = partial(_timeline, groups, options)
        elif kind.startswith("step-size-"):
            made[kind] = partial(step_size_figure, candidates, CURVES[kind.removeprefix("step-size-")], options)
        else:
            for x in options.x:
                stem = re.sub(r"[^\w.-]+", "_", kind) + ("" if x == "time" else f"-{x}")
                made[stem] = partial(curves_figure, groups, CURVES.get(kind, kind), x, options)
    return made


# -- panels of lines ---------------------------------------------------------------------------------------------------
def find_label(key: str, groups: Sequence[Group], option: str) -> str:
    """The label of the groups that an axis of the study, or a key of the job, has. Raises ConfigError."""
    labels = [label for group in groups[:1] for label in group.labels]
    if (label := label_of(key, labels)) is None:
        raise ConfigError(
            option, key, "the runs do not differ in it", f"one of {', '.join(labels) or 'the axes, if there were any'}"
        )
    return label


def without_tuned(groups: Sequence[Group], tuned: Sequence[str]) -> list[Group]:
    """The groups without the labels that were selected for each method, so that a method has one line style.

    They keep these labels where two groups would have the same ones without them.
    """
    found = [_without(group, *tuned) for group in groups]
    return found if len({group.name for group in found}) == len(found) else list(groups)


def _without(group: Group, *labels: str | None) -> Group:
    return replace(group, labels={key: value for key, value in group.labels.items() if key not in labels})


def _names(groups: Sequence[Group], axis: str | None) -> dict[int, str]:
    """The names of the groups by id, without the label of the panels and those in which no group differs."""
    values = {label: {format_value(group.labels[label]) for group in groups} for label in groups[0].labels}
    same = [label for label, found in values.items() if len(found) == 1]
    return {id(group): _without(group, axis, *same).name for group in groups}


def _line_panels(
    groups: Sequence[Group], options: Options, draw: Callable[[Axes, Group, dict[str, Any]], bool]
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each value of the axis `options.panels`, in which `draw` draws each group as a line.

    Groups that differ in that axis alone have the same line style in all panels. `draw` returns whether there was
    something to draw.
    """
    axis = find_label(options.panels, groups, "panels") if options.panels else None
    named = _names(groups, axis)
    parts: dict[str, list[tuple[str, Group]]] = {}
    for group in groups:
        title = "" if axis is None else f"{axis.replace('_', ' ')} {format_value(group.labels[axis])}"
        parts.setdefault(title, []).append((named[id(group)], group))
    if (most := max(map(len, parts.values()))) > style.MAX_LINES:
        raise _Nothing(
            f"it would have {most} lines in a panel, more than {style.MAX_LINES}; choose fewer runs, or --panels"
        )
    names = {name: k for k, name in enumerate(dict.fromkeys(name for part in parts.values() for name, _ in part))}
    figure, axes = style.panels(list(parts), options.width)
    drawn = False
    for ax, part in zip(axes, parts.values(), strict=True):
        for name, group in part:
            drawn |= draw(ax, group, style.line_style(names[name]))
    if not drawn:
        raise _Nothing
    if len(names) > 1:
        style.add_legend(figure, style.handles(list(names)))
    return figure, axes


def curves_figure(groups: Sequence[Group], metric: str, x: str, options: Options) -> Figure:
    """A metric against a column of PROGRESS, by group: the mean over the trials, and a band of the spread."""
    values = []

    def draw(ax: Axes, group: Group, line: dict[str, Any]) -> bool:
        curve = plot_group(ax, group, metric, x, options.spread, **line)
        values.append(curve)
        return bool(np.isfinite(curve["mean"]).any())

    figure, axes = _line_panels(groups, options, draw)
    for ax in axes:
        style.format_axes(ax)
        scale_axis(ax, metric, values)
    style.label_axes(axes, progress_label(x, groups), metric_label(metric))
    return figure


def staleness_figure(groups: Sequence[Group], options: Options) -> Figure:
    """The share of the updates whose staleness is at most x, over all trials of a group.

    The axis is logarithmic above 1 where a few updates are far staler than the others.
    """

    most = max((trial.staleness_counts[0].max(initial=0) for group in groups for trial in group.trials), default=0) + 1
    usual: list[float] = []  # the 90 % quantile of each group's staleness

    def draw(ax: Axes, group: Group, line: dict[str, Any]) -> bool:
        pairs = [trial.staleness_counts for trial in group.trials if len(trial.staleness_counts[0])]
        if not pairs:
            return False
        found, places = np.unique(np.concatenate([values for values, _ in pairs]), return_inverse=True)
        share = np.cumsum(np.bincount(places, np.concatenate([counts for _, counts in pairs])))
        share = 100 * share / share[-1]
        usual.append(float(found[np.searchsorted(share, 90.0)]))
        xs, ys = np.append(found, most), np.append(share, 100.0)
        ax.plot(np.insert(xs, 0, found[0]), np.insert(ys, 0, 0.0), drawstyle="steps-post", **line)
        return True

    figure, axes = _line_panels(groups, options, draw)
    for ax in axes:
        style.format_axes(ax)
        ax.set_ylim(0, 103)
        if most > LONG_TAIL * max(1.0, *usual):
            ax.set_xscale("symlog", linthresh=1)
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.set_xlim(left=0)
    style.label_axes(axes, "staleness (global steps)", "updates, cumulative (%)")
    return figure


def client_updates_figure(groups: Sequence[Group], options: Options) -> Figure:
    """The number of updates of the clients in ascending order: the mean over the trials, and a band of the spread."""

    def draw(ax: Axes, group: Group, line: dict[str, Any]) -> bool:
        trials = [trial.client_updates for trial in group.trials if trial.client_updates.any()]
        if not trials:
            return False
        values = np.array([np.quantile(updates, PERCENT / 100, method="inverted_cdf") for updates in trials])
        mean, low, high = mean_and_spread(values.astype(float), options.spread)
        ax.plot(PERCENT, mean, **line)
        ax.fill_between(PERCENT, low, high, color=line["color"], alpha=0.18, linewidth=0)
        return True

    figure, axes = _line_panels(groups, options, draw)
    for ax in axes:
        style.format_axes(ax)
        ax.set_ylim(bottom=0)
    style.label_axes(axes, "clients, fewest updates first (%)", "updates per client")
    return figure


# -- step sizes --------------------------------------------------------------------------------------------------------
def step_size_figure(groups: Sequence[Group], metric: str, options: Options) -> Figure:
    """The metric at the last evaluation against the step size, a line for each method: mean and spread."""
    label = next((name for name in groups[0].labels if name.rpartition(".")[2] == "step_size"), None)
    sizes = {size for group in groups if (size := group.labels.get(label or "")) is not None}
    if label is None or len(sizes) < 2 or not all(type(size) in (int, float) for size in sizes):
        raise _Nothing
    scale = scale_of(metric)
    lines: dict[str, tuple[Group, list[tuple[float, ...]]]] = {}
    for group in groups:
        rest, values = _without(group, label), group.last(metric) * scale
        points = lines.setdefault(rest.name, (rest, []))[1]
        diverged = any(trial.diverged(metric) for trial in group.trials)
        if group.labels[label] is not None and len(values) and not diverged and np.isfinite(values).all():
            points.append((float(group.labels[label]), *map(float, mean_and_spread(values, options.spread))))

    def draw(ax: Axes, group: Group, line: dict[str, Any]) -> bool:
        points = np.array(sorted(lines[group.name][1]))
        if not len(points):
            return False
        x, mean, low, high = points.T
        ax.errorbar(x, mean, [mean - low, high - mean], capsize=2, elinewidth=0.8, **{**line, "markevery": None})
        return True

    figure, axes = _line_panels([group for group, _ in lines.values()], options, draw)
    positive = min(sizes) > 0 and max(sizes) / min(sizes) >= 10
    for ax in axes:
        if positive:
            ax.set_xscale("log")
        style.format_axes(ax)
        ax.margins(x=0.05)
        if len(sizes) <= MAX_TICKS:  # the values that were swept
            ax.set_xticks(sorted(sizes), [f"{size:g}" for size in sorted(sizes)])
            ax.set_xticks([], minor=True)
        scale_axis(ax, metric, [])
    style.label_axes(axes, "step size", f"final {metric_label(metric)}")
    return figure


# -- timelines ---------------------------------------------------------------------------------------------------------
def _timeline(groups: Sequence[Group], options: Options) -> Figure:
    from mpifl.tools.analysis.timeline import timeline_figure

    if len(groups) > MAX_TIMELINES:
        raise _Nothing(f"it would have {len(groups)} panels, more than {MAX_TIMELINES}; choose fewer runs"
                       if options.figures else "")  # fmt: skip
    if not any(len(trial.staleness_counts[0]) for group in groups for trial in group.trials[:1]):
        raise _Nothing
    names = _names(groups, None)
    return timeline_figure(groups, [names[id(group)] if len(groups) > 1 else "" for group in groups], options.width)


# -- many methods on many problems -------------------------------------------------------------------------------------
def profile_figure(costs: Mapping[str, DataFrame], width: float) -> Figure:
    """The performance profile of each table of costs in a panel, by title: see `ranking.performance_profile`."""
    profiles = {title: performance_profile(table) for title, table in costs.items()}
    names = list(dict.fromkeys(str(name) for profile in profiles.values() for name in profile))
    end = 1.05 * max(2.0, *(profile.index.max() for profile in profiles.values() if len(profile)))
    figure, axes = style.panels(list(profiles), width)
    for ax, profile in zip(axes, profiles.values(), strict=True):
        for name, share in profile.items():
            xs, ys = np.append(share.index, end), 100 * np.append(share, share.iloc[-1:])
            ax.plot(xs, np.resize(ys, len(xs)), drawstyle="steps-post", **style.line_style(names.index(str(name))))
        ax.set_xscale("log", base=2 if end < MAX_BINARY else 10)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.set(xlim=(1, end), ylim=(0, 103))
        style.format_axes(ax)
    style.label_axes(axes, "cost, as a multiple of the smallest", "problems solved (%)")
    style.add_legend(figure, style.handles(names))
    return figure


def ranks_figure(found: RankTest, width: float) -> Figure:
    """Mean ranks on an axis; bars join methods that differ by less than the critical difference (Demšar 2006)."""
    from matplotlib.figure import Figure

    count, groups = len(found.ranks), found.groups
    left = -(-count // 2)  # the better half has its names on the left
    first = 1 + 0.5 * len(groups)  # y of the first names; rows of names are 1 apart, bars of groups 0.5
    figure = Figure((width, 0.16 * (first + left + 3) + 0.1), layout="constrained")
    ax = figure.subplots()
    for k, (name, rank) in enumerate(found.ranks.items()):
        y, edge, side = (first + k, 1, "right") if k < left else (first + count - 1 - k, count, "left")
        ax.plot([rank, rank, edge], [0, y, y], color="black", linewidth=0.8)
        text = f"{style.plain(str(name))} {rank:.2f}"
        ax.annotate(text, (edge, y), (-3 if k < left else 3, 0), textcoords="offset points", ha=side, va="center")
    for k, group in enumerate(groups):
        ends = found.ranks[group[0]] - 0.03, found.ranks[group[-1]] + 0.03
        ax.plot(ends, [0.5 + 0.5 * k] * 2, color="black", linewidth=2.4, solid_capstyle="butt")
    ax.plot([1, 1 + found.difference], [-2, -2], color="black", linewidth=1.2, marker="|", markersize=5, clip_on=False)
    ax.annotate(f"critical difference {found.difference:.2f}", (1, -2), (0, 3), textcoords="offset points")
    ax.set(xlim=(1, count), ylim=(first + left - 0.5, -3), xticks=range(1, count + 1), yticks=[])
    ax.xaxis.tick_top()
    ax.spines["top"].set_position(("data", 0))
    ax.spines[["left", "right", "bottom"]].set_visible(False)
    return figure
