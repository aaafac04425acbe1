"""Who works in a round, and when the server aggregates."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from scipy.stats import kstest

from mpifl.algorithms.base import Clients
from mpifl.algorithms.feddr import FedDR
from mpifl.algorithms.participation import CohortSampler, Trigger

ROUNDS = 6000


@pytest.mark.parametrize(("n", "lost"), [(5, set()), (6, {1, 5})])
def test_pairs_of_uniform_members_are_equally_likely(n: int, lost: set[int]) -> None:
    """Two of the living, without replacement: all pairs within five standard errors of their probability."""
    draws = Counter(tuple(CohortSampler(2, n, seed=1).sample(round, lost)) for round in range(ROUNDS))
    assert draws.keys() == {*combinations([i for i in range(n) if i not in lost], 2)}
    p = 1 / len(draws)
    assert max(abs(count / ROUNDS - p) for count in draws.values()) < 5 * sqrt(p * (1 - p) / ROUNDS)


@pytest.mark.parametrize("lost", [set(), {0, 4}], ids=["all", "living"])
@pytest.mark.parametrize("p", [None, np.array([1, 2, 3, 4, 5, 6]) / 21], ids=["uniform", "given"])
def test_members_are_living(p: np.ndarray | None, lost: set[int]) -> None:
    """As many as before where so many live, drawn as if there had never been others, by their probabilities with
    replacement, P(i drawn twice of 3) = 3 q_i^2 - 2 q_i^3; who was drawn stays. A function of seed and round."""
    cohort, living = CohortSampler(3, 6, 1, p), [i for i in range(6) if i not in lost]
    draws = [cohort.sample(r, lost) for r in range(ROUNDS)]
    assert [cohort.sample(r, lost) for r in reversed(range(10))] == draws[9::-1]
    assert draws[:10] != [CohortSampler(3, 6, 2, p).sample(r, lost) for r in range(10)]
    assert all(len(m) == 3 and m == sorted(m) and not lost & {*m} for m in draws)
    q = np.ones(len(living)) / len(living) if p is None else p[living] / p[living].sum()
    counts = Counter(i for m in draws for i in m)
    assert np.abs(np.array([counts[i] for i in living]) / (3 * ROUNDS) - q).max() < 5 * (0.25 / 3 / ROUNDS) ** 0.5
    twice = np.array([sum(m.count(i) > 1 for m in draws) for i in living]) / ROUNDS
    assert np.abs(twice - (0 if p is None else 3 * q**2 - 2 * q**3)).max() < 5 * (0.25 / ROUNDS) ** 0.5
    for r, members in enumerate(draws[:3000]):
        kept = Counter(cohort.sample(r))
        assert all(Counter(members)[i] >= kept[i] for i in kept.keys() - lost)
    fewer = [cohort.sample(r, {0, 1, 2, 4}) for r in range(50)]
    assert all(len(m) == 2 and {*m} <= {3, 5} for m in fewer) and (p is not None or fewer == [[3, 5]] * 50)


def test_all_clients_are_no_draw() -> None:
    """K = n without replacement: everybody; with replacement it is a draw like any other."""
    assert CohortSampler(4, 4, seed=1).sample(7) == [0, 1, 2, 3]
    drawn = {tuple(CohortSampler(4, 4, 1, np.full(4, 0.25)).sample(round)) for round in range(20)}
    assert len(drawn) > 10


def test_two_phases_keep_their_members() -> None:
    """A client lost between two rounds of one draw is replaced; nobody else is."""
    for r in range(0, 40, 2):
        cohort = CohortSampler(4, 10, 3, repeat=2)
        first = cohort.sample(r)
        second = cohort.sample(r + 1, {first[0]})
        assert {*first[1:]} < {*second} and len(second) == 4


def test_all_first_without_the_lost() -> None:
    cohort = FedDR(init="mean", cohort=2).participation(Clients(np.ones(4, int)), 0)
    assert cohort.sample(0, {2}) == [0, 1, 3] and cohort.sample(0) == [0, 1, 2, 3]
    assert len(cohort.sample(1, {2})) == 2


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
