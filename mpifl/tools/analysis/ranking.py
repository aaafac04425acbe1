"""Many methods on many problems: performance profiles, mean ranks and their critical difference.

Tables have a row for each problem and a column for each method.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd

from mpifl.tools.analysis.significance import LEVEL


def performance_profile(costs: pd.DataFrame, factors: Sequence[float] | None = None) -> pd.DataFrame:
    """The share of the problems that each method solves at a cost of at most a factor times the smallest one.

    Dolan and Moré (Math. Program. 91, 2002). costs: such as the time to reach an accuracy, above 0; NaN and inf: not
    solved, which no factor reaches. factors: the index of the result; None: all at which a share changes. Raises
    ValueError for a cost of 0 or less.
    """
    solved = costs.astype(float).fillna(inf)
    if (solved <= 0).any(axis=None):
        raise ValueError("a cost is not above 0")
    with np.errstate(invalid="ignore"):  # a problem that no method solves: inf / inf
        ratios = solved.div(solved.min(axis=1), axis=0).fillna(inf).to_numpy()
    places = np.unique(ratios[np.isfinite(ratios)]) if factors is None else np.asarray(factors, float)
    shares = [np.searchsorted(np.sort(column), places, side="right") / len(ratios) for column in ratios.T]
    return pd.DataFrame(np.transpose(shares), index=places, columns=costs.columns)


class RankTest(NamedTuple):
    """The ranks of methods, and the tests of Friedman and Nemenyi (Demšar, JMLR 7, 2006)."""

    ranks: pd.Series
    """mean rank of each method over the problems, ascending; 1: best on each of them"""
    problems: int
    statistic: float
    """Friedman's chi-square, corrected for ties as in `scipy.stats.friedmanchisquare`"""
    p: float
    """p-value of the hypothesis that all methods are alike"""
    difference: float
    """critical difference of two mean ranks, by Nemenyi's test at the level of 5 %"""

    @property
    def groups(self) -> list[list[str]]:
        """The largest sets of methods whose mean ranks differ by less than the critical difference."""
        ranks = self.ranks.to_numpy()
        ends = np.searchsorted(ranks, ranks + self.difference).tolist()  # one after a set that begins here
        starts = [k for k in range(len(ranks)) if ends[k] > k + 1 and (k == 0 or ends[k] > ends[k - 1])]
        return [list(self.ranks.index[k : ends[k]]) for k in starts]


def rank_test(scores: pd.DataFrame, large: bool = False) -> RankTest:
    """Ranks at least three methods by their scores on each problem; equal scores share the mean of their ranks.

    large: whether large scores are good. A score that is NaN is the worst.
    """
    from scipy.stats import friedmanchisquare, rankdata

    ranks = rankdata((-scores if large else scores).astype(float).fillna(inf), axis=1)
    problems, methods = ranks.shape
    statistic, p = 0.0, 1.0  # all methods are equal on all problems
    if np.ptp(ranks, axis=1).any():
        statistic, p = map(float, friedmanchisquare(*ranks.T))
    means = pd.Series(ranks.mean(axis=0), index=scores.columns).sort_values(kind="stable")
    return RankTest(means, problems, statistic, p, critical_difference(methods, problems))


def critical_difference(methods: int, problems: int, level: float = LEVEL) -> float:
    """Nemenyi's critical difference of two mean ranks: q sqrt(k (k + 1) / (6 N)) of k methods on N problems.

    q is the 1 - level quantile of the studentised range of k values with infinite degrees of freedom, over sqrt(2).
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - level, methods, inf)) / sqrt(2)
    return q * sqrt(methods * (methods + 1) / (6 * problems))
