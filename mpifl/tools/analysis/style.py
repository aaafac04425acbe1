"""How figures look: colours, lines, fonts, sizes, panels and legends."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Eight colours that differ in lightness, so that they differ in grey and for every colour blindness. Neighbours differ
# most.
COLOURS = ("#0A4AA0", "#E39A00", "#101010", "#17916F", "#8FCBF4", "#B93C08", "#45105A", "#CF7AA8")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "os^DvPX<>"
MARKER_SPACING = 0.14  # distance of two markers, as a fraction of the diagonal of the axes; of a curve: of its width
BESIDE = 0.33  # largest share of a figure's width that a legend beside the panels takes
BAND = 0.18  # opacity of a band
MAX_LINES = 16  # lines in a panel: more cannot be told apart
SETTINGS: Any = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7.5, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "axes.linewidth": 0.6, "lines.linewidth": 1.3, "lines.markersize": 3.6,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "savefig.dpi": 300,
    "pdf.fonttype": 42, "ps.fonttype": 42,  # embedded TrueType fonts, which publishers accept
    "svg.fonttype": "path",  # text becomes paths, and looks the same where the font is missing
    "svg.hashsalt": "mpifl",  # the same runs give the same file
    "axes.formatter.useoffset": False,
}  # fmt: skip
PANEL_HEIGHT = {1: 2.3, 2: 1.9, 3: 1.7}  # inches, by the number of rows of panels; 1.5 for more rows
METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def line_style(k: int) -> dict[str, Any]:
    """The options of the k-th line of a figure: colour, dash and marker differ from those of the others."""
    return {
        "color": COLOURS[k % len(COLOURS)],
        "linestyle": DASHES[k % len(DASHES)],
        "marker": MARKERS[k % len(MARKERS)],
        "markevery": ((k % 8) * MARKER_SPACING / 8, MARKER_SPACING),
        "markerfacecolor": "white" if k % 2 else COLOURS[k % len(COLOURS)],
        "markeredgewidth": 0.8,
    }


def mark_curve(line: dict[str, Any], xs: np.ndarray) -> dict[str, Any]:
    """The options of a line (`line_style`) for a curve at xs: markers evenly along x, however noisy the curve is.

    A curve of few points has a marker at each.
    """
    match line.get("markevery"):
        case float(first), float(spacing):  # fractions of the width
            places = xs[:1] + np.ptp(xs) * np.arange(first, 1.0, spacing) if len(xs) > 1 / spacing else xs
            return {**line, "markevery": np.unique(np.searchsorted(xs, places)).tolist()}
    return line


def paper_style() -> AbstractContextManager[None]:
    """Sets matplotlib's settings for figures in a block."""
    from matplotlib import rc_context

    return rc_context(SETTINGS)


def plain(text: str) -> str:
    """The text such that matplotlib does not take it for a formula."""
    return text.replace("$", r"\$")


def panels(
    titles: Sequence[str], width: float, height: float | None = None, shared: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each title, in as many columns as its width (inches) allows."""
    from matplotlib.figure import Figure

    count = len(titles)
    columns = min(count, max(1, int(width / 2.2)) if count > 2 or width > 4 else 1)
    rows = -(-count // columns)
    columns = -(-count // rows)  # four panels are two rows of two, not three and one
    size = (width, rows * (height or PANEL_HEIGHT.get(rows, 1.5)))
    figure = Figure(figsize=size, layout="constrained")  # not pyplot: its backend is the user's choice
    grid = figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False)
    axes: list[Axes] = list(grid.flat)
    for k, ax in enumerate(axes[count:], count):
        ax.remove()
        axes[k - columns].xaxis.set_tick_params(labelbottom=True)
    for ax, title in zip(axes, titles, strict=False):
        letters = int(width / columns / 0.075)
        ax.set_title("\n".join(textwrap.wrap(plain(title), letters)))
    return figure, axes[:count]


def label_axes(axes: Sequence[Axes], x: str, y: str) -> None:
    """Labels the lowest panel of each column, and the left side of the figure."""
    columns = {_column(ax): ax for ax in axes}  # the last panel of a column is its lowest
    for ax in columns.values():
        ax.set_xlabel(x)
    if len(axes) > len(columns) and (figure := axes[0].get_figure(root=True)):  # there are several rows
        figure.supylabel(y, fontsize=SETTINGS["axes.labelsize"])
    else:
        axes[0].set_ylabel(y)


def _column(ax: Axes) -> int:
    place = ax.get_subplotspec()
    return place.colspan.start if place else 0


def format_axes(ax: Axes) -> None:
    """Sets grid, margins and spines."""
    ax.margins(x=0.01)
    ax.grid(True, which="major", color="#dddddd", linewidth=0.5)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_xscale() == "linear":
        from matplotlib.ticker import MaxNLocator

        ax.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))


def lighten_bands(ax: Axes, lines: int) -> None:
    """Makes the bands of many lines fainter, since they lie over one another."""
    from matplotlib.collections import PolyCollection

    for band in ax.collections:
        if isinstance(band, PolyCollection):
            band.set_alpha(min(BAND, 1 / lines))


def handles(names: Sequence[str]) -> dict[str, Artist]:
    """The lines of a legend: the k-th name with the k-th line style."""
    from matplotlib.lines import Line2D

    return {name: Line2D([], [], **{**line_style(k), "markevery": None}) for k, name in enumerate(names)}


def add_legend(
    figure: Figure, handles: Mapping[str, Artist], axes: Sequence[Axes] = (), widen: bool = False
) -> None:  # fmt: skip
    """Names the lines: at their ends, in a row below the panels, or in the free space of a panel; else in rows below if
    these are at most a tenth of the height, else beside the panels, or in rows below if that is too wide.

    axes: the panels, finished. The figure grows by the height of rows, or to that of the names beside. widen: it also
    grows by the width of these.
    """
    names = [plain(name) for name in handles]
    if not names or (len(axes) == 1 and _name_ends(figure, axes[0], list(handles))):
        return
    width, height = figure.get_size_inches()
    for columns, letters in [
        *((columns, 0) for columns in range(len(names), 0, -1)),
        *((1, letters) for letters in (60, 48, 36, 26)),
    ]:
        texts = ["\n".join(textwrap.wrap(name, letters)) if letters else name for name in names]
        size = _legend_size(handles.values(), texts, columns)
        if size[0] <= width - 0.1:
            break
    if columns < len(names):
        if any(_legend_inside(figure, ax, handles.values(), names) for ax in axes):
            return
        beside = _legend_size(handles.values(), names, 1)
        if size[1] > (height + size[1]) / 10 and beside[0] <= BESIDE * width:
            figure.set_size_inches(width + (beside[0] if widen else 0), max(height, beside[1] + 0.1))
            figure.legend(list(handles.values()), names, loc="outside right center", **_legend_options(1))
            return
    figure.set_size_inches(width, height + size[1])
    figure.legend(list(handles.values()), texts, loc="outside lower center", **_legend_options(columns))


def _name_ends(figure: Figure, ax: Axes, names: Sequence[str]) -> bool:
    """Writes the names of lines at their right ends; False where these are too close, or not at the margin."""
    from scipy.optimize import isotonic_regression

    lines = {str(line.get_label()): line for line in ax.get_lines()}
    letters = 0.3 * figure.get_figwidth() / 0.06  # how many have room beside the panel
    if max(map(len, names)) > letters or not all(name in lines and np.size(lines[name].get_xdata()) for name in names):
        return False
    figure.draw_without_rendering()
    points = np.array([np.column_stack(lines[name].get_data())[-1] for name in names], float)
    ends = ax.transAxes.inverted().transform(ax.transData.transform(points))
    order = np.argsort(ends[:, 1], kind="stable")
    heights = ends[order, 1]
    box = ax.get_window_extent()
    gaps = np.arange(len(names)) * 1.15 * SETTINGS["legend.fontsize"] / 72 * figure.dpi / box.height
    places = isotonic_regression(heights - gaps).x + gaps  # closest to the ends, at least one line apart
    moved = np.abs(places - heights).max()
    if not (ends[:, 0].min() > 0.97 and heights.min() >= 0 and heights.max() <= 1.02 and moved <= 0.6 * gaps[1]):
        return False
    for k, place in zip(order, places, strict=True):
        ax.annotate(plain(names[k]), (1, place), (4, 0), "axes fraction", "offset points", va="center",
                    fontsize=SETTINGS["legend.fontsize"])  # fmt: skip
    return True


def _legend_inside(figure: Figure, ax: Axes, handles: Any, names: Sequence[str]) -> bool:
    """Adds the legend where the panel has room for it, away from lines and bands; False where it has none."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    panel = ax.get_window_extent()
    paths = [line.get_transform().transform_path(line.get_path()) for line in ax.get_lines()]
    paths += [c.get_transform().transform_path(path) for c in ax.collections for path in c.get_paths()]
    for columns in (1, 2):
        width, height = (figure.dpi * (length + 0.1) for length in _legend_size(handles, names, columns))
        for place in ("lower right", "upper right", "upper left", "lower left") if width < panel.width else ():
            x = panel.x1 - width if "right" in place else panel.x0
            y = panel.y1 - height if "upper" in place else panel.y0
            box = Bbox.from_bounds(x, y, width, height)
            if height < panel.height and not any(path.intersects_bbox(box) for path in paths):
                ax.legend(list(handles), names, loc=place, **{**_legend_options(columns), "borderaxespad": 0.5})
                return True
    return False


def _legend_options(columns: int) -> dict[str, Any]:
    return {"ncols": columns, "frameon": False, "handlelength": 3.2, "columnspacing": 1.2, "labelspacing": 0.3,
            "borderaxespad": 0.2}  # fmt: skip


def _legend_size(handles: Any, texts: Sequence[str], columns: int) -> tuple[float, float]:
    """Width and height of a legend, inches, at the resolution at which its letters are widest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3, 3), dpi=72)
    legend = figure.legend(list(handles), texts, **_legend_options(columns))
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    return box.width / figure.dpi, box.height / figure.dpi


def save(figure: Figure, out: Path, stem: str, formats: Sequence[str]) -> list[Path]:
    """Writes the figure in each format; returns the files."""
    written = []
    figure.draw_without_rendering()  # places all panels, once for all formats
    figure.set_layout_engine("none")
    for suffix in formats:
        path = out / f"{stem}.{suffix}"
        figure.savefig(path, metadata=METADATA[suffix])
        written.append(path)
    return written
