"""Statistics of paired trials: interval of a mean difference, tests, Holm's correction, effect size, sample size.

Trials are paired by seed within a setting: the same data, draws and delays, with another method. Each setting has an
array (pairs,) of its own. Mean differences give all settings the same weight; ranks and interquartile means pool all
settings, so that a setting with more pairs has more weight there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

LEVEL = 0.05  # significance level of tests; intervals have the level 1 - LEVEL
POWER = 0.8  # power for which the sample size is computed
RESAMPLES = 9999  # samples of a permutation test that is not exact, and of a bootstrap
MOST_EXACT = 13  # pairs of which all exchanges are tried: 2**13 < RESAMPLES
MOST_TRIALS = 100_000  # largest sample size that is tried


class Interval(NamedTuple):
    """An estimate and its 95 % interval, whose ends are NaN where there are too few values, or infinite ones."""

    estimate: float
    low: float
    high: float


def mean_difference(differences: Sequence[np.ndarray]) -> Interval:
    """The mean over the settings of each setting's mean difference, with Student's interval.

    Its variance is that of a stratified mean; the degrees of freedom are those of Welch and Satterthwaite: for one
    setting pairs - 1, which is the paired t interval.
    """
    from scipy.special import stdtrit

    strata = len(differences)
    counts = np.array([len(each) for each in differences])
    with np.errstate(over="ignore", invalid="ignore"):  # losses may be 1e200, or infinite
        estimate = float(np.mean([each.mean() for each in differences]))
        parts = np.array([each.var(ddof=1) if len(each) > 1 else np.nan for each in differences]) / counts / strata**2
    if not np.isfinite(estimate) or not np.isfinite(variance := parts.sum()):
        return Interval(estimate, np.nan, np.nan)
    if not variance:
        return Interval(estimate, estimate, estimate)
    shares = parts / variance
    freedom = 1 / (shares**2 / (counts - 1)).sum()
    half = float(stdtrit(freedom, 1 - LEVEL / 2)) * sqrt(variance)
    return Interval(estimate, estimate - half, estimate + half)


def signed_rank_test(differences: Sequence[np.ndarray]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test of all pairs; 1 where no pair differs.

    Exact for at most 50 pairs that differ, or MOST_EXACT where some of them are equal in size; else by the normal
    approximation (`scipy.stats.wilcoxon`).
    """
    from scipy.stats import rankdata, wilcoxon

    values = np.concatenate(differences)
    values = values[values != 0]  # as `wilcoxon` does, but after its choice between the two
    if not len(values):
        return 1.0
    ranks = rankdata(np.abs(values))
    if len(values) <= MOST_EXACT and len(np.unique(ranks)) < len(ranks):  # as `wilcoxon` does, in a 40th of its time
        return permutation_test([ranks * np.sign(values)])
    return float(wilcoxon(values).pvalue)


def smallest_p(pairs: int) -> float:
    """The smallest p-value that so many pairs can have in these tests, two-sided: that of all on one side."""
    return 2.0 ** (1 - pairs)


def permutation_test(differences: Sequence[np.ndarray]) -> float:
    """The two-sided p-value of `mean_difference` under all exchanges of the two methods within pairs.

    Exact for at most MOST_EXACT pairs, else over random exchanges (`scipy.stats.permutation_test`), with the same draws
    at each call.
    """
    from scipy.stats import permutation_test

    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in differences])
    result = permutation_test(
        (np.concatenate(differences),), lambda values, axis: (values * weights).sum(axis), vectorized=True,
        permutation_type="samples", n_resamples=RESAMPLES, rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(result.pvalue)


def rank_biserial(differences: Sequence[np.ndarray]) -> float:
    """The matched-pairs rank-biserial correlation, from -1 to 1: (W+ - W-) / (W+ + W-), W the sums of signed ranks."""
    from scipy.stats import rankdata

    values = np.concatenate(differences)
    values = values[values != 0]
    if not len(values):
        return 0.0
    ranks = rankdata(np.abs(values))
    return float((ranks * np.sign(values)).sum() / ranks.sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values after Holm's correction (Scand. J. Stat. 6, 1979) for as many tests, in the same order."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.asarray(p_values, float)[order] * (len(p_values) - np.arange(len(p_values)))
    found = np.empty(len(p_values))
    found[order] = np.minimum(1.0, np.maximum.accumulate(adjusted))
    return [float(p) for p in found]


def interquartile_mean(values: Sequence[np.ndarray]) -> Interval:
    """The mean of the middle half of all settings' values, with a stratified bootstrap's percentile interval.

    Trials are resampled within each setting, as Agarwal et al. (NeurIPS 2021) recommend, with the same draws at each
    call.
    """
    from scipy.stats import bootstrap, trim_mean

    def statistic(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis))

    estimate = float(statistic(*values))
    if min(map(len, values)) < 2 or not np.isfinite(np.concatenate(values)).all():
        return Interval(estimate, np.nan, np.nan)
    if all(np.ptp(each) == 0 for each in values):
        return Interval(estimate, estimate, estimate)
    with np.errstate(over="ignore"):  # losses may be 1e200
        result = bootstrap(
            values, statistic, n_resamples=RESAMPLES, vectorized=True, confidence_level=1 - LEVEL, method="percentile",
            rng=np.random.default_rng(0), batch=999,
        )  # fmt: skip
    return Interval(estimate, *map(float, result.confidence_interval))


def power_of(trials: int, difference: float, deviation: float) -> float:
    """The power of the two-sided paired t test; deviation: standard deviation of the paired differences."""
    from scipy.special import nctdtr, stdtrit

    bound, shift = stdtrit(trials - 1, 1 - LEVEL / 2), abs(difference) / deviation * sqrt(trials)
    inside, below = np.nan_to_num(nctdtr(trials - 1, shift, [bound, -bound]))  # SciPy has NaN for the tiniest ones
    return float(1 - inside + below)


def trials_needed(difference: float, deviation: float) -> float:
    """The smallest number of trials that detects a difference with power 0.8; inf where `MOST_TRIALS` are too few.

    deviation: standard deviation of the paired differences.
    """
    if not deviation:
        return 2
    sizes = range(2, MOST_TRIALS + 1)
    smaller = bisect_left(sizes, POWER, key=lambda trials: power_of(trials, difference, deviation))
    return sizes[smaller] if smaller < len(sizes) else inf
