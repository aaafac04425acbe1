"""Figures of a report: what they show, where names stand, and that lines can be told apart in grey."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from pandas import DataFrame

from mpifl.errors import ConfigError
from mpifl.runfile.create import Start
from mpifl.runfile.tables import AggregationRow, UpdateRow
from mpifl.runfile.writer import RunWriter
from mpifl.tools.analysis import style
from mpifl.tools.analysis.curves import plot_groups
from mpifl.tools.analysis.figures import draw_figure, draw_report, without_tuned
from mpifl.tools.analysis.options import Options
from mpifl.tools.analysis.panels import Panel, draw_panels
from mpifl.tools.analysis.timeline import read_contacts
from mpifl.tools.analysis.trials import Group, group_trials, load_trial
from tests.analysis.test_tables import trial


def lightness(colour: str) -> float:
    """L* of a colour (CIE 1976), which is what grey paper and colour-blind readers keep of it."""
    srgb = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return float(116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16)


def test_lines_can_be_told_apart() -> None:
    values = sorted(map(lightness, style.COLOURS))
    assert np.diff(values).min() > 6 and values[-1] < 80, "in grey, on white"
    lines = [style.line_style(k) for k in range(style.MAX_LINES)]
    assert len({(line["color"], str(line["linestyle"]), line["marker"]) for line in lines}) == style.MAX_LINES
    first = lines[:8]
    assert len({line["marker"] for line in first}) == 8 and len({str(line["linestyle"]) for line in first}) == 5


def test_a_noisy_curve_has_as_many_markers_as_a_smooth_one() -> None:
    """MARKER_SPACING is 0.14 of the width: seven or eight markers a curve, 0 to 1,000 s and noise of 0.5."""
    smooth = trial(np.linspace(0, 1, 1001).tolist())
    noisy = trial(np.random.default_rng(0).uniform(0.25, 0.75, 1001).tolist())
    lines = plot_groups([Group({"method": k}, [t]) for k, t in enumerate((smooth, noisy))], "test_accuracy", "time",
                        "range", None, False).get_lines()  # fmt: skip
    marked = [line.get_markevery() for line in lines]
    pyplot.close("all")
    assert np.diff(marked[1]).tolist() == [140] * (len(marked[1]) - 1) and [len(places) for places in marked] == [8, 8]


def groups(count: int, **labels: str) -> list[Group]:
    curves = [[0.1, 0.5 + k / 100, 0.8] for k in range(count)]
    return [Group({"method": f"m{k}", "spread": s, **labels}, [trial(c), trial([0.1, 0.4, 0.6])])
            for k, c in enumerate(curves) for s in (0, 5)]  # fmt: skip


def drawn(what: str, found: list[Group], **options: Any) -> Figure:
    """A figure in which everything has its place."""
    figure = draw_figure(what, found, Options(**options))
    figure.draw_without_rendering()
    return figure


def test_a_panel_for_each_value_of_an_axis() -> None:
    """A group has the same line in each panel; what is the same for all groups is in no label."""
    found = groups(3, data="digits")
    figure = drawn("accuracy", found, panels="clock.delay.spread", spread="sd", width=3.3, x=("updates",))
    first, second = figure.axes
    assert [ax.get_title() for ax in figure.axes] == ["spread 0", "spread 5"]
    assert first.get_ylim() == (0, 100) and second.get_xlabel() == "updates consumed" and first.get_xlabel() == ""
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["m0", "m1", "m2"]
    for one, other, k in zip(first.get_lines(), second.get_lines(), range(3), strict=True):
        assert one.get_color() == other.get_color() == style.COLOURS[k]
        assert one.get_ydata() == pytest.approx([10, 100 * (0.45 + k / 200), 70])
    box = legend.get_window_extent()
    assert all(box.y1 <= ax.get_window_extent().y0 for ax in figure.axes), "no legend over data"
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, "inside the figure"
    assert figure.get_size_inches()[0] == 3.3


def ends(*values: float, names: str = "abcdefghijkl", length: int = 1) -> list[Group]:
    """Groups whose only trial ends at these accuracies, with names of some length."""
    return [Group({"method": name * length}, [trial([0.1, v])]) for name, v in zip(names, values, strict=False)]


def test_lines_that_end_apart_have_their_names_at_their_ends() -> None:
    figure = drawn("accuracy", ends(0.9, 0.3, 0.92, 0.6), width=3.3)
    (ax,) = figure.axes
    assert not figure.legends and [text.get_text() for text in ax.texts] == ["b", "d", "a", "c"]  # from below
    boxes = [text.get_window_extent() for text in ax.texts]
    assert all(low.y1 <= high.y0 + 2 for low, high in itertools.pairwise(boxes)), "one above the other"
    assert all(box.x0 >= ax.get_window_extent().x1 and box.x1 <= figure.bbox.x1 for box in boxes), "beside the panel"
    (ax,) = draw_figure("accuracy", ends(*np.arange(0.05, 1, 0.1)), Options(width=3.3)).axes
    assert [text.get_text() for text in ax.texts] == [*"abcdefghij"], "many as well"


@pytest.mark.parametrize("width", [3.3, 7.0])
def test_a_legend_is_a_row_of_at_most_a_tenth_of_the_height_or_in_free_space(width: float) -> None:
    figure = drawn("accuracy", ends(0.9, 0.9, 0.9, length=3), width=width)
    assert figure.legends[0].get_window_extent().height <= figure.bbox.height / 10
    long = [Group({"method": f"{k} {'with a very long name ' * 8}"}, [trial([0.1, 0.5])]) for k in range(2)]
    figure = drawn("accuracy", long, width=width)
    box = figure.legends[0].get_window_extent()
    assert box.x1 <= figure.bbox.x1 and box.x0 >= 0
    figure = drawn("accuracy", ends(*[0.5] * 8, length=9), width=width)
    (ax,) = figure.axes
    box, panel = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert not figure.legends and panel.x0 <= box.x0 and box.x1 <= panel.x1 and panel.y0 <= box.y0
    paths = [line.get_transform().transform_path(line.get_path()) for line in ax.get_lines()]
    assert not any(path.intersects_bbox(box) for path in paths), "no legend over data"


@pytest.mark.parametrize("count", [9, 16])
@pytest.mark.parametrize("width", [3.3, 7.0])
def test_many_names_where_nothing_is_free_stand_beside_the_panel_and_take_no_height(count: int, width: float) -> None:
    found = [Group({"method": f"method{k}"}, [trial([0, 1, 0, 1, 0.5])]) for k in range(count)]
    figure = drawn("accuracy", found, width=width)
    (ax,), (legend,) = figure.axes, figure.legends
    box, panel = legend.get_window_extent(), ax.get_window_extent()
    assert figure.get_figwidth() == width and figure.get_figheight() <= (2.3 if count < 16 else 2.7)
    assert panel.x1 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1
    assert panel.width > 0.5 * figure.bbox.width


def test_many_lines_leave_the_axes_of_a_plot_their_size() -> None:
    few, many = (plot_groups(ends(*[0.5] * count, length=20), "test_accuracy", "time", "range", None, False)
                 for count in (2, 12))  # fmt: skip
    for ax in (few, many):
        ax.figure.draw_without_rendering()
    assert many.get_window_extent().height >= 0.95 * few.get_window_extent().height
    assert many.get_window_extent().width >= 0.95 * few.get_window_extent().width
    found = [replace(group, labels={**group.labels, "data": "digits"}) for group in ends(0.3, 0.9)]
    ax = plot_groups(found, "test_accuracy", "time", "range", pyplot.subplots()[1], False)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["a", "b"], "without what all lines share"
    pyplot.close("all")


def test_bands_and_thin_lines_of_the_trials() -> None:
    """Bands of many lines are fainter."""
    for count, opacity in ((2, style.BAND), (10, 0.1)):
        found = [Group({"method": str(k)}, [trial([0.1, 0.5]), trial([0.1, 0.7])]) for k in range(count)]
        (ax,) = drawn("accuracy", found).axes
        assert [band.get_alpha() for band in ax.collections] == [opacity] * count == [opacity] * len(ax.get_lines())
    (ax,) = drawn("accuracy", found[:1], trials=True).axes
    mean, *each = ax.get_lines()
    assert mean.get_ydata() == pytest.approx([10, 60])
    assert [line.get_ydata()[-1] for line in each] == [50, 70]  # type: ignore[index]
    assert len({line.get_color() for line in ax.get_lines()}) == 1


def test_a_method_has_one_line_and_the_caption_says_what_was_selected_for_it(tmp_path: Path) -> None:
    """It also says what lines and bands are."""
    chosen = [Group({"method": m, "step_size": size, "spread": s}, [trial([0.5]), trial([0.6])])
              for m, size, s in (("A", 1, 0), ("B", 1, 0), ("A", 10, 5), ("B", 1, 5))]  # fmt: skip
    names = [group.name for group in without_tuned(chosen, ["step_size"])]
    assert names == ["A, spread 0", "B, spread 0", "A, spread 5", "B, spread 5"]
    assert without_tuned(chosen[:1] * 2, ["step_size"]) == chosen[:1] * 2  # two values of one method are told apart
    options = Options(figures=("accuracy",), formats=("pdf", "tex"), panels="spread", spread="sd", width=3.3)
    written, _ = draw_report(chosen, tmp_path, options, tuned=["step_size"])
    assert [path.name for path in written] == ["accuracy.pdf", "accuracy.tex"]
    text = (tmp_path / "accuracy.tex").read_text()
    assert (r"\caption{Test accuracy against virtual time: mean of 2 trials, and the standard deviation (band). "
            r"Selected step size: A 1 (spread 0), 10 (spread 5); B 1.}") in text  # fmt: skip
    assert r"\begin{figure}" in text and r"\includegraphics{accuracy}" in text and r"\label{fig:accuracy}" in text


def test_profiles_of_the_time_to_an_accuracy() -> None:
    """Two settings, one seed: a needs 2 s and 1 s to 0.5, b 1 s and for ever. To 0.9 none gets: lines at 0."""
    curves = {("a", 0): [0, 0.1, 0.5], ("b", 0): [0, 0.6, 0.6], ("a", 5): [0, 0.5, 0.5], ("b", 5): [0, 0.1, 0.1]}
    found = [Group({"method": m, "spread": s}, [trial(c)]) for (m, s), c in curves.items()]
    figure = draw_figure("profile", found, Options(reach=(0.5, 0.9)))
    one, other = figure.axes[0].get_lines()
    assert not any(np.any(line.get_ydata()) for line in figure.axes[1].get_lines())
    assert one.get_xdata()[:2] == pytest.approx([1, 2]) and one.get_ydata()[:2] == pytest.approx([50, 100])
    assert other.get_ydata()[:2] == pytest.approx([50, 50])
    assert "the share of 2 combinations of a setting and a seed in which" in figure.get_label()
    with pytest.raises(ConfigError, match="name one with --reach"):
        draw_figure("profile", found, Options())
    start = [replace(group, trials=[trial([0.5, 0.6])]) for group in found]
    with pytest.raises(ConfigError, match="a method has the accuracy at the start"):
        draw_figure("profile", start, Options(reach=(0.5,)))


def test_ranks_over_the_settings() -> None:
    """The mean over the trials of a setting is ranked: 0.9, 0.7, 0.5 and 0.8, 0.9, a trial that diverged."""
    values = {("a", 0): [0.9, 0.9], ("b", 0): [0.6, 0.8], ("c", 0): [0.5, 0.5],
              ("a", 5): [0.8, 0.8], ("b", 5): [0.9, 0.9], ("c", 5): [1.0, np.nan]}  # fmt: skip
    found = [Group({"method": m, "spread": s}, [replace(trial([0.1, v]), seed=k) for k, v in enumerate(each)])
             for (m, s), each in values.items()]  # fmt: skip
    figure = draw_figure("ranks-accuracy", found, Options())
    assert [text.get_text() for text in figure.axes[0].texts][:3] == ["a 1.50", "b 1.50", "c 3.00"]
    assert "over 2 settings" in figure.get_label()
    with pytest.raises(ConfigError, match="at least three methods"):
        draw_figure("ranks-accuracy", found[:2], Options())


def test_the_last_accuracy_against_the_staleness_and_updates_against_time() -> None:
    values = (("A", 0, 3.0, 0.7), ("A", 5, 1.0, 0.9), ("B", 0, 0.0, 0.5), ("B", 5, np.nan, 0.5))
    found = [Group({"method": m, "spread": s}, [replace(trial([0.1, a]), staleness=v)]) for m, s, v, a in values]
    (ax,) = draw_figure("staleness-accuracy", found, Options()).axes
    lines = [container.lines[0] for container in ax.containers]
    assert [line.get_xdata().tolist() for line in lines] == [[1, 3], [0]]  # type: ignore[union-attr]
    assert lines[0].get_ydata() == pytest.approx([90, 70]) and ax.get_xlabel() == "mean staleness (aggregations)"
    (ax,) = drawn("updates", ends(0.5)).axes  # ten a second
    assert ax.get_lines()[0].get_ydata() == pytest.approx([0, 10]) and ax.get_ylabel() == "updates consumed"


def test_too_many_lines_are_not_drawn(tmp_path: Path) -> None:
    many = [Group({"method": str(k)}, [trial([0.1])]) for k in range(style.MAX_LINES + 1)]
    written, notes = draw_report(many, tmp_path, Options(figures=("accuracy",), formats=("png",)))
    assert not written and "17 lines in a panel, more than 16" in notes[0]
    _, notes = draw_report(many[:1], tmp_path, Options(figures=("gradient",), formats=("png",)))
    assert notes == ["No figure gradient: no run has values for it."]
    with pytest.raises(ConfigError, match="figure=gradient: the runs have no values for it; expected a figure that "):
        draw_figure("gradient", [Group({}, [trial([0.1], gradient_norm=[np.nan])])], Options())


def test_accuracy_by_step_size_has_no_point_where_a_trial_diverged(tmp_path: Path) -> None:
    """The last values by step size; a size at which a trial is not finite has no point. Swept sizes are the ticks."""
    found = [Group({"method": m, "step_size": s}, [trial([0.1, s / 100]), trial([0.1, s / 50])])
             for m, s in (("a", 1), ("a", 10), ("b", 10), ("b", 20))]  # fmt: skip
    found += [Group({"method": "a", "step_size": 100}, [trial([0.1, np.inf])])]
    found += [Group({"method": "b", "step_size": 50}, [trial([0.1, np.nan]), trial([0.1, 0.2])])]
    (ax,) = drawn("step-size-accuracy", found).axes
    assert ax.get_xscale() == "log" and ax.get_xlabel() == "step size"
    lines = [container.lines[0] for container in ax.containers]
    assert [line.get_xdata().tolist() for line in lines] == [[1, 10], [10, 20]]  # type: ignore[union-attr]
    assert lines[0].get_ydata() == pytest.approx([1.5, 15])
    found = [Group({"method": "m", "step_size": size}, [trial([0.5])]) for size in (0.03, 0.04, 0.05)]
    (ax,) = drawn("step-size-accuracy", found).axes
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0.03", "0.04", "0.05"]
    assert not len(ax.get_xticks(minor=True))


def test_a_band_of_accuracies_ends_at_0_and_100_percent() -> None:
    """Three trials 0.9, 1.0, 0.9: mean 93.3 %, standard deviation 5.8; with 0, 0, 0.3 it is 10 - 17.3 %."""
    high = Group({"method": "m"}, [trial([0.0, a]) for a in (0.9, 1.0, 0.9)])
    low = Group({"method": "n"}, [trial([0.0, a]) for a in (0.0, 0.0, 0.3)])
    (ax,) = draw_figure("accuracy", [high, low], Options(spread="sd")).axes
    tops = [np.asarray(band.get_paths()[0].vertices)[:, 1] for band in ax.collections]
    assert max(map(np.max, tops)) == pytest.approx(99.107, abs=1e-3) and min(map(np.min, tops)) == 0.0
    (ax,) = draw_figure("accuracy", [high, low], Options(spread="ci95")).axes
    assert max(np.asarray(band.get_paths()[0].vertices)[:, 1].max() for band in ax.collections) == 100.0


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The limits of the vertical axis of each figure that is saved."""
    found: list[tuple[float, float]] = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda self, *_, **__: found.append(self.axes[0].get_ylim())
    )
    return found


def test_the_bands_of_marked_points_are_inside(tmp_path: Path, limits: list[tuple[float, float]]) -> None:
    """On a logarithmic axis too, whose limits are set."""
    curve = DataFrame({"mean": [1.0, 20.0], "low": [0.25, 10.0], "high": [2.0, 80.0]}, index=[1.0, 25.0])
    draw_panels(tmp_path / "a.png", [Panel("", {"AREA": curve})], "delay", "step", markers=True)
    ((low, high),) = limits
    assert 0.1 < low < 0.25 and 80 < high < 200


def test_a_value_at_0_sets_no_limit_of_logarithmic_axes(tmp_path: Path, limits: list[tuple[float, float]]) -> None:
    curve = DataFrame({"mean": [1e6, 2.0, 1.0]}, index=[0.0, 1.0, 2.0])
    draw_panels(tmp_path / "a.png", [Panel("", {"AREA": curve})], "updates", "error", slope=-1)
    assert limits[0] == pytest.approx((1 / 1.2, 2 * 1.2))


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 1)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3))])
def test_rows_and_columns_of_panels(count: int, shape: tuple[int, int]) -> None:
    _, axes = style.panels([str(k) for k in range(count)], 7.0)
    assert axes[0].get_subplotspec().get_gridspec().get_geometry() == shape


def test_files_of_each_format(tmp_path: Path) -> None:
    """Fonts are embedded as TrueType in PDF, text is paths in SVG, and the same runs give the same bytes."""
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        draw_report(groups(2), folder, Options(figures=("staleness", "accuracy"), formats=("pdf", "svg"), width=3.3))
    names = ["accuracy.pdf", "accuracy.svg"]
    assert sorted(path.name for path in one.iterdir()) == names, "nothing is known of staleness"
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)
    pdf, svg = (one / "accuracy.pdf").read_bytes(), (one / "accuracy.svg").read_text()
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf and "<text" not in svg
    (width,) = re.findall(r'<svg [^>]*?width="([\d.]+)pt"', svg, re.S)
    assert float(width) == pytest.approx(3.3 * 72)


def test_contacts_and_their_timeline(tmp_path: Path) -> None:
    """A contact begins at the client's previous update, or at the aggregation of its version if that is later.

    From 1.5 to 2.6 s the timeline shows the contacts of both clients, and the aggregation with its two updates."""
    clients = {"samples": [3, 4], "rank": [0, 0], "rate": None}
    writer = RunWriter(tmp_path / "a.h5", Start({"name": "a", "config": ""}, clients, np.zeros(2), [("w", (2,))]))
    rows = [(1.0, 0, 0), (2.0, 1, 0), (3.0, 0, 0), (5.0, 1, 1)]  # time, client, version; the aggregation is at 2.5 s
    for k, (time, client, version) in enumerate(rows):
        if k == 2:
            writer.append(AggregationRow(2.5, 2))
        writer.append(UpdateRow(time, client, version, 0, 1, 30, 1.0, 10, 0.5, 0.4))
    writer.close("completed", np.zeros(2))
    found = read_contacts(tmp_path / "a.h5")
    assert found.start.tolist() == [0, 0, 1, 2.5] and found.end.tolist() == [1, 2, 3, 5] and found.clients == 2
    assert found.used[:2].tolist() == [2.5, 2.5] and np.isnan(found.used[2:]).all()
    # 30 of 40 bytes are the update's: it is in transit for 0.3 s after 0.5 s of computing
    assert found.computing[0] == pytest.approx([0.2, 0.7]) and found.computing[3] == pytest.approx([4.2, 4.7])

    (ax,) = draw_figure("timeline", group_trials([load_trial(tmp_path / "a.h5")]), Options(window=(1.5, 2.6))).axes
    assert ax.get_xlim() == (1.5, 2.6)
    (dots,) = (line for line in ax.get_lines() if line.get_marker() == "o")
    assert sorted(zip(*dots.get_data(), strict=True))[0] == (2.5, 1)
    with pytest.raises(ConfigError, match=r"window=2,1: not an interval of time; expected two times in seconds"):
        Options(window=(2.0, 1.0))
