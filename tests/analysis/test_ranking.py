"""Performance profiles and critical differences against published worked examples, SciPy and the definitions."""

from __future__ import annotations

from math import inf, nan, sqrt

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mpifl.tools.analysis.figures import ranks_figure
from mpifl.tools.analysis.ranking import critical_difference, performance_profile, rank_test

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
