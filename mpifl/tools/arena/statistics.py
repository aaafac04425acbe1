"""Statistics over the arena's results: ranks, how stable they are, and which methods are not distinguishable.

A score is an array (scenarios, methods, seeds) of a measure; small values are good, inf: failed, or target not reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpifl.tools.analysis.significance import LEVEL, Interval, holm, mean_difference, signed_rank_test
from mpifl.tools.arena.table import Row

SPLITS = 200  # random halves of the seeds
RESAMPLES = 999  # samples of the bootstrap over scenarios and seeds
ACCURACIES = ("accuracy", "worst")  # measures with good large values; the score is the negative, in percent


def scores(rows: Sequence[Row], measure: str, scenarios: Sequence[str], methods: Sequence[str]) -> np.ndarray:
    """(scenarios, methods, seeds) the measure of the reporting runs; a run that is not in the rows counts as failed."""
    seeds = sorted({row.seed for row in rows if row.role == "reporting"})
    found = np.full((len(scenarios), len(methods), len(seeds)), np.inf)
    for row in rows:
        if row.role == "reporting" and row.scenario in scenarios and row.method in methods:
            place = scenarios.index(row.scenario), methods.index(row.method), seeds.index(row.seed)
            value = getattr(row, measure)
            if measure in ACCURACIES:
                value = np.inf if np.isnan(value) or row.status != "completed" else -100 * value
            found[place] = value
    return found


def ahead(better: np.ndarray, worse: np.ndarray) -> np.ndarray:
    """(seeds,) by how much the first method is ahead in each pair; NaN where both failed or missed the target."""
    with np.errstate(invalid="ignore"):
        return np.asarray(worse - better)


def verdict(differences: np.ndarray) -> str:
    """Whether the first method is ahead: the whole 95 % interval of the mean has to be on one side of 0.

    If a difference is not finite there is no interval, and all differences have to be on the same side.
    """
    interval = mean_difference([differences])
    ends = differences if np.isnan(interval.low) else np.array([interval.low, interval.high])
    return "holds" if (ends > 0).all() else "does not hold" if (ends < 0).all() else "not decided"


def ranks(score: np.ndarray) -> np.ndarray:
    """(scenarios, methods, seeds) the rank of each method in a scenario at a seed; equal scores share a rank."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(score, axis=1))


def mean_ranks(score: np.ndarray) -> np.ndarray:
    """(methods,) the mean of `ranks` over scenarios and seeds."""
    return np.asarray(ranks(score).mean(axis=(0, 2)))


def kendall(one: np.ndarray, other: np.ndarray) -> float:
    """Kendall's tau-b of two rankings of the same methods."""
    from scipy.stats import kendalltau

    return float(kendalltau(one, other).statistic)


def tau_of_halves(score: np.ndarray) -> float:
    """The mean, over random halves of the seeds, of Kendall's tau between the rankings by one half and by the other."""
    generator, seeds = np.random.default_rng(0), score.shape[2]
    found = []
    for _ in range(SPLITS):
        order = generator.permutation(seeds)
        first, second = order[: seeds // 2], order[seeds // 2 :]
        found.append(kendall(mean_ranks(score[:, :, first]), mean_ranks(score[:, :, second])))
    return float(np.mean(found))


def tau_without(score: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
    """Kendall's tau between the ranking by all scenarios and that without those of a group, by group."""
    whole, names = mean_ranks(score), np.array(groups)
    return {name: kendall(whole, mean_ranks(score[names != name])) for name in dict.fromkeys(groups)
            if (names != name).any()}  # fmt: skip


def bootstrap(score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % percentile intervals of the mean ranks (2, methods), and how often each method is first (methods,).

    Scenarios and seeds are resampled with replacement, with the same draws at each call. With few scenarios the
    intervals are too narrow: six normal values give one that contains the true mean in 86 % of cases.
    """
    generator, (scenarios, _, seeds) = np.random.default_rng(0), score.shape
    each, means = ranks(score), []
    for _ in range(RESAMPLES):
        drawn = each[generator.integers(scenarios, size=scenarios)]
        means.append(drawn[..., generator.integers(seeds, size=seeds)].mean(axis=(0, 2)))
    found = np.array(means)
    first = found == found.min(axis=1, keepdims=True)
    ends = np.percentile(found, [50 * LEVEL, 100 - 50 * LEVEL], axis=0)
    return ends, (first / first.sum(axis=1, keepdims=True)).mean(axis=0)


class Versus(NamedTuple):
    """A method compared with the best method of a scenario."""

    method: int
    difference: Interval
    """method minus best, mean over the seeds"""
    p: float
    """of the signed-rank test, after Holm's correction for the scenario's methods"""

    @property
    def distinguishable(self) -> bool:
        return self.p < LEVEL


def against_best(values: np.ndarray) -> tuple[int, list[Versus]]:
    """The best method of one scenario, and the others from best to worst, compared with it in pairs of the same seed.

    The best method has the fewest failures, and among these the smallest mean of the runs that did not fail.
    values: (methods, seeds); inf: failed.
    """
    fine = np.isfinite(values)
    means = np.where(fine, values, 0).sum(axis=1) / np.maximum(1, fine.sum(axis=1))
    best, *others = np.lexsort((means, -fine.sum(axis=1))).tolist()
    differences = [ahead(values[best], values[k]) for k in others]
    p_values = holm([signed_rank_test([each[~np.isnan(each)]]) for each in differences])
    return best, [
        Versus(k, mean_difference([each]), p) for k, each, p in zip(others, differences, p_values, strict=True)
    ]
