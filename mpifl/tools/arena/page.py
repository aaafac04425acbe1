"""The page of the arena's results, which are computed from the results table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from tabulate import tabulate

from mpifl.config import read
from mpifl.text import format_count
from mpifl.tools.analysis.figures import profile_figure, ranks_figure
from mpifl.tools.analysis.ranking import RankTest, performance_profile, rank_test
from mpifl.tools.analysis.significance import Interval, mean_difference
from mpifl.tools.arena import held_out, statistics
from mpifl.tools.arena.claims import ClaimTest, judge, load_claims
from mpifl.tools.arena.interactive import write_interactive
from mpifl.tools.arena.suite import Method, Scenario, Suite
from mpifl.tools.arena.table import Row

Table = tuple[list[list[str]], list[str]]  # rows and titles of a table
FACTORS = (1, 2, 4)  # columns of the table of all scenarios: multiples of the smallest time to the target
STABLE_TAU = 0.8  # Kendall's tau below which no order of all methods is claimed
LEAST_COST = 1e-9  # s: stands for a time of 0
MOST_METHODS = 3  # in a cell of the decision table
USES = {
    "loss": "smallest loss at the end",
    "time": "first at the target (s)",
    "worst": "accuracy of the worst tenth of clients (percentage points)",
}
ABOUT = """\
Each method has {configurations} configurations in each scenario: the defaults of its paper, and random draws from its
search space in `jobs/arena/methods.yaml`. The configuration with the smallest mean training loss at the end over
{tuning} tuning seeds is run with {reporting} other seeds, and these runs are reported. All methods have the same
horizon in a scenario. Each local step takes the computing time of its client, so more local steps take longer. A run
that failed or diverged ranks below every other run.
"""
USE = f"""\
A cell names the best method, and the methods that the signed-rank test with Holm's correction does not distinguish from
it. The number is the lead of the best method over the best one that is distinguishable from it: the mean paired
difference with its 95 % interval, or, where a run misses the target and there is no interval, a count of pairs. A cell
is empty where more than {MOST_METHODS} methods, or all, cannot be distinguished; where the interval contains 0, or a
pair disagrees; where every method misses the target at some seed; or where the measure is missing. The same runs choose
the best method and test it, so leads tend to be too large and p-values too small. Holm's correction is for the methods
of a scenario, not for the number of cells. Times to the target are multiples of the interval between evaluations, so
differences can be equal in all pairs.
"""
CLAIMS = """\
Titles and abstracts are quoted, and the comparison is our reading of them; for tables the compared numbers are given,
each with its step size in parentheses. Only the direction of a claim is tested. The papers have other tasks and step
sizes; the scenarios have delays and partitions of the same kind, such as unequal rates or iid, and not the paper's own.
All methods are tuned by the same rules; those with local steps may take several in a contact, and the others take one.
rho is the time to an accuracy of 80 %, as a share of the horizon, and is tested as the time to the target. *Ahead by*
is the mean paired difference of the loss, of the seconds to the target, or of the accuracy in percentage points,
positive where the claim is right. A claim holds if its whole 95 % interval is above 0, does not hold if the whole
interval is below 0, and is not decided otherwise. If a run never reaches the target there is no interval: all pairs
must agree, and a pair in which neither run reaches the target agrees with neither answer. The intervals are not
corrected for the number of claims.
"""
HOME = """\
The studies of the papers of these methods are in this package. How they compare, by the loss at the end:
"""
VERDICTS = {  # of a method in a scenario: what the page says of a home method
    "worse": "worse than the best method",
    "not distinguishable": "not distinguishable from it",
    "best": "the best",
}


class Results(NamedTuple):
    """The results of a tier."""

    suite: Suite
    tier: str
    methods: dict[str, Method]
    scenarios: dict[str, Scenario]
    """those of the tier that have reporting runs"""
    rows: Sequence[Row]
    loss: np.ndarray
    """(scenarios, methods, seeds)"""
    time: np.ndarray
    """(scenarios, methods, seeds) s to the target"""

    @property
    def names(self) -> list[str]:
        """The names of the methods."""
        return list(self.methods)

    @property
    def own(self) -> list[str]:
        """The names of a user's methods."""
        return [name for name in self.methods if name not in self.suite.methods]

    @property
    def costs(self) -> pd.DataFrame:
        """The times to the target, a row for each scenario and seed; above 0, as a profile needs them."""
        return pd.DataFrame(
            np.moveaxis(np.maximum(self.time, LEAST_COST), 2, 1).reshape(-1, len(self.methods)), columns=self.names
        )

    @property
    def test(self) -> RankTest:
        """The test of the mean ranks of the loss."""
        return rank_test(pd.DataFrame(statistics.ranks(self.loss).mean(axis=2), columns=self.names))


def collect(suite: Suite, tier: str, methods: Mapping[str, Method], rows: Sequence[Row]) -> Results:
    """The results of a tier from the rows of its table."""
    have = {row.scenario for row in rows if row.role == "reporting"}
    scenarios = {key: each for key, each in suite.tier(tier).items() if key in have}
    found = {key: each for key, each in methods.items() if any(row.method == key for row in rows)}
    loss, time = (statistics.scores(rows, measure, list(scenarios), list(found)) for measure in ("loss", "time"))
    return Results(suite, tier, found, scenarios, rows, loss, time)


def write_page(results: Results, out: Path, name: str) -> Path:
    """Writes the page, its figures and the interactive page into the folder; returns the page's path."""
    suite, tier, rows = results.suite, results.tier, results.rows
    names, scenarios = results.names, results.scenarios
    missing = [key for key in suite.tier(tier) if key not in scenarios]
    method = "".join(f" --method {key}" for key in results.own)
    title, said = f"The arena: {suite.name}, {tier} tier", about(results)
    parts = [f"# {title}", f"{said}\n\nThe guide of the arena explains the columns.",
             f"[The same results as an interactive page, with filters and curves]({name}.html)",
             f"## Scenarios\n\n{pipe_table(*scenarios_table(scenarios))}"]  # fmt: skip
    if missing:
        parts.insert(3, f"Not computed here: {', '.join(missing)}.")
    if len(names) > 2 and len(scenarios) > 1:
        figures = {"profile": profile_figure({"": results.costs}, 7.0), "ranks": ranks_figure(results.test, 7.0)}
        for kind, figure in figures.items():
            figure.savefig(out / f"{name}-{kind}.png", dpi=150, metadata={"Software": None})
        parts += [
            f"## All scenarios\n\n{pipe_table(*methods_table(results))}",
            f"![Performance profiles]({name}-profile.png)\n\n![Mean ranks]({name}-ranks.png)",
            f"## How stable is the ranking?\n\n{stability(results)}",
        ]
        if groups := [f"{k}. {', '.join(group)}" for k, group in enumerate(results.test.groups, 1)]:
            said_of_groups = "Groups of methods that Nemenyi's test does not distinguish, which may overlap:"
            parts += [said_of_groups, "\n".join(groups)]
        said_of_held_out, kinds = held_out.beside_others(
            suite.held_out, list(scenarios), names, results.loss, results.time
        )
        if said_of_held_out:
            parts += ["## What was held out", said_of_held_out]
            parts += [pipe_table(rows, [kind, *held_out.TITLES[kind]]) for kind, rows in kinds.items()]
    parts.append(f"## Which method in which setting\n\n{USE}\n{pipe_table(*decision_table(results))}")
    tables = [scenario_results(each, names, rows, results.loss[k]) for k, each in enumerate(scenarios.values())]
    if said_of_home := home_methods(suite.home, list(scenarios), tables):
        parts.append(f"## The methods of the reproduced papers\n\n{said_of_home}")
    tests = list(judge(rows, load_claims()))
    if any(test.scenario for test in tests):
        parts.append(f"## Claims of papers\n\n{CLAIMS}\n{count_verdicts(tests)}\n\n{pipe_table(*claims_table(tests))}")
    for k, (each, cells) in enumerate(zip(scenarios.values(), tables, strict=True)):
        command = f"`mpifl arena{method} --scenario {each.name}` computes this table again."
        never = "" if np.isfinite(results.time[k]).any() else "No run reaches the target."
        notes = " ".join(filter(None, [unchanged(each, names, rows), never, command]))
        parts.append(f"## {each.name}\n\n{each.why}\n\n{pipe_table(*cells)}\n\n{notes}")
    facts = [{row[0]: dict(zip(titles[1:], row[1:], strict=True)) for row in table} for table, titles in tables]
    write_interactive(out / f"{name}.html", title, said, facts, names, rows, scenarios)
    path = out / f"{name}.md"
    path.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    return path


def about(results: Results) -> str:
    """The rules, and how many runs there are, in sentences."""
    suite, rows = results.suite, results.rows
    ends = {status: sum(row.status == status for row in rows) for status in ("completed", "diverged", "failed")}
    text = ABOUT.format(configurations=suite.configurations, tuning=len(suite.tuning_seeds),
                        reporting=len(suite.reporting_seeds))  # fmt: skip
    count = f"{format_count(len(results.methods), 'method')}, {format_count(len(results.scenarios), 'scenario')}"
    found = {(row.scenario, row.method, row.seed) for row in rows if row.role == "reporting"}
    missing = sum((scenario, method, seed) not in found for scenario in results.scenarios for method in results.methods
                  for seed in suite.reporting_seeds)  # fmt: skip
    counts = ", ".join(f"{number:,} {status}" for status, number in ends.items())
    said = f" Reporting runs that are missing, and count as failed: {missing:,}." if missing else ""
    if results.own:
        text += f"The search space of {' and '.join(results.own)} is the dict ARENA of its module.\n"
    return f"{text}\n{count}, {len(rows):,} runs: {counts}.{said}"


def scenarios_table(scenarios: Mapping[str, Scenario]) -> Table:
    """The table of the scenarios with its titles."""
    table = []
    for key, each in scenarios.items():
        job = read.load(each.path)
        table.append([key, each.task, each.partition, each.delay, str(job.problem.clients),
                      f"{job.stop.time:g}", f"{each.target:g}", each.why])  # fmt: skip
    return table, ["scenario", "task", "partition", "delays", "clients", "horizon (s)", "target", "why"]


def methods_table(results: Results) -> Table:
    """The table of the methods over all scenarios with its titles."""
    names, loss, costs = results.names, results.loss, results.costs
    ranks, (ends, first) = statistics.mean_ranks(loss), statistics.bootstrap(loss)
    profile = performance_profile(costs, FACTORS)
    table = []
    for k in np.argsort(ranks, kind="stable").tolist():
        own = [row for row in results.rows if row.method == names[k]]
        configurations: dict[tuple[str, str], bool] = {}
        for row in own:
            if row.role == "tuning":
                key = row.scenario, row.configuration
                configurations[key] = configurations.get(key, True) and np.isfinite(row.time)
        table.append([
            names[k], f"{ranks[k]:.1f} ({ends[0, k]:.1f} to {ends[1, k]:.1f})", f"{100 * first[k]:.0f}",
            *(f"{100 * profile[names[k]][factor]:.0f}" for factor in FACTORS),
            f"{100 * np.isfinite(costs[names[k]]).mean():.0f}", f"{100 * np.isinf(loss[:, k]).mean():.0f}",
            _percent([row.status != "completed" for row in own if row.role == "tuning"]),
            _percent(list(configurations.values())), ", ".join(results.methods[names[k]].knows) or "-",
        ])  # fmt: skip
    titles = ["method", "mean rank by loss (95 %)", "first in bootstrap (%)",
              *(f"target within {f}x (%)" for f in FACTORS), "target reached (%)", "failed (%)", "failed in tuning (%)",
              "configurations that reach the target (%)",
              "knows"]  # fmt: skip
    return table, titles


def describe_place(results: Results, method: str) -> str:
    """Where a method is among all methods by its mean rank, in a clause."""
    ranks = statistics.mean_ranks(results.loss)
    rank = ranks[results.names.index(method)]
    place = 1 + int((ranks < rank).sum())
    return f"{method}: mean rank by loss {rank:.1f}, number {place} of {format_count(len(ranks), 'method')}"


def taus(results: Results) -> tuple[float, dict[str, float]]:
    """Kendall's tau between rankings by halves of the seeds, and by all scenarios and those without each task."""
    tasks = [each.task for each in results.scenarios.values()]
    return statistics.tau_of_halves(results.loss), statistics.tau_without(results.loss, tasks)


def order_claim(halves: float, without: Mapping[str, float]) -> str:
    """Whether an order of all methods is claimed, in a sentence on `taus`."""
    stable = sum(tau >= STABLE_TAU for tau in (halves, *without.values()))
    cases = 1 + len(without)
    claim = "" if stable == cases else ", so no order of all methods is claimed"
    return f"Kendall's tau between these rankings is at least {STABLE_TAU:g} in {stable} of {cases} cases{claim}."


def stability(results: Results) -> str:
    """How stable the ranking is, in sentences."""
    test, (halves, without) = results.test, taus(results)
    tasks = "; ".join(f"{tau:.2f} without {task}" for task, tau in without.items())
    return (
        f"Between the rankings by two random halves of the seeds Kendall's tau is {halves:.2f} on average. Between the "
        f"ranking by all scenarios and the ranking without those of a task it is: {tasks}. "
        f"{order_claim(halves, without)} The tests use one rank for each method and scenario, that of its mean rank "
        f"over the seeds. Friedman's test that all methods perform alike has p = {test.p:.2g}. Nemenyi's test "
        f"distinguishes methods whose mean ranks are at least {test.difference:.1f} apart."
    )


def decision_table(results: Results) -> Table:
    """The decision table with its titles; a cell is empty where the data do not decide."""
    table = []
    for key, each in results.scenarios.items():
        clients = str(read.load(each.path).problem.clients)
        scores = [statistics.scores(results.rows, measure, [key], results.names)[0] for measure in USES]
        cells = [_decision(results.names, score) for score in scores]
        table.append([each.delay, each.partition, clients, each.task, *cells])
    return table, ["delays", "partition", "clients", "task", *USES.values()]


def _decision(names: Sequence[str], score: np.ndarray) -> str:
    if np.isinf(score.mean(axis=1)).all():
        return ""
    best, others = statistics.against_best(score)
    alike = [each.method for each in others if not each.distinguishable]
    rest = [each.method for each in others if each.distinguishable]
    if len(alike) >= MOST_METHODS or not rest:
        return ""
    ahead = statistics.ahead(score[best], score[rest[0]])
    if statistics.verdict(ahead) != "holds":
        return ""
    return f"{', '.join(names[k] for k in [best, *alike])} over {names[rest[0]]}: {margin(ahead)}"


def margin(ahead: np.ndarray) -> str:
    """The mean of paired differences with its interval, or in how many pairs the first is ahead."""
    interval = mean_difference([ahead])
    if np.isnan(interval.low):
        return f"ahead in {(ahead > 0).sum()} of {len(ahead)} pairs, behind in {(ahead < 0).sum()}"
    return _interval(interval)


def claims_table(tests: Sequence[ClaimTest]) -> Table:
    """The table of claims with its titles."""
    table = []
    for claim, scenario, ahead, verdict in tests:
        said = f"{claim.better} ahead of {claim.worse} in {claim.measure}"
        missing = (
            f"not in the suite: {claim.lacks}" if claim.lacks else f"not in these results: {', '.join(claim.scenarios)}"
        )
        here = margin(ahead) if scenario else ""
        says = f'"{claim.says}"' if claim.where in ("title", "abstract") else claim.says
        table.append([f"{claim.paper}, {claim.where}: {says}", said, scenario or missing, here, verdict])
    return table, ["claim", "tested as", "scenario", "ahead by (95 %)", "verdict"]


def count_verdicts(tests: Sequence[ClaimTest]) -> str:
    """How many claims are tested, and with which verdicts."""
    verdicts = [test.verdict for test in tests]
    claims, tested = ({id(test.claim) for test in tests if test.scenario or every} for every in (True, False))
    return (f"Claims tested: {len(tested)} of {len(claims)}, in "
            f"{format_count(len(tests) - verdicts.count('not tested'), 'test')}. Tests in which the claim holds: "
            f"{verdicts.count('holds')}; in which it does not: {verdicts.count('does not hold')}; not decided: "
            f"{verdicts.count('not decided')}.")  # fmt: skip


def scenario_results(scenario: Scenario, names: Sequence[str], rows: Sequence[Row], loss: np.ndarray) -> Table:
    """The table of a scenario with its titles."""
    best, others = statistics.against_best(loss)
    verdicts = {best: ("", "best" if np.isfinite(loss[best]).any() else "all methods failed")}
    verdicts |= {v.method: (_interval(v.difference), "worse" if v.distinguishable else "not distinguishable")
                 for v in others}  # fmt: skip
    table = []
    for k, (difference, verdict) in verdicts.items():
        own = [row for row in rows if (row.scenario, row.method, row.role) == (scenario.name, names[k], "reporting")]
        reached = [row for row in own if np.isfinite(row.time)]
        failed = sum(row.status != "completed" for row in own)
        fine = [row for row in own if row.status == "completed"]
        table.append([
            names[k], _mean([row.loss for row in fine]), difference, verdict, _median([row.time for row in reached]),
            _median([row.updates for row in reached]), _median([row.bytes / 1e6 for row in reached]), str(len(reached)),
            _mean([row.area for row in fine]), _mean([100 * row.accuracy for row in fine]),
            _mean([100 * row.worst for row in fine]), str(failed or ""),
            describe_configuration(own[0].configuration) if own else "-",
        ])  # fmt: skip
    return table, ["method", "loss", "difference to best (95 %)", "verdict", "time to target (s)", "updates", "MB",
                   "runs that reach the target", "area", "accuracy (%)", "worst tenth (%)", "failed",
                   "configuration"]  # fmt: skip


def home_methods(home: Sequence[str], scenarios: Sequence[str], tables: Sequence[Table]) -> str:
    """In which scenarios each home method has which verdict, in sentences; "" where the tables have none of them."""
    lines = []
    for name in home:
        verdicts = {
            scenario: row[titles.index("verdict")]
            for scenario, (rows, titles) in zip(scenarios, tables, strict=True) for row in rows if row[0] == name
        }  # fmt: skip
        cases = []
        for verdict, said in VERDICTS.items():
            found = [scenario for scenario, each in verdicts.items() if each == verdict]
            cases.append(f"{said} in {len(found)}" + (f" ({', '.join(found)})" if found else ""))
        if verdicts:
            lines.append(f"- {name}, in {format_count(len(scenarios), 'scenario')}: {'; '.join(cases)}.")
    return "\n".join([HOME, *lines]) if lines else ""


def unchanged(scenario: Scenario, names: Sequence[str], rows: Sequence[Row]) -> str:
    """Which methods end all their runs with the loss of the initial model, to five digits; "" if none does."""
    own = [row for row in rows if row.scenario == scenario.name and row.role == "reporting"]
    curves = {name: [row.curve.split() for row in own if row.method == name] for name in names}
    found = [name for name, each in curves.items() if each and all(curve[:1] == curve[-1:] != [] for curve in each)]
    return f"In all runs of {' and '.join(found)} the final loss is that of the initial model." if found else ""


def describe_configuration(text: str) -> str:
    """The options of a configuration in one line."""
    values = json.loads(text) if text else {}
    shown = {key: json.dumps(value) if isinstance(value, dict) else value for key, value in values.items()}
    options = ", ".join(f"{key} {value}" for key, value in shown.items() if key != "name").replace('"', "")
    return options or ("defaults" if text else "none has a finite loss")


def _mean(values: Sequence[float]) -> str:
    return _digits(float(np.mean(values))) if values and not np.isnan(values).any() else "-"


def _percent(values: Sequence[bool]) -> str:
    return f"{100 * np.mean(values):.0f}" if values else "-"


def _median(values: Sequence[float]) -> str:
    return _digits(float(np.median(values))) if values else "never"


def _digits(value: float, digits: int = 4, sign: str = "-") -> str:
    """A number with so many digits, or all of those before the point of one below 1e7."""
    return f"{value:{sign}.0f}" if 10**digits <= abs(value) < 1e7 else f"{value:{sign}.{digits}g}"


def _interval(interval: Interval) -> str:
    if not np.isfinite(interval.estimate):
        return "failed"
    estimate, low, high = (_digits(each, 3, "+") for each in interval)
    return estimate if np.isnan(interval.low) else f"{estimate} ({low} to {high})"


def pipe_table(rows: Sequence[Sequence[object]], titles: Sequence[str]) -> str:
    """A table in Markdown."""
    return tabulate(rows, titles, tablefmt="pipe", disable_numparse=True)
