"""Statistics of paired trials and of ranks against scipy, published worked examples and the definitions."""

from __future__ import annotations

import itertools
from math import inf, nan, sqrt

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mpifl.tools.analysis.figures import ranks_figure
from mpifl.tools.analysis.ranking import critical_difference, performance_profile, rank_test
from mpifl.tools.analysis.significance import (
    holm,
    interquartile_mean,
    mean_difference,
    permutation_test,
    power_of,
    rank_biserial,
    signed_rank_test,
    trials_needed,
)

DARWIN = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]) / 8.0
"""Darwin's 15 pairs of maize plants, crossed minus self-fertilised (inches), as Fisher analyses them."""


def test_the_interval_of_one_setting_is_the_paired_t_interval() -> None:
    """Fisher, The Design of Experiments, 17: mean 20.933 eighths, t = 2.148 of 14 degrees of freedom."""
    expected = stats.ttest_1samp(DARWIN, 0).confidence_interval()
    assert mean_difference([DARWIN]) == pytest.approx((314 / 15 / 8, expected.low, expected.high), rel=1e-12)


def test_settings_count_alike_in_a_stratified_mean() -> None:
    """Two settings: variance (v1 / n1 + v2 / n2) / 4, degrees of freedom by Satterthwaite, which are Welch's."""
    one, other = DARWIN[:5], DARWIN[5:]
    welch = stats.ttest_ind(one, -other, equal_var=False)  # its standard error is that of the sum of the means
    error, mean = abs((one.mean() + other.mean()) / welch.statistic) / 2, (one.mean() + other.mean()) / 2
    half = stats.t.ppf(0.975, welch.df) * error
    assert mean_difference([one, other]) == pytest.approx((mean, mean - half, mean + half), rel=1e-12)


def test_a_setting_with_one_pair_has_no_interval() -> None:
    estimate, low, high = mean_difference([np.array([3.0]), np.array([1.0, 2.0])])
    assert estimate == 2.25 and np.isnan([low, high]).all()
    assert mean_difference([np.array([2.0, 2.0])]) == (2.0, 2.0, 2.0)
    assert np.isnan(mean_difference([np.array([inf, 1.0])])[1])


def test_permutations_of_darwin_s_maize() -> None:
    """Fisher, 21: of the 2^15 sign patterns 1,726 have a sum at least as far from 0, that is p = 0.05267."""
    values = DARWIN[:10]  # so few that all patterns are counted
    sums = np.array([np.dot(signs, values) for signs in itertools.product((1, -1), repeat=10)])
    assert permutation_test([values]) == pytest.approx(np.mean(np.abs(sums) >= abs(values.sum()) - 1e-9), abs=1e-12)
    assert permutation_test([DARWIN]) == pytest.approx(1726 / 2**15, abs=0.006)  # 9,999 random patterns of these


def test_permutations_weigh_settings_alike() -> None:
    one, other = np.array([1.0, 2.0]), np.array([5.0, -1.0, 2.0])
    means = [np.mean(a * one) + np.mean(b * other)
             for a in itertools.product((1, -1), repeat=2) for b in itertools.product((1, -1), repeat=3)]  # fmt: skip
    expected = np.mean(np.abs(means) >= one.mean() + other.mean() - 1e-9)
    assert permutation_test([one, other]) == pytest.approx(expected, abs=1e-12)


def test_wilcoxon_is_scipy_s_over_all_pairs() -> None:
    assert signed_rank_test([DARWIN[:7], DARWIN[7:]]) == pytest.approx(stats.wilcoxon(DARWIN).pvalue, rel=1e-12)
    assert signed_rank_test([np.arange(1.0, 6)]) == pytest.approx(2 / 2**5, rel=1e-12)  # all five better: 2^(1 - n)
    assert signed_rank_test([np.zeros(4)]) == 1.0
    assert signed_rank_test([np.array([inf, 1.0, 2.0, 3.0, 4.0])]) == pytest.approx(2 / 2**5, rel=1e-12)
    equal = np.array([0.0] * 9 + [1, 2, 3, 4, 5])
    assert signed_rank_test([equal]) == pytest.approx(2 / 2**5, rel=1e-12), "exact, however many equal pairs there are"


@pytest.mark.filterwarnings("error")
def test_huge_losses_have_no_interval() -> None:
    """The squares of 1e200 are infinite; those of the shares of the variance of 1e-90 are not 0."""
    huge = 1e200 * np.array([1.0, 2.0, 3.0])
    assert mean_difference([huge])[0] == pytest.approx(2e200) and np.isnan(mean_difference([huge])[1:]).all()
    assert interquartile_mean([huge]).estimate == pytest.approx(2e200)
    small = mean_difference([1e-90 * np.array([1.0, 2.0, 3.0])])
    assert small == pytest.approx(1e-90 * np.array(mean_difference([np.array([1.0, 2.0, 3.0])])), rel=1e-9)


def test_holm_in_its_worked_example() -> None:
    """p = 0.01, 0.04, 0.03, 0.005 (R's p.adjust: 0.03, 0.06, 0.06, 0.02); never above 1, never in another order."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02], rel=1e-12)
    assert holm([0.6, 0.5]) == [1.0, 1.0] and holm([]) == []


def test_pairs_that_are_equal_in_size_have_the_exact_distribution_of_their_mid_ranks() -> None:
    values = np.array([3.0, -1, 1, 2, 2, -inf])  # mid-ranks 5, 1.5, 1.5, 3.5, 3.5, 6
    ranks = np.array([5, 1.5, 1.5, 3.5, 3.5, 6])
    sums = [ranks @ signs for signs in itertools.product([1, -1], repeat=6)]
    share = sum(abs(each) >= abs(ranks @ np.sign(values)) for each in sums) / 2**6
    assert signed_rank_test([values]) == pytest.approx(share, rel=1e-12)


def test_rank_biserial_of_signed_ranks() -> None:
    """Ranks of |1|, |2|, |-3|, |4| are 1 to 4: (1 + 2 + 4 - 3) / 10; equal pairs are left out."""
    assert rank_biserial([np.array([1.0, 2.0, -3.0]), np.array([4.0, 0.0])]) == pytest.approx(0.4, rel=1e-12)
    assert rank_biserial([np.zeros(3)]) == 0.0 and rank_biserial([-DARWIN]) == -rank_biserial([DARWIN])


@pytest.mark.parametrize(("effect", "trials"), [(0.5, 34), (0.8, 15), (0.2, 199)])
def test_sample_sizes_of_cohen_s_effects(effect: float, trials: int) -> None:
    """G*Power 3.1, matched pairs, two-sided, alpha 0.05, power 0.8: small, medium and large effects."""
    assert trials_needed(effect * 3.0, 3.0) == trials == trials_needed(-effect, 1.0)
    assert power_of(trials - 1, effect, 1.0) < 0.8 <= power_of(trials, effect, 1.0)


def test_sample_sizes_at_the_ends() -> None:
    """About (1.96 + 0.84)^2 / effect^2 trials, 7.849 / effect^2; more than 100,000 are not counted."""
    assert trials_needed(1.0, 0.0) == 2 and trials_needed(1e-9, 1.0) == inf
    assert trials_needed(0.009, 1.0) == pytest.approx(7.849 / 0.009**2, rel=1e-3)
    needed = [trials_needed(effect, 1.0) for effect in np.arange(3.0, 16.0, 0.01)]
    assert needed == sorted(needed, reverse=True) and {*needed} == {4, 3, 2}, "a larger effect needs no more trials"


def test_the_interquartile_mean_and_its_bootstrap() -> None:
    """The mean of the middle half; of normal values its variance is 1.195 / n (trimmed mean, a quarter at each end)."""
    assert interquartile_mean([np.array([0.0, 1, 2, 3]), np.array([4.0, 5, 6, 100])])[0] == 3.5
    values = np.random.default_rng(7).normal(size=(4, 200))
    estimate, low, high = interquartile_mean(list(values))
    assert estimate == pytest.approx(stats.trim_mean(values, 0.25, axis=None), rel=1e-12)
    assert (high - low) / 2 == pytest.approx(1.96 * sqrt(1.195 / 800), rel=0.1)
    assert interquartile_mean(list(values)) == (estimate, low, high)  # the same at each call
    apart = interquartile_mean([values[0], values[1] + 1000])  # trials are drawn within their setting
    assert apart[2] - apart[1] < 3
    assert interquartile_mean([np.full(5, 2.0)]) == (2.0, 2.0, 2.0)
    assert np.isnan(interquartile_mean([np.array([1.0])])[1])


@pytest.mark.parametrize("test", [signed_rank_test, permutation_test])
def test_a_null_is_rejected_as_often_as_the_level_says(test) -> None:  # type: ignore[no-untyped-def]
    """Of 400 null data sets of 11 pairs 5 % are rejected at the level of 5 %, by chance 3 to 7 %."""
    differences = np.random.default_rng(3).standard_t(5, size=(400, 11))
    assert 0.03 < np.mean([test([each]) < 0.05 for each in differences]) < 0.07


# -- ranks and profiles over problems ----------------------------------------------------------------------------------
METHODS = ["C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"]
DEMSAR = pd.DataFrame(
    [[4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 2, 3], [4, 1, 3, 2], [4, 2, 3, 1], [1, 2.5, 4, 2.5], [3, 2, 4, 1],
     [2.5, 2.5, 4, 1], [4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5], [4, 2.5, 1, 2.5], [3, 2, 4, 1], [4, 1, 2, 3], [3, 1, 4, 2]],
    columns=METHODS,
)  # fmt: skip
"""The ranks of four classifiers on 14 data sets: Demšar (2006), Table 6."""


def test_demsar_s_ranks_and_tests() -> None:
    """His mean ranks, chi-square 9.28 (his formula has no correction for ties) and critical differences 1.25, 1.12."""
    found = rank_test(DEMSAR)
    assert found.ranks.round(3).to_dict() == {"C4.5+m+cf": 1.964, "C4.5+m": 2.0, "C4.5+cf": 2.893, "C4.5": 3.143}
    ties = 1 - (3 * (2**3 - 2) + 4**3 - 4) / (4 * (4**2 - 1) * 14)  # three pairs, and four on one data set
    assert found.statistic * ties == pytest.approx(12 * 14 / 20 * ((found.ranks**2).sum() - 25), rel=1e-12)
    assert found.statistic * ties == pytest.approx(9.28, abs=5e-3)
    assert (found.statistic, found.p) == pytest.approx(stats.friedmanchisquare(*DEMSAR.to_numpy().T), rel=1e-12)
    assert found.difference == critical_difference(4, 14) == pytest.approx(1.25, abs=5e-3) and found.problems == 14
    assert critical_difference(4, 14, 0.1) == pytest.approx(1.12, abs=5e-3)
    assert rank_test(1 - DEMSAR, large=True).ranks.equals(found.ranks)


def test_demsar_s_groups() -> None:
    """At 5 % no two differ. At 10 % C4.5 is worse than both methods with m, and like C4.5+cf."""
    found = rank_test(DEMSAR)
    assert found.groups == [["C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5"]]
    assert found._replace(difference=1.12).groups == [["C4.5+m+cf", "C4.5+m", "C4.5+cf"], ["C4.5+cf", "C4.5"]]
    assert found._replace(difference=0.01).groups == []


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (7, 2.949), (10, 3.164)])
def test_demsar_s_table_of_critical_values(methods: int, q: float) -> None:
    """Table 5(a), Nemenyi's test at 5 %; the difference is q sqrt(k (k + 1) / (6 N))."""
    expected = q * sqrt(methods * (methods + 1) / (6 * 20))
    assert critical_difference(methods, 20) == pytest.approx(expected, rel=5e-4)


def test_a_method_without_a_score_is_the_worst() -> None:
    scores = pd.DataFrame({"a": [0.9, 0.8], "b": [nan, 0.9], "c": [0.5, 0.1]})
    assert rank_test(scores, large=True).ranks.to_dict() == {"a": 1.5, "b": 2.0, "c": 2.5}
    assert rank_test(scores).ranks.to_dict() == {"c": 1.0, "a": 2.0, "b": 3.0}
    equal = rank_test(pd.DataFrame(np.ones((3, 3)), columns=list("abc")))
    assert (equal.statistic, equal.p) == (0.0, 1.0) and equal.ranks.tolist() == [2, 2, 2]


def test_a_profile_by_its_definition() -> None:
    """Dolan and Moré (2002): a has the ratios 1, 1, 3 to the best, b 2 and 1; what is not solved has none."""
    costs = pd.DataFrame({"a": [1.0, 5.0, 6.0, nan], "b": [2.0, inf, 2.0, inf]})
    profile = performance_profile(costs)
    assert profile.index.tolist() == [1, 2, 3]
    assert profile.a.tolist() == [0.5, 0.5, 0.75] and profile.b.tolist() == [0.25, 0.5, 0.5]
    assert performance_profile(costs * 7.3, [1, 2.5, 1000]).a.tolist() == [0.5, 0.5, 0.75]  # in any unit
    with pytest.raises(ValueError, match="not above 0"):
        performance_profile(costs * 0)


def test_the_drawing_of_ranks() -> None:
    """Lines from the mean ranks to the names, a bar for each group, and the critical difference."""
    (ax,) = ranks_figure(rank_test(DEMSAR)._replace(difference=1.12), 3.3).axes
    names, bars, scale = ax.lines[:4], ax.lines[4:6], ax.lines[6]
    assert [line.get_xdata()[0] for line in names] == sorted(DEMSAR.mean())  # type: ignore[index]
    assert [line.get_xdata().tolist() for line in bars] == [  # type: ignore[union-attr]
        pytest.approx([1.964 - 0.03, 2.893 + 0.03], abs=1e-3), pytest.approx([2.893 - 0.03, 3.143 + 0.03], abs=1e-3)
    ]  # fmt: skip
    assert np.ptp(scale.get_xdata()) == pytest.approx(1.12)
    assert [text.get_text() for text in ax.texts][:2] == ["C4.5+m+cf 1.96", "C4.5+m 2.00"]
