"""Statistics of the arena against their definitions; claims of papers, of which what is quoted is what is printed."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest

from mpifl.algorithms.fedavg import FedAvg
from mpifl.config.packaged import JOBS
from mpifl.tools.arena import statistics
from mpifl.tools.arena.claims import Claim, judge, load_claims
from mpifl.tools.arena.held_out import beside_others
from mpifl.tools.arena.interactive import loss_by_step
from mpifl.tools.arena.page import (
    about,
    claims_table,
    collect,
    count_verdicts,
    decision_table,
    home_methods,
    margin,
    methods_table,
    order_claim,
    scenario_results,
    stability,
    unchanged,
)
from mpifl.tools.arena.suite import load_suite, read_method
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


def test_what_was_held_out_is_beside_the_range_of_the_others() -> None:
    """Five scenarios that rank five methods alike, but for the last; it and the middle method were held out."""
    loss = np.arange(5.0)[None, :, None] + np.zeros((5, 5, 10))
    loss[4] = -loss[4]
    names = [f"s{k}" for k in range(5)], [f"m{k}" for k in range(5)]
    said, tables = beside_others(["s4", "m2"], *names, loss, np.ones(loss.shape))
    whole = "100.00 (100.00 to 100.00)"
    assert tables["scenarios"] == [["s4", "-1.00 (1.00 to 1.00)", "1.00 (1.00 to 1.00)", "0.00 (0.00 to 0.00)", whole]]
    # the ranks of the others over the scenarios: 1 1 1 1 5 has the standard deviation 1.6, 2 2 2 2 4 has 0.8
    assert tables["methods"] == [["m2", "0.00 (0.80 to 1.60)", "0.00 (0.00 to 0.00)", "0.00 (0.00 to 0.00)", whole]]
    assert said.startswith("s4, m2 were held out") and "6 of 8 measures are within" in said
    assert "at least 4.8 are expected" in said  # of five values three are between the others: 8 * 3 / 5
    assert beside_others(["s4", "m2", "s5"], *names, loss, loss) == ("", {})


def test_the_best_method_of_a_scenario_and_who_cannot_be_told_from_it() -> None:
    """Ten pairs: a constant difference has p = 2^-9, times 3 after Holm; pairs that go either way do not differ."""
    base = np.linspace(0, 1, 10)
    turns = 0.0001 - 0.001 * (-1.0) ** np.arange(10)
    values = np.array([base + 1, base, base + turns, np.append(base[:9] + 0.5, INF)])
    best, others = statistics.against_best(values)
    found = {each.method: each for each in others}
    assert best == 1 and [each.method for each in others] == [2, 0, 3]
    assert found[0].distinguishable and found[0].difference.estimate == pytest.approx(1)
    assert found[0].p == pytest.approx(3 * 2**-9) and not found[2].distinguishable
    assert found[3].distinguishable and found[3].difference.estimate == INF


def test_an_order_is_claimed_only_if_no_half_and_no_task_changes_it() -> None:
    """Any number of the rank correlations may be below 0.8."""
    cases = "Kendall's tau between these rankings is at least 0.8 in"
    assert order_claim(0.8, {"a": 0.9, "b": 1.0}) == f"{cases} 3 of 3 cases."
    assert order_claim(0.9, {"a": 0.79, "b": 0.7}) == f"{cases} 1 of 3 cases, so no order of all methods is claimed."


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
    assert np.isnan(statistics.ahead(never, never)[9])
    partly = statistics.ahead(np.append(np.ones(9), INF), np.append(np.full(9, 2.0), INF))
    assert statistics.verdict(partly) == "not decided"  # a pair of which neither run ends is no difference of 0
    assert margin(partly) == "ahead in 9 of 10 pairs, behind in 0"


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
    said = "In all runs of M the final loss is that of the initial model."
    assert unchanged(scenario, list("MNO"), rows) == said and not unchanged(scenario, ["N", "O"], rows)


def test_where_every_method_fails_at_some_seed_the_fewest_failures_are_best() -> None:
    values = np.array([[INF, INF, 1.0], [INF, 3.0, 3.0], [5.0, INF, 2.0], [INF, INF, INF]])
    best, others = statistics.against_best(values)
    assert (best, [each.method for each in others]) == (1, [2, 0, 3])


def test_where_all_methods_fail_none_is_called_the_best_and_no_order_is_claimed() -> None:
    """Two scenarios; in one all three methods fail. One method has no run in the other at one seed."""
    fails = {"loss": [INF] * 10, "time": [INF] * 10}
    rows = [row for method in "MNO" for row in reported("digits-iid", method, **fails)]
    rows += [row for k, method in enumerate("MNO") for row in
             reported("digits-off", method, loss=[float(k)] * 10, time=[0.0] * 10)][:-1]  # fmt: skip
    methods = {name: read_method(name, {"algorithm": {"name": "fedavg"}}) for name in "MNO"}
    results = collect(load_suite(), "quick", methods, rows)
    table, titles = scenario_results(results.scenarios["digits-iid"], list("MNO"), rows, results.loss[1])
    assert [row[titles.index("verdict")] for row in table] == ["all methods failed"] + 2 * ["not distinguishable"]
    assert "Reporting runs that are missing, and count as failed: 1." in about(results)
    # without digits-off all ranks are equal, and tau is not defined
    assert "is at least 0.8 in 2 of 3 cases, so no order of all methods is claimed." in stability(results)
    table, titles = methods_table(results)
    assert table[0][0] == "M"  # a time of 0 is a cost that a profile takes
    assert table[0][titles.index("failed in tuning (%)")] == "-"  # no tuning run is in this table


# -- claims of papers --------------------------------------------------------------------------------------------------
def reported(scenario: str, method: str, **measures: list[float]) -> list[Row]:
    values = zip(*measures.values(), strict=True)
    start = (scenario, method, "{}")
    return [Row(*start, seed, "reporting", "completed", **dict(zip(measures, each, strict=True)))
            for seed, each in enumerate(values)]  # fmt: skip


def test_ten_claims_with_a_number_are_tested_and_their_scenarios_and_methods_are_in_the_suite() -> None:
    suite, claims = load_suite(), load_claims()
    assert sum(bool(claim.scenarios) and any(map(str.isdigit, claim.says)) for claim in claims) >= 10
    for claim in claims:
        assert suite.scenarios.keys() >= set(claim.scenarios) and bool(claim.scenarios) != bool(claim.lacks)
        assert claim.lacks or {claim.better, claim.worse} <= suite.methods.keys()


@pytest.mark.parametrize("claim", [each for each in load_claims() if each.where.startswith("Table")])
def test_a_number_that_is_quoted_is_in_the_published_table(claim: Claim) -> None:
    """Each "loss 0.64 of AREA (1000)" is a cell with these rates and this step; the better one is the claimed one."""
    with (JOBS / "published.csv").open(encoding="utf-8", newline="") as file:
        cells = [each for each in csv.DictReader(file) if each["paper"] == "area"]
    item, _, rates = claim.where.partition(", ")
    measure, rest = claim.says.split(" ", 1)
    quoted = re.findall(r"([\d.]+)(?: %)? of ([\w-]+) \((\d+)\)", rest)
    assert len(quoted) == 2
    for value, method, step in quoted:
        assert any(
            each["item"] == item and each["measure"] == measure and each["mean"] == value
            and each["cell"] == f"method={method}; step_size={step}; rates={rates.split()[0]}"
            for each in cells
        ), (value, method, step)  # fmt: skip
    ours = {"S-FedAvg": "FedAvg"}
    assert [ours.get(method, method) for _, method, _ in quoted] == [claim.better, claim.worse]
    assert (float(quoted[0][0]) > float(quoted[1][0])) == (claim.measure == "accuracy")


def test_a_claim_is_tested_in_each_of_its_scenarios_that_has_runs_of_both_methods() -> None:
    claim = Claim("A", "Table 1", "1 and 2", "M", "N", "loss", ["one", "two", "three"])
    rows = [*reported("one", "M", loss=[1, 2, 3]), *reported("one", "N", loss=[2, 3.5, 4]),
            *reported("two", "M", loss=[1, 2, INF]), *reported("two", "N", loss=[2, 1, 3]),
            *reported("three", "M", loss=[1, 2, 3])]  # fmt: skip
    lacking = [Claim("B", "title", "x", "N", "O", "loss", ["one"]), Claim("C", "title", "y", "P", "M", "time", [], "P")]
    tests = list(judge(rows, [claim, *lacking]))
    assert [test.verdict for test in tests] == ["holds", "not decided", "not tested", "not tested"]
    table, _ = claims_table(tests)
    assert [row[2] for row in table] == ["one", "two", "not in these results: one", "not in the suite: P"]
    # mean 7/6, sd 0.2887, half width 4.302653 * 0.2887 / sqrt(3) = 0.717
    assert [row[3] for row in table] == ["+1.17 (+0.45 to +1.88)", "ahead in 1 of 3 pairs, behind in 2", "", ""]
    assert count_verdicts(tests) == ("Claims tested: 1 of 3, in 2 tests. Tests in which the claim holds: 1; in which "
                                     "it does not: 0; not decided: 1.")  # fmt: skip


def test_a_cell_of_the_decision_table_is_empty_where_the_data_do_not_decide() -> None:
    """Ten seeds: M is 1 below N and O in loss; none reaches the target; N alone is measured on the worst tenth."""
    base = [k / 10 for k in range(10)]
    never, blank = [INF] * 10, [float("nan")] * 10
    rows = [
        *reported("digits-off", "M", loss=base, time=never, worst=blank),
        *reported("digits-off", "N", loss=[each + 1 for each in base], time=never, worst=base),
        *reported("digits-off", "O", loss=[each + 1 for each in base], time=never, worst=blank),
    ]
    methods = {name: read_method(name, {"algorithm": {"name": "fedavg"}}) for name in "MNO"}
    ((*condition, loss, time, worst),), titles = decision_table(collect(load_suite(), "quick", methods, rows))
    assert condition == ["labels 5-9 often off", "one class a client", "20", "digits, logistic"] and len(titles) == 7
    assert (loss, time) == ("M over N: +1 (+1 to +1)", "")
    assert worst == "N over M: ahead in 10 of 10 pairs, behind in 0"


def test_where_a_home_method_loses_is_said() -> None:
    """M is worse in a, the best in b and has no verdict in c, where all methods failed; the page has no method N."""
    titles = ["method", "loss", "verdict"]
    verdicts = {"a": ("worse", "best"), "b": ("best", "worse"), "c": ("all methods failed", "not distinguishable")}
    tables = [([["M", "1", mine], ["O", "2", other]], titles) for mine, other in verdicts.values()]
    said = home_methods(["M", "N"], list(verdicts), tables)
    assert said.splitlines()[-1] == (
        "- M, in 3 scenarios: worse than the best method in 1 (a); not distinguishable from it in 0; the best in 1 (b)."
    )
    assert home_methods(["N"], list(verdicts), tables) == "" == home_methods([], list(verdicts), tables)


def test_the_interactive_page_draws_losses_by_step_size() -> None:
    """The mean over the tuning seeds; the defaults have the step of their class; None where a run diverged."""
    losses = {0.5: [1.0, 2.0], 0.05: [3.0, INF], None: [4.0, 4.0]}
    rows = [Row("s", "M", json.dumps({"name": "fedavg"} | ({"step_size": step} if step else {})), seed, "tuning",
                "completed", loss=loss)
            for step, each in losses.items() for seed, loss in enumerate(each)]  # fmt: skip
    assert FedAvg.step_size == 0.1
    assert loss_by_step(rows) == [[0.05, None], [0.1, 4.0], [0.5, 1.5]]
