"""Figures of several panels with one legend, for pages of studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pandas import DataFrame

from mpifl.tools.analysis import style
from mpifl.tools.analysis.curves import LOG_DECADES

WIDTH = 7.0  # width of a figure, inches


@dataclass(frozen=True)
class Panel:
    """One plot. Each curve is indexed by x, with a column `mean`, and columns `low` and `high` for a band."""

    title: str
    curves: Mapping[str, DataFrame]
    """curves by label"""


def draw_panels(
    path: Path,
    panels: Sequence[Panel],
    x: str,
    y: str,
    limits: Sequence[float] | None = None,
    markers: bool = False,
    slope: float | None = None,
) -> None:
    """Writes a figure of panels; a label looks the same in all of them.

    A positive y over several decades is drawn on a logarithmic axis, with the same limits in all panels. With markers
    each point is marked, both axes are logarithmic from one decade on, and the limits include the bands. With a slope
    both axes are logarithmic, and a dashed line of that slope goes through the last point of each curve.
    """
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    decades = 1.0 if markers else LOG_DECADES
    with style.paper_style():
        figure, axes = style.panels([panel.title for panel in panels], WIDTH)
        handles = {}
        for ax, panel in zip(axes, panels, strict=True):
            for label, curve in panel.curves.items():
                line = style.line_style(labels.index(label)) | ({"markevery": 1} if markers else {})
                xs = curve.index.to_numpy(float)
                line = style.mark_curve(line, xs if slope is None else np.log(xs.clip(xs[xs > 0].min())))
                (handles[label],) = ax.plot(xs, curve["mean"], **line)
                if "low" in curve:
                    ax.fill_between(xs, curve["low"], curve["high"], color=line["color"], alpha=0.15, linewidth=0)
                if slope is not None:
                    ends = xs[xs > 0][[0, -1]]
                    ax.plot(ends, curve["mean"].iloc[-1] * (ends / ends[-1]) ** slope, color="0.4", lw=0.8, ls="--")
            style.format_axes(ax)
        curves = [curve for panel in panels for curve in panel.curves.values()]
        drawn = [curve if slope is None else curve[curve.index > 0] for curve in curves]  # 0 has no logarithm
        values = np.concatenate([(curve if markers else curve["mean"]).to_numpy().ravel() for curve in drawn])
        positive = values[np.isfinite(values) & (values > 0)]
        if limits:
            axes[0].set_ylim(*limits)
        elif slope is not None or _spans(positive, decades):
            axes[0].set_yscale("log")
            axes[0].set_ylim(positive.min() / 1.2, positive.max() * 1.2)
        places = np.concatenate([curve.index.to_numpy(float) for curve in curves])
        if slope is not None or (markers and _spans(places, decades)):
            axes[0].set_xscale("log")
        style.label_axes(axes, x, y)
        style.add_legend(figure, handles if len(labels) > 1 else {})
        figure.savefig(path, dpi=150)


def _spans(values: np.ndarray, decades: float) -> bool:
    return bool(len(values) and values.min() > 0 and np.log10(values.max() / values.min()) > decades)
