"""The figures of a report: curves, distributions, sensitivity to the step size, profiles, ranks, timelines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mpifl.errors import ConfigError
from mpifl.runfile.reader import UnreadableRun
from mpifl.text import capitalised, format_count
from mpifl.tools.analysis import latex, style
from mpifl.tools.analysis.curves import line_names, metric_label, plot_group, progress_label, scale_axis
from mpifl.tools.analysis.options import CURVES, FIGURES, PICTURES, Options, is_percentage, scale_of
from mpifl.tools.analysis.ranking import RankTest, performance_profile, rank_test
from mpifl.tools.analysis.spread import BANDS, mean_and_spread
from mpifl.tools.analysis.tables import known_mean
from mpifl.tools.analysis.trials import Group, Trial, count_trials, format_value, label_of, number_above_0

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PERCENT = np.linspace(0, 100, 101)  # percentages of the clients
MAX_TIMELINES = 4  # panels in a figure of timelines
MAX_TICKS = 7  # step sizes that have a tick each
LONG_TAIL = 10.0  # a staleness above this many times the 90 % quantile makes the axis logarithmic
MAX_BINARY = 64.0  # the largest factor of a performance profile whose axis has powers of 2


class _Nothing(Exception):
    """There is nothing to draw. The message is the reason, if it is worth a note."""


def draw_report(
    groups: Sequence[Group], out: Path, options: Options, candidates: Sequence[Group] = (), tuned: Sequence[str] = ()
) -> tuple[list[Path], list[str]]:
    """Writes the figures into `out`; returns the files, and a line about each figure that cannot be drawn.

    candidates: all groups of a study, before its selection: what the step sizes are compared over; else `groups`.
    tuned: labels whose values were selected for each method. Without `options.figures`, figures that the runs have no
    values for are left out without a line. With tables in LaTeX, each picture has its caption in a file as well.
    """
    formats = [name for name in options.formats if name in PICTURES]
    written, notes = [], []
    shown = without_tuned(groups, tuned)
    for stem, make in _wanted(shown, options, candidates or groups).items() if formats else ():
        try:
            with style.paper_style():
                figure = make()
                written += style.save(figure, out, stem, formats)
        except _Nothing as reason:
            if options.figures or str(reason):
                notes.append(f"No figure {stem}: {str(reason) or 'no run has values for it'}.")
            continue
        except UnreadableRun as error:  # what the other figures did not read
            notes.append(f"No figure {stem}: {error}.")
            continue
        if "tex" in options.formats:
            caption = " ".join([f"{figure.get_label()}.", *_selected(groups, tuned)])
            written.append(out / f"{stem}.tex")
            written[-1].write_text(latex.figure(stem, caption, options.width), encoding="utf-8")
    return written, notes


def _selected(groups: Sequence[Group], tuned: Sequence[str]) -> list[str]:
    """A sentence for each label in `tuned`: the values that were selected for each method, with the setting of each."""
    sentences = []
    for label in tuned:
        values: dict[str, dict[str, list[str]]] = {}
        for group in groups:
            if group.labels.get(label) is not None:
                method, *settings = group.labels
                found = values.setdefault(format_value(group.labels[method]), {})
                rest = group.without(method, *(each for each in settings if each in tuned))
                found.setdefault(format_value(group.labels[label]), []).append(rest.name)
        each = []
        for method, found in values.items():
            texts = [f"{value} ({'; '.join(names)})" if len(found) > 1 else value for value, names in found.items()]
            each.append(f"{method} {', '.join(texts)}")
        sentences.append(f"Selected {label.replace('_', ' ')}: {'; '.join(each)}.")
    return sentences


def draw_figure(kind: str, groups: Sequence[Group], options: Options, candidates: Sequence[Group] = ()) -> Figure:
    """One figure of a report, with its caption as its label. Raises ConfigError where there is nothing to draw.

    kind: one of FIGURES or ON_REQUEST, or a metric.
    """
    options = replace(options, figures=(kind,))
    options.check_names(groups)
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
    alone = {"staleness": staleness_figure, "client-updates": client_updates_figure, "timeline": _timeline}
    of_metric = {"step-size": step_size_figure, "staleness": staleness_metric_figure, "ranks": _ranks}
    made: dict[str, Callable[[], Figure]] = {}
    for kind in options.figures or FIGURES:
        prefix, _, metric = kind.rpartition("-")
        if kind in alone:
            made[kind] = partial(alone[kind], groups, options)
        elif prefix in of_metric:
            found = candidates if prefix == "step-size" else groups
            made[kind] = partial(of_metric[prefix], found, CURVES[metric], options)
        else:
            for x in options.x:
                stem = re.sub(r"[^\w.-]+", "_", kind) + ("" if x == "time" else f"-{x}")
                if kind == "profile":
                    made[stem] = partial(_profile, groups, x, options)
                else:
                    made[stem] = partial(curves_figure, groups, CURVES.get(kind, kind), x, options)
    return made


# -- panels of lines ---------------------------------------------------------------------------------------------------
def find_label(key: str, groups: Sequence[Group], option: str) -> str:
    """The label of the groups that an axis of the study, or a key of the job, has. Raises ConfigError."""
    labels = [label for group in groups[:1] for label in group.labels]
    if (label := label_of(key, labels)) is None:
        known = ", ".join(labels) or "the axes, of which there are none"
        raise ConfigError(option, key, "the runs do not differ in it", f"one of {known}")
    return label


def without_tuned(groups: Sequence[Group], tuned: Sequence[str]) -> list[Group]:
    """The groups without the labels that were selected for each method, so that a method has one line style.

    They keep these labels where two groups would have the same ones without them.
    """
    found = [group.without(*tuned) for group in groups]
    return found if len({group.name for group in found}) == len(found) else list(groups)


def _line_panels(
    groups: Sequence[Group], options: Options, draw: Callable[[Axes, Group, dict[str, Any]], bool], x: str, y: str,
    caption: str, finish: Callable[[Axes], object] = lambda ax: None,
) -> Figure:  # fmt: skip
    """A figure with a panel for each value of the axis `options.panels`, in which `draw` draws each group as a line.

    Groups that differ in that axis alone have the same line style in all panels. `draw` returns whether there was
    something to draw; `finish` sets the limits of a panel.
    """
    axis = find_label(options.panels, groups, "panels") if options.panels else None
    named = line_names(groups, axis)
    parts: dict[str, list[tuple[str, Group]]] = {}
    for group in groups:
        title = "" if axis is None else f"{axis.replace('_', ' ')} {format_value(group.labels[axis])}"
        parts.setdefault(title, []).append((named[id(group)], group))
    if (most := max(map(len, parts.values()))) > style.MAX_LINES:
        raise _Nothing(
            f"it would have {most} lines in a panel, more than {style.MAX_LINES}; choose fewer runs, or --panels"
        )
    names = list(dict.fromkeys(name for part in parts.values() for name, _ in part))
    figure, axes = style.panels(list(parts), options.width)
    drawn = False
    for ax, part in zip(axes, parts.values(), strict=True):
        for name, group in part:
            drawn |= draw(ax, group, {**style.line_style(names.index(name)), "label": name})
        style.lighten_bands(ax, len(part))
    if not drawn:
        raise _Nothing
    for ax in axes:
        style.format_axes(ax)
        finish(ax)
    style.label_axes(axes, x, y)
    style.add_legend(figure, style.handles(names) if len(names) > 1 else {}, axes)
    figure.set_label(capitalised(caption))
    return figure


def _mean_of(groups: Sequence[Group], options: Options, shape: str) -> str:
    """The end of a caption: what lines, and bands or bars, show."""
    if all(len(group.trials) == 1 for group in groups):
        return ""
    each = "; thin lines: each trial" if options.trials and shape == "band" else ""
    return f": mean of {count_trials(groups)}, and {BANDS[options.spread]} ({shape}){each}"


def _words(label: str) -> str:
    """A label of an axis without its unit."""
    return label.partition(" (")[0]


def curves_figure(groups: Sequence[Group], metric: str, x: str, options: Options) -> Figure:
    """A metric against a column of PROGRESS, by group: the mean over the trials, and a band of the spread."""
    values = []

    def draw(ax: Axes, group: Group, line: dict[str, Any]) -> bool:
        curve = plot_group(ax, group, metric, x, options.spread, options.trials, **line)
        values.append(curve)
        return bool(np.isfinite(curve["mean"]).any())

    x_label, y_label = progress_label(x, groups), metric_label(metric)
    caption = f"{_words(y_label)} against {_words(x_label)}{_mean_of(groups, options, 'band')}"
    return _line_panels(groups, options, draw, x_label, y_label, caption, lambda ax: scale_axis(ax, metric, values))


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

    def finish(ax: Axes) -> None:
        ax.set_ylim(0, 103)
        ax.locator_params(axis="x", integer=True)
        if most > LONG_TAIL * max(1.0, *usual):
            ax.set_xscale("symlog", linthresh=1)
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.set_xlim(left=0)

    caption = f"share of the updates whose staleness is at most that on the axis, over {count_trials(groups)}"
    return _line_panels(groups, options, draw, "staleness (aggregations)", "updates, cumulative (%)", caption, finish)


def client_updates_figure(groups: Sequence[Group], options: Options) -> Figure:
    """The number of updates of the clients in ascending order: the mean over the trials, and a band of the spread."""

    def draw(ax: Axes, group: Group, line: dict[str, Any]) -> bool:
        trials = [trial.client_updates for trial in group.trials if trial.client_updates.any()]
        if not trials:
            return False
        values = np.array([np.quantile(updates, PERCENT / 100, method="inverted_cdf") for updates in trials])
        mean, low, high = mean_and_spread(values.astype(float), options.spread)
        ax.plot(PERCENT, mean, **line)
        ax.fill_between(PERCENT, low, high, color=line["color"], alpha=style.BAND, linewidth=0)
        return True

    caption = f"updates of the clients, from the one with fewest{_mean_of(groups, options, 'band')}"
    x, y = "clients, fewest updates first (%)", "updates per client"
    return _line_panels(groups, options, draw, x, y, caption, lambda ax: ax.set_ylim(bottom=0))


# -- points with bars --------------------------------------------------------------------------------------------------
def step_size_figure(groups: Sequence[Group], metric: str, options: Options) -> Figure:
    """The metric at the last evaluation against the step size, a line for each method: mean and spread."""
    label = next((name for name in groups[0].labels if name.rpartition(".")[2] == "step_size"), None)
    sizes = {size for group in groups if (size := group.labels.get(label or "")) is not None}
    if label is None or len(sizes) < 2 or not all(map(number_above_0, sizes)):
        raise _Nothing
    points = [(group.without(label), group.labels[label], group) for group in groups]
    return _point_panels(points, "step size", metric, options, sorted(sizes))


def staleness_metric_figure(groups: Sequence[Group], metric: str, options: Options) -> Figure:
    """The metric at the last evaluation against the mean staleness, a line for each method over the settings."""
    method = next(iter(groups[0].labels), None)
    kept = {method, find_label(options.panels, groups, "panels") if options.panels else None}
    points = [(group.without(*(label for label in group.labels if label not in kept)),
               known_mean([trial.staleness for trial in group.trials]), group) for group in groups]  # fmt: skip
    return _point_panels(points, "mean staleness (aggregations)", metric, options)


def _point_panels(
    points: Sequence[tuple[Group, float | None, Group]], x: str, metric: str, options: Options,
    ticks: Sequence[float] = (),
) -> Figure:  # fmt: skip
    """The last values of a metric against x: lines through points with a bar of the spread.

    points: the group of a line, x, and the group whose trials have the values; one that is not finite has no point.
    ticks: all x, where these are chosen values.
    """
    scale = scale_of(metric)
    lines: dict[str, tuple[Group, list[tuple[float, ...]]]] = {}
    for line_group, place, group in points:
        values, found = group.last(metric) * scale, lines.setdefault(line_group.name, (line_group, []))[1]
        diverged = any(trial.diverged(metric) for trial in group.trials)
        if place is not None and np.isfinite(place) and len(values) and not diverged and np.isfinite(values).all():
            found.append((float(place), *map(float, mean_and_spread(values, options.spread))))

    def draw(ax: Axes, group: Group, line: dict[str, Any]) -> bool:
        found = np.array(sorted(lines[group.name][1]))
        if not len(found):
            return False
        xs, mean, low, high = found.T
        ax.errorbar(xs, mean, [mean - low, high - mean], capsize=2, elinewidth=0.8, **{**line, "markevery": None})
        return True

    def finish(ax: Axes) -> None:
        if ticks and ticks[0] > 0 and ticks[-1] / ticks[0] >= 10:
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.xaxis.set_minor_formatter("")
        ax.margins(x=0.05)
        if 0 < len(ticks) <= MAX_TICKS:  # the values that were swept
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.set_xticks([], minor=True)
        scale_axis(ax, metric, [])

    y = f"final {metric_label(metric)}"
    caption = f"{_words(y)} against {_words(x)}{_mean_of([group for *_, group in points], options, 'bar')}"
    return _line_panels([group for group, _ in lines.values()], options, draw, x, y, caption, finish)


# -- timelines ---------------------------------------------------------------------------------------------------------
def _timeline(groups: Sequence[Group], options: Options) -> Figure:
    from mpifl.tools.analysis.timeline import timeline_figure

    if len(groups) > MAX_TIMELINES:
        raise _Nothing(f"it would have {len(groups)} panels, more than {MAX_TIMELINES}; choose fewer runs"
                       if options.figures else "")  # fmt: skip
    if not any(len(trial.staleness_counts[0]) for group in groups for trial in group.trials[:1]):
        raise _Nothing
    names = line_names(groups)
    titles = [names[id(group)] if len(groups) > 1 else "" for group in groups]
    return timeline_figure(groups, titles, options.width, options.window)


# -- many methods on many problems -------------------------------------------------------------------------------------
def profile_figure(costs: Mapping[str, pd.DataFrame], width: float) -> Figure:
    """The performance profile of each table of costs in a panel, by title: see `ranking.performance_profile`."""
    profiles = {title: performance_profile(table) for title, table in costs.items()}
    names = list(dict.fromkeys(str(name) for profile in profiles.values() for name in profile))
    end = 1.05 * max([2.0, *(profile.index.max() for profile in profiles.values() if len(profile))])
    figure, axes = style.panels(list(profiles), width)
    for ax, profile in zip(axes, profiles.values(), strict=True):
        for name, share in profile.items():
            xs, ys = np.append(share.index, end), 100 * np.append(share, share.iloc[-1:])
            line = style.line_style(names.index(str(name))) | {"label": name}
            ax.plot(xs, np.resize(ys, len(xs)), drawstyle="steps-post", **line)
        ax.set_xscale("log", base=2 if end < MAX_BINARY else 10)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.set(xlim=(1, end), ylim=(0, 103))
        style.format_axes(ax)
    style.label_axes(axes, "cost, as a multiple of the smallest", "problems solved (%)")
    style.add_legend(figure, style.handles(names), axes)
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
        ax.plot([rank, rank, edge], [0, y, y], color="black", linewidth=0.8, clip_on=False)
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


def _by_problem(groups: Sequence[Group], value: Callable[[Trial], float]) -> pd.DataFrame:
    """A value of each trial: a column for each method, a row for each setting and seed that all methods have.

    Methods are the values of the first label; the other labels are the setting.
    """
    method = next(iter(groups[0].labels), "")
    rows: dict[tuple[str, tuple[int, int]], dict[str, float]] = {}
    for group in groups:
        for seed, trial in group.by_seed().items():
            row = rows.setdefault((group.without(method).name, seed), {})
            row[format_value(group.labels.get(method))] = value(trial)
    methods = list(dict.fromkeys(name for row in rows.values() for name in row))
    whole = {key: row for key, row in rows.items() if len(row) == len(methods)}
    if len(methods) < 2 or not whole:
        raise _Nothing("it needs trials of at least two methods with the same setting and seed")
    return pd.DataFrame(whole, index=methods).T


def _profile(groups: Sequence[Group], x: str, options: Options) -> Figure:
    if not options.reach:
        raise _Nothing("it needs an accuracy to reach; name one with --reach, such as 0.8")
    costs = {
        f"{100 * accuracy:g} %": _by_problem(groups, partial(Trial.reached, accuracy=accuracy, x=x))
        for accuracy in options.reach
    }
    if any((table <= 0).any(axis=None) for table in costs.values()):
        raise _Nothing("a method has the accuracy at the start")
    what = _words(progress_label(x, groups))
    count = format_count(len(next(iter(costs.values()))), "combination")
    caption = (f"performance profiles: the share of {count} of a setting and a seed in which a method reaches a test "
               f"accuracy of {' or '.join(costs)} with at most a multiple of the smallest {what}")  # fmt: skip
    figure = profile_figure({f"test accuracy {reached}": table for reached, table in costs.items()}, options.width)
    figure.set_label(capitalised(caption))
    return figure


def _ranks(groups: Sequence[Group], metric: str, options: Options) -> Figure:
    scores = _by_problem(groups, lambda trial: trial.last(metric))
    settings = scores.groupby(level=0, sort=False).mean().where(scores.notna().groupby(level=0).all())
    scores, what = (settings, "setting") if len(settings) > 1 else (scores, "seed")
    if scores.isna().all(axis=None):
        raise _Nothing
    if len(scores.columns) < 3 or len(scores) < 2:
        raise _Nothing("it needs at least three methods, and two settings or two seeds")
    found = rank_test(scores, is_percentage(metric))
    figure = ranks_figure(found, options.width)
    metric, count = _words(metric_label(metric)), format_count(len(scores), what)
    figure.set_label(
        f"Mean ranks of the methods by their final {metric} over {count}; bars join methods that Nemenyi's test does "
        f"not distinguish at the level of 5 % (Friedman's test that all are alike: p = {found.p:.2g})"
    )
    return figure
