"""Claims of papers: what is quoted is what is printed, and what is tested is in the suite."""

from __future__ import annotations

import csv
import re

import pytest

from mpifl.config.packaged import JOBS
from mpifl.tools.arena.claims import Claim, judge, load_claims
from mpifl.tools.arena.page import claim_rows, collect, count_verdicts, use_when
from mpifl.tools.arena.suite import load_suite, read_method
from mpifl.tools.arena.table import Row

INF = float("inf")


def reported(scenario: str, method: str, **measures: list[float]) -> list[Row]:
    values = zip(*measures.values(), strict=True)
    start = (scenario, method, "{}")
    return [Row(*start, seed, "reporting", "completed", **dict(zip(measures, each, strict=True)))
            for seed, each in enumerate(values)]  # fmt: skip


def test_there_are_ten_claims_and_their_scenarios_and_methods_are_in_the_suite() -> None:
    suite, claims = load_suite(), load_claims()
    assert len(claims) >= 10
    for claim in claims:
        assert suite.scenarios.keys() >= set(claim.scenarios) and bool(claim.scenarios) != bool(claim.lacks)
        assert claim.lacks or {claim.better, claim.worse} <= suite.methods.keys()


@pytest.mark.parametrize("claim", [each for each in load_claims() if each.where.startswith("Table")])
def test_a_number_that_is_quoted_is_in_the_published_table(claim: Claim) -> None:
    """Each "loss 0.64 of AREA" is a cell of the table with these rates; the better one is the one that is claimed."""
    with (JOBS / "published.csv").open(encoding="utf-8", newline="") as file:
        cells = [each for each in csv.DictReader(file) if each["paper"] == "area"]
    item, _, rates = claim.where.partition(", ")
    measure, rest = claim.says.split(" ", 1)
    quoted = re.findall(r"([\d.]+)(?: %)? of ([\w-]+)", rest)
    assert len(quoted) == 2
    for value, method in quoted:
        assert any(
            each["item"] == item and each["measure"] == measure and each["mean"] == value
            and each["cell"].startswith(f"method={method};") and each["cell"].endswith(f"rates={rates.split()[0]}")
            for each in cells
        ), (value, method)  # fmt: skip
    assert [method.replace("S-FedAvg", "FedAvg") if method == "S-FedAvg" else method for _, method in quoted] == [
        claim.better, claim.worse]  # fmt: skip
    assert (float(quoted[0][0]) > float(quoted[1][0])) == (claim.measure == "accuracy")


def test_a_claim_is_tested_in_each_of_its_scenarios_that_has_runs_of_both_methods() -> None:
    claim = Claim("A", "Table 1", "1 and 2", "M", "N", "loss", ["one", "two", "three"])
    rows = [*reported("one", "M", loss=[1, 2, 3]), *reported("one", "N", loss=[2, 3.5, 4]),
            *reported("two", "M", loss=[1, 2, INF]), *reported("two", "N", loss=[2, 1, 3]),
            *reported("three", "M", loss=[1, 2, 3])]  # fmt: skip
    lacking = [Claim("B", "title", "x", "N", "O", "loss", ["one"]), Claim("C", "title", "y", "P", "M", "time", [], "P")]
    tests = list(judge(rows, [claim, *lacking]))
    assert [test.verdict for test in tests] == ["holds", "not decided", "not decided", "not decided"]
    table, _ = claim_rows(tests)
    assert [row[2] for row in table] == ["one", "two", "not computed: one", "not in the suite: P"]
    # mean 7/6, sd 0.2887, half width 4.302653 * 0.2887 / sqrt(3) = 0.717
    assert [row[3] for row in table] == ["+1.17 (+0.45 to +1.88)", "ahead in 1 of 3 pairs, behind in 2", "", ""]
    expected = "1 claim tested in 2 tests: 1 hold, 0 do not, 1 not decided. 2 claims not tested, "
    assert count_verdicts(tests).startswith(expected)


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
    ((*condition, loss, time, worst),), titles = use_when(collect(load_suite(), "quick", methods, rows))
    assert condition == ["off by label", "one class a client", "20", "digits, logistic"] and len(titles) == 7
    assert (loss, time) == ("M over N: +1 (+1 to +1)", "")
    assert worst == "N over M: ahead in 10 of 10 pairs, behind in 0"
