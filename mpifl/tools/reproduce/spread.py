"""The spread of a measure over one axis, such as the partition's seed, beside its spread over the trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from tabulate import tabulate

from mpifl.tools.analysis.trials import Group, by_other_labels
from mpifl.tools.reproduce.published import Cell, Value
from mpifl.tools.reproduce.spec import Page
from mpifl.tools.reproduce.values import axis_of, label_text, matches, summarise

NOTE = (
    "{axis}s inside: those whose mean is in the published range. Deviation over trials: standard deviation over the "
    "seeds at one {axis}, pooled; published: over ten trials, from their range divided by 3.08. Between {axis}s: the "
    "part of the variance of their means that the trials do not explain (0 if they explain it all), as a standard "
    "deviation."
)


def spread_section(page: Page, cells: Sequence[Cell], groups: Sequence[Group], level: int) -> Iterator[str]:
    """The blocks on the spread; none where the page asks for none."""
    if page.spread is None:
        return
    rows = []
    axis = axis_of(groups[0].labels, page.spread)
    for rest in by_other_labels(groups, [axis]):
        labels = {key: value for key, value in rest[0].labels.items() if key != axis}
        for name, measure in page.measures.items():
            values = [found.values for group in rest if len((found := summarise(measure, group)).values)]
            if measure.reaches is not None or not values:
                continue
            over, between = components(values)
            cell = next((c for c in cells if matches(labels, c.labels) and name in c.values), None)
            printed = cell.values[name] if cell else None
            published = printed.deviation if printed else math.nan
            means = [float(v.mean()) for v in values]
            d = measure.digits
            rows.append([*(label_text(v) for v in labels.values()), name,
                         f"{np.mean(means):.{d}f} ({min(means):.{d}f}-{max(means):.{d}f})",
                         printed.printed if printed else "-", _inside(means, printed),
                         *("-" if math.isnan(v) else f"{v:.{d}f}" for v in (over, between, published))])  # fmt: skip
    axis_name = page.spread.replace("_", " ")
    yield f"{'#' * (level + 1)} Spread over {axis_name}: {page.title}"
    columns = [
        "measure", f"here: mean (least-most mean of a {axis_name})", "published", f"{axis_name}s inside",
        "deviation over trials", f"between {axis_name}s", "published",
    ]  # fmt: skip
    headings = [*(key.replace("_", " ") for key in labels), *columns]
    yield tabulate(rows, headings, "pipe", disable_numparse=True)
    note = NOTE.format(axis=axis_name)
    yield note[0].upper() + note[1:]


def _inside(means: Sequence[float], printed: Value | None) -> str:
    """How many of the means are in the published range, of how many; "-" where none is printed."""
    if printed is None or math.isnan(printed.low):
        return "-"
    return f"{sum(printed.low <= mean <= printed.high for mean in means)} of {len(means)}"


def components(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """Standard deviations of a one-way layout: within the groups, pooled, and between their means beyond that.

    NaN where a group has one value alone, or where there is one group.
    """
    freedom = sum(len(v) - 1 for v in values)
    within = sum(float(((v - v.mean()) ** 2).sum()) for v in values) / freedom if freedom else math.nan
    if len(values) < 2:
        return math.sqrt(within), math.nan
    of_means = float(np.var([v.mean() for v in values], ddof=1))
    trials = len(values) / sum(1 / len(v) for v in values)
    return math.sqrt(within), math.sqrt(max(0.0, of_means - within / trials))
