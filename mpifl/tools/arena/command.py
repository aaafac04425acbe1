"""`mpifl arena`: computes the runs of a tier, or those of a user's method, and writes the table and the page."""

from __future__ import annotations

import itertools
import logging
import re
import shlex
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mpifl.config import read
from mpifl.errors import ConfigError, as_unwritable
from mpifl.execution import load_problem
from mpifl.tools.arena.page import collect, describe_place, write_page
from mpifl.tools.arena.submission import keep_source, why_refused, write_submission
from mpifl.tools.arena.suite import Scenario, Suite, load_suite, own_method, scenario_study
from mpifl.tools.arena.table import Row, measured, read_table, stored_rows, write_table
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.select import without_rejected
from mpifl.tools.studies.sweep import final_line, sweep_selected

log = logging.getLogger(__package__)

OUT = Path("results/arena")
MAX_NAMED = 3  # scenarios in the name of a file, which may have 255 bytes


def arena(
    tier: str | None = None, own: str | None = None, only: Sequence[str] = (), out: Path = OUT, compute: bool = True,
    processes: int | None = None, progress: Callable[[str], None] | None = None,
) -> str:  # fmt: skip
    """Tunes and runs the methods in the scenarios of a tier; writes the table and the page; returns what is printed.

    Args:
        tier: quick or standard; None: the smallest tier that has the scenarios of `only`.
        own: A method "module:Class". Only this is run; the suite's methods have their stored results.
        only: Names of scenarios; empty: all scenarios of the tier.
        out: The folder of the run files, the table and the page.
        compute: Whether to compute missing runs; if not, the table has the existing ones.
        processes: Runs computed at a time; None: one for each core.
        progress: Called with a line on the state of a scenario whenever a run ends.

    Raises:
        ConfigError: An unknown tier, scenario or method, or missing data.
    """
    suite = load_suite()
    tier = tier or suite.tier_of(only)
    chosen = suite.chosen(tier, only)
    mine = {own: own_method(own)} if own else {}
    others = _suite_rows(suite, tier, chosen, out) if own else []
    refused = why_refused(own) if own else ""
    if refused:
        log.warning("%s", refused)
    rows: list[Row] = []
    named = only if len(only) <= MAX_NAMED else [f"{len(only)}-scenarios-{zlib.crc32(','.join(only).encode()):08x}"]
    label = [re.sub(r"\W+", "-", own)] if own else []
    name, folder = "-".join([suite.name, tier, *label, *named]), out / "-".join([suite.name, *label])
    if own:
        keep_source(folder, own)
    studies = {key: scenario_study(suite, each, mine or suite.methods, folder) for key, each in chosen.items()}
    for each in chosen.values() if compute else ():
        load_problem(read.load(each.path))  # before the runs, for an error if its data are missing
    lines = []
    for key, study in studies.items():
        index = sweep_selected(study, processes, progress) if compute else Index(without_rejected(study, Index(study)))
        lines.append(final_line(index))
        rows += measured(suite, chosen[key], study, index)
    if own:
        keep_source(folder, own)  # it may have been edited meanwhile
    if not rows:
        raise ConfigError("--no-runs", out, "this folder has no runs of these scenarios", remedy="leave out --no-runs")
    written = [out / f"{name}.csv"]
    with as_unwritable("--out", out):
        written[0].write_text(write_table(rows), encoding="utf-8")
        if own:
            if not only and not refused:
                written.append(write_submission(out / f"{name}.json", suite, tier, own, rows))
            rows += others
        results = collect(suite, tier, mine | suite.methods, rows)
        page = write_page(results, out, name)
    written += [page, page.with_suffix(".html")]
    if own:
        lines.append(describe_place(results, own))
    return "\n".join([*lines, *filter(None, [refused]), f"wrote {', '.join(map(str, written))}"])


def _suite_rows(suite: Suite, tier: str, chosen: Mapping[str, Scenario], out: Path) -> list[Row]:
    """The results of the suite's methods in these scenarios, stored in the package or in tables in `out`.

    Raises ConfigError for a scenario that no table has completely.
    """
    found: dict[str, list[Row]] = {}
    for table in (stored_rows(tier, chosen), *map(read_table, sorted(out.glob(f"{suite.name}-*.csv")))):
        for name in chosen.keys() - found.keys():
            rows = [row for row in table if row.scenario == name and row.method in suite.methods]
            reported = {(row.method, row.seed) for row in rows if row.role == "reporting"}
            if reported == set(itertools.product(suite.methods, suite.reporting_seeds)):
                found[name] = rows
    if lacking := [name for name in chosen if name not in found]:
        wrong = f"{lacking[0]} has no stored results of the suite's methods, and no table in {out} has all of them"
        command = f"mpifl arena --tier {tier} --scenario {','.join(lacking)} --out {shlex.quote(str(out))}"
        remedy = f"name other scenarios, or run {command} first"
        raise ConfigError("--tier", tier, wrong, remedy=remedy)
    return [row for name in chosen for row in found[name]]
