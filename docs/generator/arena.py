"""Writes the arena's pages and figures, and the numbers and tables of its paper, from the stored results.

    python docs/generator/arena.py [TABLE.csv ...]

The rows of a table, which `mpifl arena` wrote, first replace those of its scenarios in the stored results.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent))

from mpifl.config import read  # noqa: E402 - of this checkout
from mpifl.tools.analysis.latex import escape, prose  # noqa: E402 - of this checkout
from mpifl.tools.arena import page  # noqa: E402 - of this checkout
from mpifl.tools.arena.claims import judge, load_claims  # noqa: E402 - of this checkout
from mpifl.tools.arena.statistics import ranks, scores  # noqa: E402 - of this checkout
from mpifl.tools.arena.suite import TIERS, load_suite, stored_table  # noqa: E402 - of this checkout
from mpifl.tools.arena.table import read_table, stored_rows, write_table  # noqa: E402 - of this checkout

TIER = "quick"  # the tier of arena.md and of the paper


def main(docs: Path = DOCS) -> None:
    suite = load_suite()
    for tier in TIERS:
        if stored_table(tier).exists():
            results = page.collect(suite, tier, suite.methods, stored_rows(tier, suite.scenarios))
            path = page.write_page(results, docs / "results", f"{suite.name}-{tier}")
            path.rename(docs / "results" / ("arena.md" if tier == TIER else f"arena-{tier}.md"))
            if tier == TIER:
                (docs / "paper" / "numbers.tex").write_text(paper_commands(results), encoding="utf-8")


def store(tables: Sequence[str]) -> None:
    """Puts the rows of tables into the stored results."""
    suite, added = load_suite(), [row for table in tables for row in read_table(Path(table))]
    for tier in TIERS:
        names = [name for name, scenario in suite.scenarios.items() if scenario.tier == tier]
        new = {row.scenario for row in added} & set(names)
        kept = [row for row in stored_rows(tier, names) if row.scenario not in new]
        rows = sorted(kept + [row for row in added if row.scenario in new], key=lambda row: names.index(row.scenario))
        if new:
            stored_table(tier).write_bytes(gzip.compress(write_table(rows).encode(), mtime=0))


def paper_commands(results: page.Results) -> str:
    r"""A \newcommand for each number, sentence and table of the paper."""
    suite, names, scenarios = results.suite, results.names, list(results.scenarios)
    ranking, decisions = page.methods_table(results)[0], page.decision_table(results)
    tests = list(judge(results.rows, load_claims()))
    cells = [cell for row in decisions[0] for cell in row[4:]]
    measured = [np.isfinite(scores(results.rows, measure, scenarios, names)).any(axis=(1, 2)) for measure in page.USES]
    decided = [cell for cell in cells if cell]
    single = [cell for cell in decided if "," not in cell.partition(":")[0]]
    places = ranks(results.loss.mean(axis=2, keepdims=True))[:, :, 0]  # (scenarios, methods)
    of_first = places[:, names.index(ranking[0][0])]
    winners = set(np.argmin(places, axis=1).tolist())
    test = results.test
    delays = [read.load(each.path).clock.delay for each in results.scenarios.values()]
    (message_steps,) = {np.min(delay.exchange) / np.min(delay.compute) for delay in delays}
    fedavg = suite.methods["FedAvg"].algorithm
    texts = {
        "Suite": suite.name, "Tier": TIER, "Methods": len(names), "Scenarios": len(scenarios),
        "AllScenarios": len(suite.scenarios), "LeftScenarios": len(suite.scenarios) - len(scenarios),
        "Runs": f"{len(results.rows):,}", "Configurations": suite.configurations,
        "TuningSeeds": len(suite.tuning_seeds), "ReportingSeeds": len(suite.reporting_seeds),
        "MessageSteps": f"{message_steps:g}", "Cohort": f"{100 * fedavg['cohort']['clients']:g}",
        "LocalSteps": fedavg["local_steps"],
        "StepLow": f"{suite.step_size['from']:g}", "StepHigh": f"{suite.step_size['to']:g}",
        "About": page.about(results), "Stability": page.stability(results), "UseNote": page.USE,
        "Order": page.order_claim(*page.taus(results)),
        "ClaimsNote": page.CLAIMS, "ClaimsCount": page.count_verdicts(tests),
        "First": ranking[0][0], "FirstRank": ranking[0][1],
        "FirstPlaces": f"{of_first.min():g} to {of_first.max():g}",
        "FirstWorst": scenarios[int(np.argmax(of_first))],
        "Last": ranking[-1][0], "LastRank": ranking[-1][1], "Winners": len(winners),
        "Alike": int((test.ranks < test.ranks.iloc[0] + test.difference).sum()), "Difference": f"{test.difference:.1f}",
        "Cells": int(np.sum(measured)), "Decided": len(decided), "Single": len(single),
        "Several": len(decided) - len(single),
    }  # fmt: skip
    titles = ["method", "mean rank (95 %)", "first", "1x", "2x", "4x", "ever"]
    scenario, over = page.scenarios_table(results.scenarios)
    tables = {
        "ScenarioTable": _tabular("lllrrr", [row[:1] + row[2:7] for row in scenario], over[:1] + over[2:7]),
        "RankingTable": _tabular("llrrrrr", [row[:7] for row in ranking], titles),
        "UseTable": _tabular(2 * r">{\raggedright\arraybackslash}p{1.7cm}" + "lp{1.9cm}"
                             + 3 * r">{\raggedright\arraybackslash}p{3cm}", *decisions),
        "ClaimsTable": _tabular(r">{\raggedright\arraybackslash}p{7.1cm}" + r">{\raggedright\arraybackslash}p{2.5cm}"
                                r">{\raggedright\arraybackslash}p{2.6cm}>{\raggedright\arraybackslash}p{2.6cm}l",
                                *page.claims_table(tests)),
    }  # fmt: skip
    found = {name: prose(re.sub("[`*]", "", " ".join(str(text).split()))) for name, text in texts.items()} | tables
    lines = [rf"\newcommand{{\Arena{name}}}{{{text}}}" for name, text in found.items()]
    return "\n".join(["% Made by docs/generator/arena.py from the stored results.", *lines, ""])


def _quoted(text: str) -> str:
    """A cell with its quotation marks as LaTeX has them."""
    return re.sub('"([^"]*)"', r"``\1''", prose(text))


def _tabular(columns: str, rows: Sequence[Sequence[str]], titles: Sequence[str]) -> str:
    """A table with the rules of booktabs."""
    end = "\\\\\\addlinespace[2pt]\n" if "p{" in columns else "\\\\\n"
    head, body = " & ".join(map(escape, titles)), "".join(" & ".join(map(_quoted, row)) + end for row in rows)
    return f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head}\\\\\\midrule\n{body}\\bottomrule\n\\end{{tabular}}"


if __name__ == "__main__":
    store(sys.argv[1:])
    main()
