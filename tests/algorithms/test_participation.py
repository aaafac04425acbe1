"""Who works in a round, and when the server aggregates."""

from __future__ import annotations

from math import comb, sqrt

import numpy as np
import pytest
from scipy.stats import kstest

from mpifl.algorithms.participation import CohortSampler, Trigger

ROUNDS = 6000


def test_without_replacement_every_subset_is_as_likely() -> None:
    """K of n, all comb(n, K) subsets within five standard errors of their probability."""
    cohort = CohortSampler(2, 5, seed=1)
    seen: dict[tuple, int] = {}
    for round in range(ROUNDS):
        members = cohort.sample(round)
        assert members == sorted(set(members)) and len(members) == 2
        seen[tuple(members)] = seen.get(tuple(members), 0) + 1
    p = 1 / comb(5, 2)
    assert len(seen) == 10
    assert all(abs(count / ROUNDS - p) < 5 * sqrt(p * (1 - p) / ROUNDS) for count in seen.values())


def test_with_replacement_each_draw_has_the_clients_probabilities() -> None:
    """K independent draws: the expected count of i is K p_i, and P(i drawn twice of 2) = p_i^2."""
    p = np.array([0.5, 0.3, 0.2])
    cohort = CohortSampler(2, 3, seed=1, probabilities=p)
    draws = [cohort.sample(round) for round in range(ROUNDS)]
    assert all(len(members) == 2 and members == sorted(members) for members in draws)
    counts = np.bincount(np.ravel(draws), minlength=3) / (2 * ROUNDS)
    assert (np.abs(counts - p) < 5 * np.sqrt(p * (1 - p) / (2 * ROUNDS))).all()
    twice = np.array([sum(members == [i, i] for members in draws) for i in range(3)]) / ROUNDS
    assert (np.abs(twice - p**2) < 5 * np.sqrt(p**2 / ROUNDS)).all()


def test_all_clients_are_no_draw() -> None:
    """K = n without replacement: everybody; with replacement it is a draw like any other."""
    assert CohortSampler(4, 4, seed=1).sample(7) == [0, 1, 2, 3]
    drawn = {tuple(CohortSampler(4, 4, 1, np.full(4, 0.25)).sample(round)) for round in range(20)}
    assert len(drawn) > 10


def test_a_cohort_is_a_function_of_seed_and_round() -> None:
    cohort = CohortSampler(3, 50, seed=1)
    forward = [cohort.sample(round) for round in range(10)]
    assert [cohort.sample(round) for round in reversed(range(10))] == forward[::-1]
    assert forward != [CohortSampler(3, 50, seed=2).sample(round) for round in range(10)]


def test_poisson_and_bernoulli_laws() -> None:
    """Gaps are Exp(lambda_s); the coin falls with probability p, after each update anew."""
    trigger, gaps = Trigger(poisson=4.0), []
    for k in range(3000):
        gaps.append(trigger.next_time(10.0, k, 0) - 10.0)
    assert kstest(gaps, "expon", args=(0, 1 / 4)).pvalue > 1e-3
    coin = Trigger(bernoulli=0.3)
    falls = np.array([coin.due(1, k, 0) for k in range(3000)])
    assert falls.mean() == pytest.approx(0.3, abs=5 * sqrt(0.21 / 3000))
    assert np.corrcoef(falls[1:], falls[:-1])[0, 1] == pytest.approx(0, abs=5 / sqrt(3000))
    assert Trigger(bernoulli=1.0).due(1, 1, 0)


def test_a_trigger_answers_for_itself_alone() -> None:
    """by count: due from `every` pending on; timed: never due by an update; untimed: never due by a clock."""
    assert [Trigger(every=3).due(k, 9, 0) for k in (1, 2, 3)] == [False, False, True]
    for trigger in (Trigger(period=1.0), Trigger(poisson=1.0)):
        assert trigger.timed and not trigger.due(99, 99, 0)
    for trigger in (Trigger(every=1), Trigger(bernoulli=0.5)):
        assert not trigger.timed and trigger.next_time(3.0, 1, 0) == np.inf
    assert Trigger(period=0.5).next_time(3.0, 6, 0) == 3.5
