"""Figures of several panels with one legend, for pages of studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pandas import DataFrame

from mpifl.analysis.curves import LOG_DECADES
from mpifl.analysis.style import COLOURS, DASHES


@dataclass(frozen=True)
class Panel:
    """One plot: curves with the column mean, and low and high for a band, indexed by x."""

    title: str
    curves: Mapping[tuple[str, str], DataFrame]
    """by the two parts of a label: the first has a colour, the second a line style; without second parts both"""


def draw_panels(path: Path, panels: Sequence[Panel], x: str, y: str, limits: tuple[float, float] | None = None) -> None:
    """Writes a figure, two panels a row; a label looks the same in all of them.

    A positive y over several decades is drawn on a logarithmic axis, with the same limits in all panels.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    firsts, seconds = (list(dict.fromkeys(label[k] for label in labels)) for k in (0, 1))
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    entries = 2 * columns if max(len(", ".join(label)) for label in labels) <= 24 else columns
    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        size = (3.7 * columns, 2.7 * rows + 0.25 + 0.2 * -(-len(labels) // entries))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        handles = {}
        for axes, panel in zip(grid.flat, panels, strict=False):
            for label, curve in panel.curves.items():
                colour = COLOURS[firsts.index(label[0]) % len(COLOURS)]
                style = DASHES[(seconds.index(label[1]) if len(seconds) > 1 else firsts.index(label[0])) % len(DASHES)]
                (handles[label],) = axes.plot(curve.index, curve["mean"], linestyle=style, color=colour, linewidth=1.4)
                if "low" in curve:
                    axes.fill_between(curve.index, curve["low"], curve["high"], color=colour, alpha=0.12, linewidth=0)
            axes.set_title(panel.title, fontsize=9)
            axes.set_xlabel(x)
            axes.margins(x=0.01)
            axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
        for axes in grid[:, 0]:
            axes.set_ylabel(y)
        means = np.concatenate([curve["mean"].to_numpy() for panel in panels for curve in panel.curves.values()])
        positive = means[np.isfinite(means) & (means > 0)]
        if limits:
            grid[0, 0].set_ylim(*limits)
        elif len(positive) and np.log10(positive.max() / positive.min()) > LOG_DECADES:
            grid[0, 0].set_yscale("log")
            grid[0, 0].set_ylim(positive.min() / 1.2, positive.max() * 1.2)
        for axes in list(grid.flat)[len(panels) :]:
            axes.remove()
        names = [", ".join(filter(None, label)) for label in labels]
        figure.legend(
            [handles[label] for label in labels], names, loc="outside lower center", ncols=entries, frameon=False
        )
        figure.savefig(path, dpi=150)
