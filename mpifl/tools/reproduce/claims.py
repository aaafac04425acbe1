"""The table of a paper's claims about its methods, each with a verdict that is computed from the runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tabulate import tabulate

from mpifl.tools.analysis.tables import escape_markdown
from mpifl.tools.analysis.trials import Group
from mpifl.tools.reproduce.published import Cell
from mpifl.tools.reproduce.spec import Claim, Page
from mpifl.tools.reproduce.values import Difference, axis_of, find, label_text, matches, paired, summarise, units

NOTE = (
    "Differences are left minus right, paired by seed, with the 95 % confidence interval of their mean (Student's t). "
    "A claim holds if all of the interval satisfies it, does not hold if none does, and is not decided otherwise, or "
    "with one seed."
)


def claim_section(page: Page, cells: Sequence[Cell], groups: Sequence[Group], level: int) -> Iterator[str]:
    """The blocks on the paper's claims; none without claims."""
    if not page.claims:
        return
    rows, counts = [], dict.fromkeys(("holds", "does not hold", "not decided"), 0)
    for claim in [replace(c, measure=m) for c in page.claims for m in _list(c.measure)]:
        for left, right in _pairs(claim, groups):
            row, verdict = _judge(page, cells, claim, left, right, groups)
            rows.append(row)
            if verdict in counts:
                counts[verdict] += 1
    yield f"{'#' * (level + 1)} Claims: {page.title}"
    headings = ["claim", "published", "here", "seeds", "verdict"]
    yield tabulate([[escape_markdown(str(c)) for c in row] for row in rows], headings, "pipe", disable_numparse=True)
    holds, fails, open_ = counts.values()
    yield f"Claims that hold: {holds}; that do not: {fails}; not decided: {open_}. {NOTE}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pairs(claim: Claim, groups: Sequence[Group]) -> Iterator[tuple[dict[str, Any], Any]]:
    """The two sides of a claim, for each value of its axis and each of its right sides."""
    extra: list[dict[str, Any]] = [{}]
    if claim.each:
        axes = [(axis_of(group.labels, claim.each), group) for group in groups]
        values = dict.fromkeys(label_text(group.labels[axis]) for axis, group in axes if axis)
        extra = [{claim.each: value} for value in values]
    for more in extra:
        for right in _list(claim.right):
            yield {**claim.left, **more}, {**right, **more} if isinstance(right, Mapping) else right


def _judge(
    page: Page, cells: Sequence[Cell], claim: Claim, left: Mapping[str, Any], right: Any, groups: Sequence[Group]
) -> tuple[list[str], str]:
    """One row of the table, and its verdict."""
    key = str(claim.measure)
    measure = page.measures[key]
    published = _published(cells, key, left, right)
    if claim.relation == "published" and not math.isnan(published):
        claim = replace(claim, relation="above" if published > 0 else "below")
    name = f"{claim.measure} of {_text(left)} {claim.relation} "
    name += _text(right) if isinstance(right, Mapping) else f"{right:g}"
    name += f" by {claim.by:g}" if claim.by else ""
    name += f" ({claim.source})" if claim.source else ""
    one = units(measure, find(groups, left))
    two = units(measure, find(groups, right)) if isinstance(right, Mapping) else []
    d = measure.digits
    there = "-" if math.isnan(published) else f"{published:+.{d}f}"
    missing = len(one) != 1 or (isinstance(right, Mapping) and len(two) != 1)
    if missing or claim.relation == "published":
        why = "not run" if missing else "not published"
        return [name, there, "-", "0", why], why
    if isinstance(right, Mapping):
        difference = paired(measure, one[0], two[0])
        means = f"{summarise(measure, *one[0]).mean:.{d}f}, {summarise(measure, *two[0]).mean:.{d}f}: "
    else:
        values = summarise(measure, *one[0]).values
        difference, means = Difference(values - right), f"{values.mean() if len(values) else math.nan:.{d}f}: "
    verdict = judge_difference(claim, difference)
    half = difference.half_width
    interval = "" if math.isnan(half) else f" ({difference.mean - half:+.{d}f} to {difference.mean + half:+.{d}f})"
    return [
        name,
        there,
        f"{means}{difference.mean:+.{d}f}{interval}",
        str(len(difference.values)),
        verdict,
    ], verdict


def judge_difference(claim: Claim, difference: Difference) -> str:
    """holds, does not hold, or not decided by these seeds."""
    if math.isnan(difference.mean):
        return "no values"
    if math.isnan(half := difference.half_width):
        return "not decided"
    low, high = difference.mean - half, difference.mean + half
    if claim.relation == "near":
        holds, fails = max(abs(low), abs(high)) <= claim.by, low > claim.by or high < -claim.by
    else:
        if claim.relation == "below":
            low, high = -high, -low
        holds, fails = low > claim.by, high <= claim.by
    return "holds" if holds else "does not hold" if fails else "not decided"


def _published(cells: Sequence[Cell], measure: str, left: Mapping[str, Any], right: Any) -> float:
    """The difference of the published means; NaN where one is not published."""
    means = []
    for side in (left, right):
        if not isinstance(side, Mapping):
            means.append(float(side))
            continue
        found = [cell for cell in cells if matches(cell.labels, side) and measure in cell.values]
        means.append(found[0].values[measure].mean if len(found) == 1 else math.nan)
    return means[0] - means[1]


def _text(labels: Mapping[str, Any]) -> str:
    """Labels in one clause: the first value, then the others with their axes."""
    (_, first), *rest = labels.items()
    return ", ".join([label_text(first), *(f"{axis} {label_text(value)}".replace("_", " ") for axis, value in rest)])
