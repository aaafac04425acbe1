"""Statistics of the arena against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.tools.arena import statistics
from mpifl.tools.arena.page import unchanged
from mpifl.tools.arena.suite import load_suite
from mpifl.tools.arena.table import Row

INF = float("inf")


def test_mean_ranks_count_failures_as_worst() -> None:
    """Two scenarios, three methods, two seeds; equal scores share a rank, and two failures share the last ones."""
    score = np.array([[[1, 1], [2, 1], [3, INF]], [[INF, 5], [INF, 6], [1, 7]]], float)
    assert statistics.ranks(score)[1].tolist() == [[2.5, 1], [2.5, 2], [1, 3]]
    assert statistics.mean_ranks(score).tolist() == [
        (1 + 1.5 + 2.5 + 1) / 4,
        (2 + 1.5 + 2.5 + 2) / 4,
        (3 + 3 + 1 + 3) / 4,
    ]


def test_a_clear_order_is_stable_and_noise_is_not() -> None:
    generator = np.random.default_rng(0)
    order = np.arange(5.0)[None, :, None] + np.zeros((4, 5, 10))
    assert statistics.tau_of_halves(order) == pytest.approx(1)
    assert statistics.tau_without(order, ["a", "a", "b", "c"]) == pytest.approx({"a": 1, "b": 1, "c": 1})
    ends, first = statistics.bootstrap(order)
    assert ends.tolist() == [[1, 2, 3, 4, 5]] * 2 and first.tolist() == [1, 0, 0, 0, 0]
    noise = generator.normal(size=(4, 5, 10))
    assert abs(statistics.tau_of_halves(noise)) < 0.5
    turned = np.concatenate([order[:3], -order[:1]])  # in the last scenario the order is reversed
    assert statistics.tau_without(turned, ["a", "a", "a", "b"]) == pytest.approx({"a": -1, "b": 1})


def test_the_best_method_of_a_scenario_and_who_cannot_be_told_from_it() -> None:
    """Ten pairs: a constant difference has p = 2^-9, times 3 after Holm; pairs that go either way have none."""
    base = np.linspace(0, 1, 10)
    values = np.array([base + 1, base, base + 0.001 * (-1) ** np.arange(10), np.append(base[:9] + 0.5, INF)])
    best, others = statistics.against_best(values)
    found = {each.method: each for each in others}
    assert best == 1 or best == 2
    assert found[0].distinguishable and found[0].difference.estimate == pytest.approx(1, abs=1e-3)
    assert found[0].p == pytest.approx(3 * 2**-9) and not found[3 - best].distinguishable
    assert found[3].distinguishable and found[3].difference.estimate == INF


def test_a_claim_holds_if_the_whole_interval_or_every_pair_says_so() -> None:
    """Ten pairs 0.5 ahead, half of them 0.1 more: 0.55 +- t_9 0.0527 / sqrt(10); one run never reaches the target."""
    better = np.arange(10.0)
    ahead = statistics.ahead(better, better + 0.5 + 0.1 * (np.arange(10) % 2))
    assert ahead == pytest.approx([0.5, 0.6] * 5) and statistics.verdict(ahead) == "holds"
    assert statistics.verdict(-ahead) == "does not hold" and statistics.verdict(ahead - 0.55) == "not decided"
    half = 2.262157 * 0.0527046 / np.sqrt(10)
    assert statistics.verdict(ahead - 0.55 + 1.01 * half) == "holds"
    assert statistics.verdict(ahead - 0.55 + 0.99 * half) == "not decided"
    never = np.append(better[:9], INF)
    assert statistics.verdict(statistics.ahead(better, never + 1)) == "holds"
    assert statistics.verdict(statistics.ahead(never, better + 1)) == "not decided"
    assert statistics.ahead(never, never)[9] == 0


def test_an_accuracy_is_a_score_of_which_small_values_are_good() -> None:
    """Minus percent; the worst of all where it is not measured or the run diverged."""
    row = Row("a", "m", "{}", 0, "reporting", "completed", accuracy=0.25)
    rows = [row, row._replace(seed=1, accuracy=float("nan")), row._replace(seed=2, status="diverged")]
    assert statistics.scores(rows, "accuracy", ["a"], ["m"])[0, 0].tolist() == [-25, INF, INF]


def test_methods_whose_runs_end_as_they_began_are_named() -> None:
    """M's loss is 2 at the start and at the end of both runs; N's is so in one run; O's only run has no curve."""
    curves = {"M": ["2 3 2", "2 2"], "N": ["2 2", "2 1"], "O": [""]}
    rows = [Row("digits-iid", method, "{}", seed, "reporting", "completed", curve=curve)
            for method, each in curves.items() for seed, curve in enumerate(each)]  # fmt: skip
    scenario = load_suite().scenarios["digits-iid"]
    said = "In all runs of M the loss at the end is that of the first model."
    assert unchanged(scenario, list("MNO"), rows) == said and not unchanged(scenario, ["N", "O"], rows)
