"""The table of a paper's claims about its methods, each with a verdict that is computed from the runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

from mpifl.tools.analysis.spread import half_width
from mpifl.tools.analysis.tables import escape_markdown
from mpifl.tools.analysis.trials import Group, number_above_0
from mpifl.tools.reproduce.published import Cell
from mpifl.tools.reproduce.spec import Claim, Measure, Page
from mpifl.tools.reproduce.values import (
    Summary,
    axis_of,
    find,
    format_number,
    label_text,
    matches,
    paired,
    summarise,
    units,
)

NOTE = (
    "*Here*: the means over the trials of the left and the right side, then left minus right, with the 95 % confidence "
    "interval of its mean (Student's t); trials are paired by seed, and the right side is multiplied by the factor of "
    "the claim. *Published*: the difference of the printed values. A claim holds if the whole interval satisfies it, "
    "does not hold if no part of it does, and is not decided otherwise, or with one seed. A trial that diverged, or "
    "never reaches a level, has the worst value: with such trials a claim holds if every pair satisfies it, and does "
    "not hold if none does. *Seeds to decide*: the smallest number with which the interval would exclude the bound if "
    "mean and standard deviation stayed the same. Shares of the horizon are those of the mean curves, as papers print "
    "them, without an interval; if two differ by no more than the interval between evaluations, the claim is not "
    "decided."
)
CHECK = "check: "  # before the verdict of a claim that is not counted
HEADINGS = ("claim", "published", "here", "seeds", "seeds to decide", "verdict")
VERDICTS = ("holds", "does not hold", "not decided")
MOST_SEEDS = 1000  # from this number on the table says "1000 or more"


class Row(NamedTuple):
    """A claim with its verdict, as it stands in the table."""

    claim: str
    published: str
    """the difference of the published values"""
    here: str
    """both values, their difference and its interval"""
    seeds: str
    to_decide: str
    """the number of seeds that would decide a claim that is not decided"""
    verdict: str


def judge_claims(page: Page, cells: Sequence[Cell], groups: Sequence[Group], null: Collection[Path] = ()) -> list[Row]:
    """The verdicts on the paper's claims. null: run files whose final model is a null model."""
    rows = []
    for claim in [replace(c, measure=m) for c in page.claims for m in _list(c.measure)]:
        for left, right in _pairs(claim, groups):
            row = _judge(page, cells, claim, left, right, groups, null)
            rows.append(row._replace(verdict=CHECK + row.verdict) if claim.check else row)
    return rows


def claim_table(rows: Sequence[Sequence[str]], headings: Sequence[str] = HEADINGS) -> Iterator[str]:
    """The table of claims, whose last column is the verdict, and how many of them hold; `NOTE` explains it.

    Columns without values are left out.
    """
    kept = [k for k in range(len(headings)) if any(row[k] != "-" for row in rows)]
    cells = [[escape_markdown(row[k]) for k in kept] for row in rows]
    yield tabulate(cells, [headings[k] for k in kept], "pipe", disable_numparse=True)
    holds, fails, open_ = (sum(row[-1].partition(":")[0] == verdict for row in rows) for verdict in VERDICTS)
    checks = " Checks are not counted." if any(row[-1].startswith(CHECK) for row in rows) else ""
    yield f"Claims that hold: {holds}; that do not: {fails}; not decided: {open_}.{checks}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pairs(claim: Claim, groups: Sequence[Group]) -> Iterator[tuple[dict[str, Any], Any]]:
    """The two sides of a claim, for each value of its axis and each of its right sides."""
    extra: list[dict[str, Any]] = [{}]
    if claim.each:
        axes = [(axis_of(group.labels, claim.each), group) for group in groups]
        known = (label_text(group.labels[axis]) for axis, group in axes if axis)
        values = dict.fromkeys(map(label_text, claim.values) if claim.values else known)
        extra = [{claim.each: value} for value in values]
    for more in extra:
        for right in _list(claim.right):
            yield {**claim.left, **more}, {**right, **more} if isinstance(right, Mapping) else right


def _judge(
    page: Page, cells: Sequence[Cell], claim: Claim, left: Mapping[str, Any], right: Any, groups: Sequence[Group],
    null: Collection[Path],
) -> Row:  # fmt: skip
    measure = page.measures[str(claim.measure)]
    published = _published(cells, claim, left, right)
    claim = _directed(claim, published, measure.digits)
    name = _name(claim, left, right)
    one = units(measure, find(groups, left))
    two = units(measure, find(groups, right)) if isinstance(right, Mapping) else []
    bound = "" if isinstance(right, Mapping) else f"{claim.times * right:.12f}".rstrip("0").partition(".")[2]
    d = max(measure.digits, len(bound))
    there = f"{published:+.{d}f}" if math.isfinite(published) else "-"
    missing = len(one) != 1 or (isinstance(right, Mapping) and len(two) != 1)
    if missing or claim.relation == "published":
        why = "not run" if missing else "not published" if math.isnan(published) else "printed values equal"
        return Row(name, there, "-", "0", "-", why)
    sides = [summarise(measure, *unit) for unit in [*one, *two]]
    if measure.of_horizon:
        first, second = sides[0].mean, sides[1].mean if two else right
        here = f"{format_number(measure, first)}, {format_number(measure, second)}"
        group = one[0][0]
        interval = number_above_0(group.trials[0].config.get("evaluate.every")) or 0.0
        verdict = judge_means(claim, first, second, interval / group.horizon)
        return Row(name, there, here, str(len(sides[0].values)), "-", verdict)
    values = paired(measure, one[0], two[0], claim.times) if two else sides[0].values - claim.times * right
    verdict, seeds = judge_difference(claim, values), len(values)
    needed = "-"
    if any(trial.path in null for unit in [*one, *two] for group in unit for trial in group.trials):
        verdict = "not decided: null models"
    elif verdict == "not decided" and seeds > 1 and np.isfinite(values).all():
        needed = seeds_to_decide(claim, values)
    here = f"{', '.join(_mean_value(measure, side) for side in sides)}: {_format(values, d)}"
    return Row(name, there, here, str(seeds), needed, verdict)


def _mean_value(measure: Measure, side: Summary) -> str:
    """The mean over the trials of one side, and how many of them diverged or never reach the level."""
    if measure.reaches is not None:
        reached = side.values[np.isfinite(side.values)]
        mean = format_number(measure, float(reached.mean()) if len(reached) else math.inf)
        never = len(side.values) - len(reached)
        return f"{mean} and {never} of {len(side.values)} never" if len(reached) and never else mean
    mean = format_number(measure, side.mean)
    if not side.diverged:
        return mean
    return f"{f'{mean} and ' if len(side.kept) else ''}{side.diverged} of {len(side.values)} diverged"


def _interval(values: np.ndarray) -> tuple[float, float]:
    """The mean, and half its 95 % confidence interval by Student's t; NaN: too few values."""
    return float(np.mean(values)) if len(values) else math.nan, float(half_width(values, "ci95"))


def _format(values: np.ndarray, digits: int) -> str:
    """The mean difference with its interval, or how many of the differences are not finite."""
    if infinite := int((~np.isfinite(values)).sum()):
        return f"{infinite} of {len(values)} not finite"
    mean, half = _interval(values)
    low, middle, high = (f"{round(value, digits) + 0.0:+.{digits}f}" for value in (mean - half, mean, mean + half))
    return middle if math.isnan(half) else f"{middle} ({low} to {high})"


def _directed(claim: Claim, published: float, digits: int) -> Claim:
    """A claim `published` with the relation of the printed means; unchanged where they are equal or not printed."""
    if claim.relation != "published" or not abs(published) > 0.5 * 10**-digits:
        return claim
    return replace(claim, relation="above" if published > 0 else "below")


def _name(claim: Claim, left: Mapping[str, Any], right: Any) -> str:
    """The claim in words."""
    verbs = {"near": f"is within {claim.by:g} of", "published": "compared with"}
    name = f"{claim.measure}{' of ' * bool(left)}{_text(left)} {verbs.get(claim.relation, f'is {claim.relation}')} "
    name += f"{claim.times:g} times " if claim.times != 1 else ""
    name += f"that of {_text(right)}" if isinstance(right, Mapping) else f"{right:g}"
    name += f" by more than {claim.by:g}" if claim.by and claim.relation != "near" else ""
    return name + (f" ({claim.source})" if claim.source else "")


def judge_difference(claim: Claim, values: np.ndarray) -> str:
    """holds, does not hold, or not decided, by the differences of these seeds; no values where there are none."""
    if not len(values):
        return "no values"
    if len(values) == 1:
        return "not decided"
    intervals = [(v, v) for v in values.tolist()]
    if np.isfinite(values).all():
        mean, half = _interval(values)
        intervals = [(mean - half, mean + half)]
    found = [_compare(claim, *interval) for interval in intervals]
    return "holds" if all(h for h, _ in found) else "does not hold" if all(f for _, f in found) else "not decided"


def _compare(claim: Claim, low: float, high: float) -> tuple[bool, bool]:
    """Whether all differences from low to high satisfy the claim, and whether none does; NaN: neither."""
    if claim.relation == "near":
        return max(abs(low), abs(high)) <= claim.by, low > claim.by or high < -claim.by
    if claim.relation == "below":
        low, high = -high, -low
    return low > claim.by, high <= claim.by


def judge_means(claim: Claim, left: float, right: float, resolution: float = 0.0) -> str:
    """holds, does not hold or not decided, by two numbers, of which one may be inf; "no values": neither is finite.

    resolution: both are rounded up to multiples of it, so that a difference which is not larger does not decide.
    """
    if not math.isfinite(left) and not math.isfinite(right):
        return "no values"
    difference = left - claim.times * right
    least = max(1.0, claim.times) * resolution * (1 + 1e-9)
    if resolution and claim.relation != "near" and abs(difference) <= least:
        return "not decided"
    return "holds" if _compare(claim, difference, difference)[0] else "does not hold"


def seeds_to_decide(claim: Claim, values: np.ndarray) -> str:
    """The smallest number of seeds whose interval excludes the bound, if mean and deviation stay as they are."""
    from scipy.special import stdtrit

    mean, by = float(np.mean(values)), -claim.by if claim.relation == "below" else claim.by
    distance = abs(abs(mean) - by) if claim.relation == "near" else abs(mean - by)
    seeds = np.arange(2, MOST_SEEDS)
    half_widths = stdtrit(seeds - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(seeds)
    enough = seeds[half_widths < distance]
    return str(enough[0]) if len(enough) else f"{MOST_SEEDS} or more"


def _published(cells: Sequence[Cell], claim: Claim, left: Mapping[str, Any], right: Any) -> float:
    """The difference of the published means; NaN where one is not published. A bound such as >1 is infinite."""
    means = []
    for side in (left, right):
        if not isinstance(side, Mapping):
            means.append(float(side))
            continue
        found = [cell.values for cell in cells if matches(cell.labels, side)]
        value = found[0].get(str(claim.measure)) if len(found) == 1 else None
        means.append(math.nan if value is None else math.inf if value.printed.startswith(">") else value.mean)
    return means[0] - claim.times * means[1]


def _text(labels: Mapping[str, Any]) -> str:
    """Labels in one clause: values with their axes, the first one without it unless it is a number."""
    texts = [f"{axis} {label_text(value)}".replace("_", " ") for axis, value in labels.items()]
    first = label_text(next(iter(labels.values()), "0"))
    texts[:1] = texts[:1] if first.replace(".", "").isdigit() else [first]
    return ", ".join(texts)
