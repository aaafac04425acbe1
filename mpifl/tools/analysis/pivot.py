"""`mpifl report --pivot`: methods as rows, the values of an axis as columns, one metric in the cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Any

import numpy as np
import pandas as pd

from mpifl.errors import ConfigError
from mpifl.text import capitalised
from mpifl.tools.analysis import latex
from mpifl.tools.analysis.curves import metric_label
from mpifl.tools.analysis.figures import find_label
from mpifl.tools.analysis.options import Options, is_percentage, scale_of
from mpifl.tools.analysis.significance import LEVEL, holm, signed_rank_test, smallest_p
from mpifl.tools.analysis.spread import SPREADS, half_width
from mpifl.tools.analysis.tables import Table, format_number, format_spread, statistics
from mpifl.tools.analysis.trials import Group, count_trials, format_value, have_values

_APART = ", and those that the signed-rank test does not distinguish from it (5 %, Holm)"
WORDS = {"range": "mean (smallest–largest)", "sd": "mean ± standard deviation",
         "ci95": "mean ± half the 95 % confidence interval"}  # fmt: skip


def build_pivot(
    groups: Sequence[Group], options: Options, tuned: Sequence[str] = (), notes: Sequence[str] = ()
) -> Table:
    """The pivot of the groups. tuned: labels that were selected for each method, no rows. Raises ConfigError.

    In each column the best mean is marked, and so are the means that the signed-rank test does not distinguish from it,
    in pairs of trials with the same seed, with Holm's correction for the column, if there are enough trials for it.
    """
    from scipy.stats import rankdata

    axis = find_label(options.pivot or "", groups, "pivot")
    metric = options.columns[0] if options.columns else "test_accuracy"
    if options.columns and len(options.columns) > 1:
        raise ConfigError("columns", ",".join(options.columns), "a pivot has one metric in its cells", "one name")
    if not have_values(groups, metric):
        raise ConfigError(
            "columns", metric, "no run has a value of it", "a metric of the evaluations", "name one with --columns"
        )
    names = [label for label in groups[0].labels if label != axis and label not in tuned]
    if not names:
        raise ConfigError("pivot", options.pivot, "the runs differ in nothing else", "a study with methods as well")
    columns = list(dict.fromkeys(format_value(group.labels[axis]) for group in groups))
    cells: dict[tuple[str, ...], dict[str, Group]] = {}
    for group in groups:
        row = cells.setdefault(tuple(format_value(group.labels[name]) for name in names), {})
        if (column := format_value(group.labels[axis])) in row:
            wrong = f"{group.name} is in the same cell as {row[column].name}"
            raise ConfigError("pivot", options.pivot, wrong, "a study whose rule selects one of them")
        row[column] = group
    sign = -1.0 if is_percentage(metric) else 1.0
    marked: set[tuple[int, int]] = set()
    tested: list[bool] = []  # for each column with several finite means: whether it has enough trials for the test
    ranks = np.full((len(cells), len(columns)), np.nan)
    for j, column in enumerate(columns):
        found = {k: row[column] for k, row in enumerate(cells.values()) if column in row}
        scores = {k: sign * _mean(group, metric) for k, group in found.items()}
        best, enough = _best(found, scores, metric)
        marked |= {(k, len(names) + j) for k in best}
        tested += [] if enough is None else [enough]
        ranks[list(scores), j] = rankdata(list(scores.values()))
    digits = [_digits([row[c] for row in cells.values() if c in row], metric, options.spread) for c in columns]
    rows: list[list[str]] = []
    data: list[dict[str, Any]] = []  # values with all digits
    for (labels, row), each in zip(cells.items(), ranks, strict=True):
        data.append(dict(zip(names, labels, strict=True)))
        for column, group in row.items():
            data[-1] |= statistics(f"{axis} {column}", group.last(metric))
        data[-1]["rank"] = np.nanmean(each) if np.isfinite(each).any() else np.nan
        texts = [_cell(row.get(c), metric, options.spread, d) for c, d in zip(columns, digits, strict=True)]
        rows.append([*labels, *texts, format_number(data[-1]["rank"], 1)])
    trials = count_trials(groups)
    full = all(len(row) == len(columns) for row in cells.values())
    apart = _APART if all(tested) else f"{_APART}, in columns with enough trials for it"
    chosen = (f"the best of its column{apart if any(tested) else ''}. Rank: mean over the columns"
              f"{'' if full else ' in which a row has trials'}.")  # fmt: skip
    plain = [f"{axis.replace('_', ' ')} {column}" for column in columns]
    known = [f"{metric_label(metric)}: {SPREADS[options.spread]}, {trials}. Marked: {chosen}", *notes]
    if (wide := latex.width_of([*names, *columns, "rank"], rows)) > options.width:
        known.append(f"Caution: the LaTeX table is about {wide:.1f} inches wide, more than the {options.width:g} of "
                     "--width; leave out columns, or give --width 7.")  # fmt: skip
    style = latex.Style(
        options.caption or capitalised(metric_label(metric)), options.label,
        f"{capitalised(WORDS[options.spread])} over {trials} at the end of each run. Bold: {chosen}",
        options.width <= latex.COLUMN, options.siunitx, [*names, *columns, "rank"],
        (axis.replace("_", " "), len(names), len(columns)),
    )  # fmt: skip
    titles = [*names, *plain, "rank"]
    return Table(titles, rows, len(names), [False] * len(rows), known, frozenset(marked), style, pd.DataFrame(data))


def _mean(group: Group, metric: str) -> float:
    """The mean over the trials; infinite where one of them diverged or has no value."""
    values = np.array([trial.last(metric) for trial in group.trials])
    worst = -np.inf if is_percentage(metric) else np.inf
    return float(np.where(np.isfinite(values), values, worst).mean())


def _best(found: Mapping[int, Group], scores: Mapping[int, float], metric: str) -> tuple[list[int], bool | None]:
    """The rows with the smallest score, and those that the test does not distinguish from them.

    Then whether there are enough trials for the signed-rank test; None where there is nothing to distinguish.
    """
    finite = {k: score for k, score in scores.items() if np.isfinite(score)}
    if not finite:
        return [], None
    top = min(finite, key=lambda k: finite[k])
    best = [k for k, score in finite.items() if score == finite[top]]
    others = [k for k in finite if k not in best]
    values = {k: {key: trial.last(metric) for key, trial in found[k].by_seed().items()} for k in finite}
    pairs = [np.array([values[k][s] - values[top][s] for s in values[k] if s in values[top]]) for k in others]
    if not others:
        return best, None
    if min(map(len, pairs)) == 0 or len(others) * smallest_p(min(map(len, pairs))) > LEVEL:
        return best, False
    p_values = holm([signed_rank_test([each]) for each in pairs])
    return best + [k for k, p in zip(others, p_values, strict=True) if p >= LEVEL], True


def _halves(groups: Sequence[Group], metric: str, spread: str) -> list[float]:
    """The half widths of the spread, as tables show them, that are known and not 0."""
    halves = [float(half_width(group.last(metric) * scale_of(metric), spread)) for group in groups]
    return [half for half in halves if np.isfinite(half) and half]


def _digits(groups: Sequence[Group], metric: str, spread: str) -> int:
    """The decimals of a column: such that a typical spread has two digits."""
    halves = [] if spread == "range" else _halves(groups, metric, spread)
    return min(6, max(0, 1 - floor(log10(float(np.median(halves)))))) if halves else 2


def _cell(group: Group | None, metric: str, spread: str, digits: int) -> str:
    """Mean and spread; "-" for a combination that the study does not have."""
    if group is None:
        return "-"
    values, half = group.last(metric) * scale_of(metric), _halves([group], metric, spread)
    if spread == "range" or not half or half[0] < 10.0**-digits or max(abs(values.mean()), half[0]) >= 1e6:
        return format_spread(values, len(group.trials), spread)
    few = f", {len(values)} of {len(group.trials)}" if len(values) < len(group.trials) else ""
    return f"{values.mean():.{digits}f} ± {half[0]:.{digits}f}{few}"
