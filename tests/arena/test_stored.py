"""The stored results of the suite and their page."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpifl.tools.arena.page import write_page
from mpifl.tools.arena.submission import selected
from mpifl.tools.arena.suite import load_suite, scenario_study, stored_table
from mpifl.tools.arena.table import read_table

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.long
def test_the_stored_results_are_those_of_the_suite(tmp_path: Path) -> None:
    """Each method has all its tuning runs in each scenario, and the selected configuration at all reporting seeds."""
    suite, rows = load_suite(), read_table(stored_table("quick"))
    have = {row.scenario for row in rows}
    assert len(have) == 6
    for name in have:
        scenario = suite.scenarios[name]
        study = scenario_study(suite, scenario, suite.methods, tmp_path)
        for method in suite.methods:
            mine = [row for row in rows if (row.scenario, row.method) == (name, method)]
            best = selected([row for row in mine if row.role == "tuning"])
            expected = {run.identity for run in study.runs if run.labels["method"] == method
                        and (run.seed in suite.tuning_seeds or run.labels["algorithm"] == best)}  # fmt: skip
            assert {row.identity for row in mine if row.identity} == expected, (name, method)
            assert sum(row.role == "reporting" for row in mine) == len(suite.reporting_seeds), (name, method)


@pytest.mark.long
def test_the_page_is_that_of_the_stored_results(tmp_path: Path) -> None:
    suite = load_suite()
    page = write_page(suite, "quick", suite.methods, read_table(stored_table("quick")), tmp_path, "arena-1-quick")
    assert page.read_text() == (RESULTS / "arena.md").read_text()
