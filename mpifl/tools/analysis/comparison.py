"""`mpifl compare`: whether methods differ from a baseline, over trials that are paired by seed and setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mpifl.errors import ConfigError, as_unwritable
from mpifl.text import capitalised, format_count
from mpifl.tools.analysis import latex
from mpifl.tools.analysis.cautions import cautions
from mpifl.tools.analysis.curves import metric_label
from mpifl.tools.analysis.figures import find_label
from mpifl.tools.analysis.options import NOT_METRICS, is_percentage, scale_of
from mpifl.tools.analysis.report import few, file_notes, load_trials
from mpifl.tools.analysis.significance import (
    LEVEL,
    MOST_TRIALS,
    Interval,
    holm,
    interquartile_mean,
    mean_difference,
    permutation_test,
    rank_biserial,
    signed_rank_test,
    smallest_p,
    trials_needed,
)
from mpifl.tools.analysis.tables import Table, column_title, escape_markdown, format_csv, format_number
from mpifl.tools.analysis.trials import (
    Group,
    Trial,
    by_other_labels,
    format_value,
    group_trials,
)

TESTS = {"signed-rank": "Wilcoxon's signed-rank test", "permutation": "the permutation test of the mean difference"}
ALL = "all"  # the label of all settings together


@dataclass(frozen=True)
class CompareOptions:
    """What `mpifl compare` compares. Raises ConfigError for a test that does not exist."""

    baseline: str
    """the method that the others are compared with: its label on the axis `by`"""
    by: str | None = None
    """the axis of the study, or the key of the job, whose values are compared; None: the first"""
    tuned: tuple[str, ...] = ()
    """keys that were tuned for each method, such as algorithm.step_size: they do not distinguish settings"""
    metric: str | None = None
    """metric of the last evaluations; None: test_accuracy where the runs have it, else train_loss"""
    test: str = "signed-rank"
    """signed-rank or permutation"""
    better: str | None = None
    """whether large or small values of the metric are good; None: large for accuracies, small for other metrics"""
    power: float | None = None
    """a difference in the table's unit: the table shows how many trials detect it with power 0.8; None: not shown"""

    def __post_init__(self) -> None:
        if self.test not in TESTS:
            raise ConfigError("test", self.test, "unknown", f"one of {', '.join(TESTS)}")
        if self.better not in (None, "large", "small"):
            raise ConfigError("better", self.better, "unknown", "large or small")
        if self.power is not None and not 0 < abs(self.power) < np.inf:
            raise ConfigError("power", self.power, "not a difference", "a number other than 0, in the table's unit")


class Comparison(NamedTuple):
    """A method and the baseline in one setting, or in all of them."""

    method: str
    setting: dict[str, str]
    pairs: int
    value: Interval  # interquartile mean of the method
    difference: Interval  # method minus baseline
    better: float  # number of pairs in which the method is better; an equal pair counts half
    effect: float  # rank-biserial correlation; above 0: the method is better
    p: float
    p_holm: float
    trials: float  # number that detects a difference of `CompareOptions.power`; NaN where it is not given, or not known
    settings: int  # those in which the method has pairs

    @property
    def verdict(self) -> str:
        """better, worse, or not distinguishable at the level of 5 % after Holm's correction."""
        return "not distinguishable" if not self.p_holm < LEVEL else "better" if self.effect > 0 else "worse"


class Comparisons(NamedTuple):
    """All comparisons of some runs."""

    table: Table
    paper: Table  # the columns that fit a page
    rows: list[Comparison]
    sentences: list[str]  # a paper's text: each method against the baseline over all settings


def compare_groups(groups: Sequence[Group], options: CompareOptions, cautions: Sequence[str] = ()) -> Comparisons:
    """Compares the methods of these groups. cautions: further notes below the table. Raises ConfigError."""
    by = find_label(options.by, groups, "by") if options.by else next(iter(groups[0].labels), "")
    if not by:
        raise ConfigError("runs", len(groups), "all have one configuration", "runs of at least two methods")
    metric = _metric(groups, options)
    tuned = [find_label(key, groups, "tuned") for key in options.tuned]
    if by in tuned:
        raise ConfigError("tuned", by, "its values are compared", "keys that were tuned for each of them")
    large = options.better == "large" if options.better else is_percentage(metric)
    settings, notes = _settings(groups, by, tuned, options, metric, -np.inf if large else np.inf)
    names = [label for label in groups[0].labels if label != by and label not in tuned]
    found: list[Comparison] = []
    scopes = [({name: format_value(s.labels.get(name)) for name in names}, [s]) for s in settings]
    if len(settings) > 1:
        scopes.append((dict.fromkeys(names, ALL), settings))
    for labels, members in scopes:
        for method in dict.fromkeys(method for member in members for method in member.pairs):
            paired = [member.pairs[method] for member in members if method in member.pairs]
            found.append(_compare(method, labels, paired, 1.0 if large else -1.0, options))
    adjusted = iter(holm([c.p for c in found if c.method != options.baseline]))
    found = [c if c.method == options.baseline else c._replace(p_holm=next(adjusted)) for c in found]
    tests = sum(c.method != options.baseline for c in found)
    table = _table(found, by, names, metric, options, tests, [*notes, *cautions])
    paper = _paper_table(table, found, metric, options, tests, notes)
    whole = [c for c in found if c.method != options.baseline and c.setting == scopes[-1][0]]
    return Comparisons(table, paper, found, [_sentence(c, metric, options, tests, large) for c in whole])


def _sentence(c: Comparison, metric: str, options: CompareOptions, tests: int, large: bool) -> str:
    """A comparison in a sentence."""
    where = f"{format_count(c.pairs, 'pair')} of trials" + (f" in {c.settings} settings" if c.settings > 1 else "")
    what, unit = metric.replace("_", " "), " percentage points" if is_percentage(metric) else ""
    estimate, low, high = (_number(v, signed=True) for v in c.difference)
    interval = f"95 % interval {low} to {high}; " if np.isfinite(c.difference.low) else ""
    test = f"{interval}{TESTS[options.test]}, p = {_p(c.p_holm)}".replace("p = <", "p < ")
    test += f" after Holm's correction for {tests} comparisons" if tests > 1 else ""
    if c.verdict == "not distinguishable":
        return (f"Over {where} the {what} of {c.method} is not distinguishable from that of {options.baseline} "
                f"(difference {estimate}{unit}, {test}).")  # fmt: skip
    agrees = (c.difference.estimate > 0) == (large == (c.effect > 0))  # the mean, and the ranks that are tested
    if not np.isfinite(c.difference.estimate) or not agrees:
        return (f"Over {where} the {what} of {c.method} is {c.verdict} by its ranks than that of {options.baseline} "
                f"(mean difference {estimate}{unit}, {test}).")  # fmt: skip
    side = "higher" if c.difference.estimate > 0 else "lower"
    size = format_number(abs(c.difference.estimate), 2)
    return f"Over {where} the {what} of {c.method} is {size}{unit} {side} than that of {options.baseline} ({test})."


def compare_files(paths: Sequence[str | Path], options: CompareOptions) -> Comparisons:
    """The comparisons over run files, patterns and folders. Raises ConfigError."""
    trials, unread = load_trials(paths)
    groups = group_trials(trials)
    return compare_groups(groups, options, [*file_notes(trials, unread), *few(cautions(groups))])


def _metric(groups: Sequence[Group], options: CompareOptions) -> str:
    """The metric that is compared. Raises ConfigError for one that the evaluations do not have."""
    known = dict.fromkeys(str(name) for group in groups for trial in group.trials for name in trial.evaluations)
    metrics = [name for name in known if name not in NOT_METRICS]
    if options.metric and options.metric not in metrics:
        raise ConfigError("metric", options.metric, "not a metric of the evaluations", f"one of {', '.join(metrics)}")
    accuracies = all(len(group.last("test_accuracy")) for group in groups)
    return options.metric or ("test_accuracy" if accuracies else "train_loss")


class _Setting(NamedTuple):
    """The trials of one setting: for each method its values and the baseline's, (pairs,) each, paired by seed."""

    labels: dict[str, Any]
    pairs: dict[str, tuple[np.ndarray, np.ndarray]]


def _settings(
    groups: Sequence[Group], by: str, tuned: Sequence[str], options: CompareOptions, metric: str, worst: float
) -> tuple[list[_Setting], list[str]]:
    """The settings in which the baseline has trials, and notes on what was left out.

    worst: the value of a trial that diverged.

    Raises ConfigError.
    """
    methods = list(dict.fromkeys(format_value(group.labels[by]) for group in groups))
    if options.baseline not in methods:
        raise ConfigError(
            "baseline", options.baseline or "''", f"no run has it as {by}", f"one of {', '.join(methods)}"
        )
    if len(methods) < 2:
        raise ConfigError("baseline", options.baseline, f"all runs have it as {by}", "runs of other methods beside it")
    settings, notes, diverged = [], [], 0
    for members in by_other_labels(groups, {by, *tuned}):
        values: dict[str, dict[tuple[int, int], float]] = {}
        for group in members:
            method = format_value(group.labels[by])
            if method in values:
                raise ConfigError(
                    "tuned", ", ".join(options.tuned) or "''", f"{method} has several configurations in one setting",
                    "one, that of its best values", "leave out files, use a STUDY.yaml with a selection, or tune less",
                )  # fmt: skip
            values[method] = {key: _value(trial, metric, worst) for key, trial in group.by_seed().items()}
            diverged += sum(not np.isfinite(value) for value in values[method].values())
        labels = members[0].labels
        base = values.get(options.baseline)
        if base is None:
            notes.append(f"Left out: {members[0].name}, a setting without {options.baseline}.")
            continue
        pairs = {}
        for method, own in values.items():
            seeds = [seed for seed in own if seed in base]
            if left := len({*own} ^ {*base}):
                notes.append(
                    f"Left out: {format_count(left, 'trial')} of {method} or {options.baseline} without a partner."
                )
            if seeds:
                pairs[method] = np.array([own[s] for s in seeds]), np.array([base[s] for s in seeds])
        settings.append(_Setting(labels, pairs))
    if len(settings) > 1:
        counts = {method: sum(method in setting.pairs for setting in settings) for method in methods}
        notes += [f"Not in all settings: {method} has pairs in {count} of {len(settings)}."
                  for method, count in counts.items() if 0 < count < len(settings)]  # fmt: skip
    if not any(set(setting.pairs) - {options.baseline} for setting in settings):
        set_apart = [label for label in groups[0].labels if label != by and label not in tuned]
        raise ConfigError(
            "baseline", options.baseline, "no other method has a trial with the same seed and setting",
            "runs of the same settings and seeds",
            f"or name with --tuned what is each method's own, of {', '.join(set_apart)}" if set_apart else "",
        )  # fmt: skip
    if diverged:
        trials = format_count(diverged, "trial")
        notes.append(f"Diverged: {trials}; each counts as worse than any that did not.")
        if options.test == "permutation":
            raise ConfigError("test", "permutation", f"{trials} diverged, without a difference", "signed-rank")
    return settings, notes


def _value(trial: Trial, metric: str, worst: float) -> float:
    """The metric at the trial's last evaluation, as tables show it; `worst` if it is not finite there."""
    curve = trial.curve(metric)[1]
    if not np.isfinite(curve).any():
        raise ConfigError(
            "metric", metric, f"{trial.path} has no value of it", "one that all runs have", "or leave out the file"
        )
    last = trial.last(metric) * scale_of(metric)
    return last if np.isfinite(last) else worst


def _compare(
    method: str, setting: dict[str, str], paired: Sequence[tuple[np.ndarray, np.ndarray]], sign: float,
    options: CompareOptions,
) -> Comparison:  # fmt: skip
    """The comparison of a method over the settings in `paired`; sign: 1 where large values are good, else -1."""
    value = interquartile_mean([own for own, _ in paired])
    with np.errstate(over="ignore", invalid="ignore"):  # huge losses; both trials of a pair diverged
        differences = [np.nan_to_num(own - base, nan=0.0, posinf=np.inf, neginf=-np.inf) for own, base in paired]
    pairs = sum(map(len, differences))
    if method == options.baseline:
        nothing = Interval(np.nan, np.nan, np.nan)
        return Comparison(method, setting, pairs, value, nothing, np.nan, np.nan, np.nan, np.nan, np.nan, len(paired))
    every = np.concatenate(differences)
    trials = np.nan
    if options.power and min(map(len, differences)) > 1 and np.isfinite(every).all():
        with np.errstate(over="ignore"):
            deviation = float(np.sqrt(np.mean([each.var(ddof=1) for each in differences])))
        trials = trials_needed(options.power, deviation)
    test = permutation_test if options.test == "permutation" else signed_rank_test
    return Comparison(
        method, setting, pairs, value, mean_difference(differences),
        float((sign * every > 0).sum() + (every == 0).sum() / 2), sign * rank_biserial(differences) + 0.0,
        test(differences), np.nan, trials, len(paired),
    )  # fmt: skip


def _table(
    found: Sequence[Comparison], by: str, names: Sequence[str], metric: str, options: CompareOptions, tests: int,
    notes: Sequence[str],
) -> Table:  # fmt: skip
    title = column_title(metric)
    titles = [by, *names, "pairs", title, "difference", "better in", "effect", "p", "p (Holm)", "verdict"]
    rows = []
    for c in found:
        start = [c.method, *c.setting.values(), str(c.pairs), _interval(c.value)]
        if c.method == options.baseline:
            row = [*start, "-", "-", "-", "-", "-", "baseline"]
        else:
            better = f"{c.better:g} of {c.pairs}"
            row = [*start, _interval(c.difference, signed=True), better, f"{c.effect:.2f}", _p(c.p), _p(c.p_holm),
                   c.verdict]  # fmt: skip
        rows.append([*row, *([_trials(c.trials)] if options.power else [])])
    if options.power:
        titles.append(f"trials for {options.power:g}")
    return Table(titles, rows, 1 + len(names), [False] * len(rows), [*_notes(found, options, title, tests), *notes])


def _paper_table(
    table: Table, found: Sequence[Comparison], metric: str, options: CompareOptions, tests: int, notes: Sequence[str]
) -> Table:  # fmt: skip
    """The columns of the table that fit a page of a paper, with a caption and a note for its readers."""
    kept = [k for k, title in enumerate(table.titles) if title not in ("better in", "p", "verdict")]
    titles, rows = [table.titles[k] for k in kept], [[row[k] for k in kept] for row in table.rows]
    if (wide := latex.width_of(titles, rows)) > latex.PAGE:
        table.notes.append(f"Caution: compare.tex is about {wide:.1f} inches wide, more than a page; give the methods "
                           "shorter names.")  # fmt: skip
    what = metric_label(metric)
    below = (f"{capitalised(what)}: interquartile mean with its 95 % bootstrap interval. Difference from "
             f"{options.baseline}: mean over the pairs of trials with Student's 95 % interval. Effect: rank-biserial "
             f"correlation, above 0 where the method is better. p: {TESTS[options.test]} with Holm's correction for "
             f"{format_count(tests, 'comparison')}; bold where it is below 5 %.")  # fmt: skip
    caption = f"{capitalised(what.partition(' (')[0])} of each method, compared with {options.baseline}"
    column = titles.index("difference")
    bold = frozenset((k, column) for k, c in enumerate(found) if c.p_holm < LEVEL)
    style = latex.Style(caption, below=" ".join([below, *notes]), column=False)
    return Table(titles, rows, table.left, table.marked, [], bold, style)


def _notes(found: Sequence[Comparison], options: CompareOptions, title: str, tests: int) -> list[str]:
    """What the columns are, and what they cannot show."""
    notes = [
        f"{title}: interquartile mean of the trials' last evaluations, with a 95 % interval by bootstrap within each "
        f"setting. Difference: the method minus {options.baseline}, paired by seed and setting, with Student's 95 % "
        "interval. Better in: number of pairs in which the method is better; an equal pair counts half. Effect: "
        "rank-biserial correlation, above 0 where the method is better. "
        f"p: {TESTS[options.test]}, two-sided; p (Holm): corrected for the "
        f"{format_count(tests, 'comparison')} of the table. Verdict: at the level of 5 %.",
    ]
    fewest = min(c.pairs for c in found if c.method != options.baseline)
    least = smallest_p(fewest)
    if least * tests > LEVEL:
        pairs, comparisons = format_count(fewest, "pair"), format_count(tests, "comparison")
        notes.append(f"Caution: with {pairs} p is at least {least:.2g} before the correction for {comparisons}; a "
                     "verdict needs more trials.")  # fmt: skip
    if options.power:
        notes.append(f"Trials for {options.power:g}: the number with which a paired t test at the level of 5 % detects "
                     "a difference of that size with probability 0.8, if differences vary as here.")  # fmt: skip
    return notes


def _interval(value: Interval, signed: bool = False) -> str:
    """Formats an estimate with its interval."""
    estimate, low, high = (_number(v, signed) for v in value)
    return estimate if np.isnan(value.low) else f"{estimate} ({low} to {high})"


def _number(value: float, signed: bool) -> str:
    text = format_number(value, 2)
    return f"+{text}" if signed and value > 0 else text


def _trials(number: float) -> str:
    return f">{MOST_TRIALS}" if np.isinf(number) else format_number(number, 0)


def _p(value: float) -> str:
    return "<0.0001" if value < 1e-4 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def frame(found: Sequence[Comparison]) -> pd.DataFrame:
    """The comparisons with all digits."""
    rows: list[dict[str, Any]] = []
    for c in found:
        intervals = {"value": c.value, "difference": c.difference}
        numbers = {f"{name}{end}": v for name, interval in intervals.items()
                   for end, v in zip(("", "_low", "_high"), interval, strict=True)}  # fmt: skip
        row = {"method": c.method, "pairs": c.pairs, **numbers, "better": c.better, "effect": c.effect, "p": c.p,
               "p_holm": c.p_holm, "trials": c.trials,
               "verdict": c.verdict if np.isfinite(c.p) else "baseline"}  # fmt: skip
        setting = {f"setting.{name}" if name in row else name: value for name, value in c.setting.items()}
        rows.append({"method": c.method, **setting, **row})
    return pd.DataFrame(rows)


def write_comparison(folder: Path, found: Comparisons) -> list[Path]:
    """Writes compare.md, compare.csv, compare.tex and the sentences in LaTeX into a folder. Raises ConfigError."""
    texts = {
        "compare.md": "\n".join([found.table.markdown(), *map(escape_markdown, found.sentences), ""]),
        "compare.csv": format_csv(frame(found.rows)),
        "compare.tex": found.paper.latex(),
        "sentences.tex": "".join(f"{latex.prose(sentence)}\n" for sentence in found.sentences),
    }
    if taken := [name for name in texts if (folder / name).is_dir()]:
        raise ConfigError("out", folder, f"{taken[0]} in it is a folder", "another folder", "or remove it")
    with as_unwritable("out", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
