"""The table of a paper's claims about its methods, each with a verdict that is computed from the runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from mpifl.tools.analysis.tables import escape_markdown
from mpifl.tools.analysis.trials import Group
from mpifl.tools.reproduce.published import Cell
from mpifl.tools.reproduce.spec import Claim, Page
from mpifl.tools.reproduce.values import (
    Difference,
    Summary,
    axis_of,
    find,
    label_text,
    matches,
    paired,
    summarise,
    units,
)

NOTE = (
    "Differences are left minus right, paired by seed, with the 95 % confidence interval of their mean (Student's t). "
    "A claim holds if all of the interval satisfies it, does not hold if none does, and is not decided otherwise, or "
    "with one seed. A trial that diverged, or never reaches a level, has the worst value: with such trials a claim "
    "holds if every pair satisfies it, and does not hold if none does."
)


def claim_section(
    page: Page, cells: Sequence[Cell], groups: Sequence[Group], level: int, null: Collection[Path] = ()
) -> Iterator[str]:
    """The blocks on the paper's claims; none without claims. null: run files whose final model is a null model."""
    if not page.claims:
        return
    rows, counts = [], dict.fromkeys(("holds", "does not hold", "not decided"), 0)
    for claim in [replace(c, measure=m) for c in page.claims for m in _list(c.measure)]:
        for left, right in _pairs(claim, groups):
            row, verdict = _judge(page, cells, claim, left, right, groups, null)
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
    page: Page, cells: Sequence[Cell], claim: Claim, left: Mapping[str, Any], right: Any, groups: Sequence[Group],
    null: Collection[Path],
) -> tuple[list[str], str]:  # fmt: skip
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
    sides = [summarise(measure, *unit) for unit in [*one, *two]]
    difference = paired(measure, one[0], two[0]) if two else Difference(sides[0].values - right)
    verdict = why = judge_difference(claim, difference)
    if any(trial.path in null for unit in [*one, *two] for group in unit for trial in group.trials):
        verdict, why = "not decided", "not decided: null models"
    here = f"{', '.join(_mean(side, d) for side in sides)}: {_format(difference, d)}"
    return [name, there, here, str(len(difference.values)), why], verdict


def _mean(side: Summary, digits: int) -> str:
    """The mean of one side, and how many of its trials diverged."""
    mean = f"{side.mean:.{digits}f}"
    if not side.diverged:
        return mean
    return f"{f'{mean} and ' if len(side.kept) else ''}{side.diverged} of {len(side.values)} diverged"


def _format(difference: Difference, digits: int) -> str:
    """The mean difference with its interval, or how many of the differences are not finite."""
    values, half = difference.values, difference.half_width
    if infinite := int((~np.isfinite(values)).sum()):
        return f"{infinite} of {len(values)} not finite"
    interval = f" ({difference.mean - half:+.{digits}f} to {difference.mean + half:+.{digits}f})"
    return f"{difference.mean:+.{digits}f}{'' if math.isnan(half) else interval}"


def judge_difference(claim: Claim, difference: Difference) -> str:
    """holds, does not hold, or not decided by these seeds."""
    values, half = difference.values, difference.half_width
    if not len(values):
        return "no values"
    if len(values) == 1:
        return "not decided"
    intervals = [(v, v) for v in values.tolist()]
    if np.isfinite(values).all():
        intervals = [(difference.mean - half, difference.mean + half)]
    found = [_compare(claim, *interval) for interval in intervals]
    return "holds" if all(h for h, _ in found) else "does not hold" if all(f for _, f in found) else "not decided"


def _compare(claim: Claim, low: float, high: float) -> tuple[bool, bool]:
    """Whether all differences from low to high satisfy the claim, and whether none does; NaN: neither."""
    if claim.relation == "near":
        return max(abs(low), abs(high)) <= claim.by, low > claim.by or high < -claim.by
    if claim.relation == "below":
        low, high = -high, -low
    return low > claim.by, high <= claim.by


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
