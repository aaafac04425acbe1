"""Writes the page that compares the arena's stored results with the same runs on another type of processor.

    python docs/generator/arena_processors.py TABLE.csv STORED OTHER

TABLE.csv: the quick tier, which `mpifl arena` wrote on the other processor. STORED and OTHER: the names of OpenBLAS's
kernels with which the stored results and this table were computed.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent))

from mpifl.tools.arena import page, statistics  # noqa: E402 - of this checkout
from mpifl.tools.arena.claims import judge, load_claims  # noqa: E402 - of this checkout
from mpifl.tools.arena.submission import agree  # noqa: E402 - of this checkout
from mpifl.tools.arena.suite import load_suite  # noqa: E402 - of this checkout
from mpifl.tools.arena.table import Row, read_table, stored_rows  # noqa: E402 - of this checkout

Pair = tuple[Row, Row]  # a run with the kernels of the stored results, and with the others
TIER = "quick"
PAGE = """\
# The arena on another type of processor

OpenBLAS selects its kernels by the type of the processor, and different kernels round differently. The stored results
of the {tier} tier, computed with the kernels {stored}, are compared with the same runs with the kernels {other}
(`OPENBLAS_CORETYPE={other} mpifl arena`).

Of {runs:,} runs {failed:,} fail with both kernels, {same:,} have the same bits, and {rounded:,} agree within the
tolerance of `mpifl arena verify`: 1e-5 relative to the final loss and to the mean loss, and 1 % plus 0.01 for all other
numbers. The other {different:,} are listed below. The same configuration is selected in {selected} of {tuned} pairs of
a method and a scenario.

{scenarios}

## What it changes

Kendall's tau between the two rankings by mean rank is {tau:.2f}. {equal_cells} of the {cells} cells of the table *Which
method in which setting* name the same methods or are empty in both. {equal_tests} of the {tests} tests of claims have
the same verdict.

{ranks}

## Runs outside the tolerance

Each row has the runs of one configuration. The difference is the largest relative difference of their final losses.
Where it is within the tolerance, another number is outside it.

{differing}
"""


def main(path: str, stored: str, other: str, docs: Path = DOCS) -> None:
    suite = load_suite()
    rows = [stored_rows(TIER, suite.scenarios), read_table(Path(path))]
    found = [{(row.scenario, row.identity): row for row in each} for each in rows]
    pairs = [(row, found[1][key]) for key, row in found[0].items() if key in found[1]]
    results = [page.collect(suite, TIER, suite.methods, each) for each in rows]
    ranks = [statistics.mean_ranks(each.loss) for each in results]
    cells = [[cell.partition(":")[0] for row in page.decision_table(each)[0] for cell in row[4:]] for each in results]
    verdicts = [[test.verdict for test in judge(each, load_claims()) if test.scenario] for each in rows]
    choices = [
        {(row.scenario, row.method, row.configuration) for row in each if row.role == "reporting"} for each in rows
    ]
    same, different = [pair for pair in pairs if _same(*pair)], [pair for pair in pairs if not agree(*pair)]
    failed = sum(one.status == other.status == "failed" for one, other in pairs)
    more = Counter((one.scenario, one.role) for one, _ in different)
    scenarios = []
    for key in results[0].scenarios:
        own = [pair for pair in pairs if pair[0].scenario == key]
        reporting = [pair for pair in own if pair[0].role == "reporting"]
        scenarios.append([key, len(own), sum(_same(*pair) for pair in own), more[key, "tuning"],
                          more[key, "reporting"], _largest(reporting)])  # fmt: skip
    ranking = sorted(zip(results[0].names, *ranks, strict=True), key=lambda row: row[1])
    differing = [_configuration(list(each)) for _, each in groupby(different, key=lambda pair: pair[0][:3])]
    text = PAGE.format(
        tier=TIER, stored=stored, other=other, runs=len(pairs), same=len(same), different=len(different),
        failed=failed, rounded=len(pairs) - failed - len(same) - len(different), tuned=len(choices[0]),
        selected=len(choices[0] & choices[1]), tau=statistics.kendall(*ranks),
        cells=len(cells[0]), equal_cells=sum(map(str.__eq__, *cells)),
        tests=len(verdicts[0]), equal_tests=sum(map(str.__eq__, *verdicts)),
        scenarios=page.pipe_table(scenarios, [
            "scenario", "runs", "same bits", "tuning runs outside the tolerance",
            "reporting runs outside the tolerance", "largest relative difference of a reporting run's final loss"]),
        ranks=page.pipe_table([[name, f"{one:.2f}", f"{two:.2f}"] for name, one, two in ranking],
                              ["method", f"mean rank, {stored}", f"mean rank, {other}"]),
        differing=page.pipe_table(differing, [
            "scenario", "method", "configuration", "tuning seeds", "reporting seeds", "difference"]),
    )  # fmt: skip
    (docs / "results" / "arena-processors.md").write_text(text, encoding="utf-8")


def _configuration(pairs: list[Pair]) -> list[object]:
    """The row of a configuration in a scenario, of which runs differ."""
    row = pairs[0][0]
    seeds = [[one.seed for one, _ in pairs if one.role == role] for role in ("tuning", "reporting")]
    return [row.scenario, row.method, page.describe_configuration(row.configuration),
            *(", ".join(map(str, sorted(each))) for each in seeds), _largest(pairs)]  # fmt: skip


def _same(one: Row, other: Row) -> bool:
    return bool(one.model) and (one.model, one.tables) == (other.model, other.tables)


def _largest(pairs: list[Pair]) -> str:
    """The largest relative difference of the loss; equal infinities do not differ."""
    losses = [(one.loss, other.loss) for one, other in pairs if one.loss != other.loss]
    return f"{max((abs(a - b) / max(a, b) if np.isfinite((a, b)).all() else np.inf for a, b in losses), default=0):.1g}"


if __name__ == "__main__":
    main(*sys.argv[1:])
