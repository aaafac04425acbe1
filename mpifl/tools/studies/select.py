"""The trials of a study in groups, and the selection of the values that its report shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifl.errors import ConfigError
from mpifl.runfile.reader import open_run
from mpifl.text import progress
from mpifl.tools.analysis.cautions import cautions
from mpifl.tools.analysis.comparison import CompareOptions, Comparisons, compare_groups
from mpifl.tools.analysis.options import Options
from mpifl.tools.analysis.page import Incomplete
from mpifl.tools.analysis.report import few, report_groups
from mpifl.tools.analysis.trials import Group, Trial, by_other_labels, label_of, load_trial, short_names
from mpifl.tools.studies.halving import settle
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.study import Select, Study, StudyRun, describe


def study_groups(study: Study, index: Index, options: Options | None = None) -> tuple[dict[str, Group], list[str]]:
    """The completed trials of the study, grouped by their labels on the axes, which get short names.

    The groups by their labels as JSON (`_key`), and a line about each run file that cannot be read. options: of the
    report; None: with all metrics.
    """
    unread: list[str] = []
    select = {study.options.select.by} if study.options.select else set()
    metrics = None if options is None else options.metrics | select
    found: dict[str, tuple[StudyRun, list[Trial]]] = {}
    for run in progress(study.runs, "reading run files"):
        status = index.entries[run.identity].status
        try:
            if status == "completed":
                trial = load_trial(run.path, metrics, options.sums if options else ())
                found.setdefault(_key(run), (run, []))[1].append(trial)
            elif status == "damaged":  # or of another job, and then it can be read
                with open_run(run.path) as file:
                    file.config  # noqa: B018 - raises an error where it is damaged
        except ConfigError as error:
            unread.append(f"Left out: {error}.")
    names = short_names(list(dict.fromkeys(label for run, _ in found.values() for label in run.labels)))
    groups = {
        key: Group({name: run.labels.get(label) for label, name in names.items()}, trials)
        for key, (run, trials) in found.items()
    }
    return groups, unread


def _key(run: StudyRun) -> str:
    return json.dumps(run.labels, default=str)


def _failed(study: Study, index: Index, select: Select) -> dict[str, StudyRun]:
    """A failed deciding run by its labels, as JSON: the trials that did not fail would bias the mean."""
    deciding = [run for run in study.runs if select.decides(run.seed)]
    return {_key(run): run for run in deciding if index.entries[run.identity].status == "failed"}


def select_groups(groups: Sequence[Group], select: Select, unreported: bool = False) -> list[Group]:
    """The groups that the rule selects, with all their trials, for each combination of the other axes in their order.

    Groups are compared by the metric's mean over the deciding trials. A group is not selected if that mean is not
    finite, or unless `unreported` if the group has no trial to report.
    """
    over = selected_labels(groups, select)
    chosen: list[Group] = []
    for candidates in by_other_labels(groups, over):
        able = [group for group in candidates if unreported or reported_trials(group, select).trials]
        scored = [(score, k) for k, group in enumerate(able) if np.isfinite(score := select.score(group))]
        if select.rule == "largest-finite":  # a method without the key has one candidate, without a value
            scored.sort(key=lambda pair: -max(float(able[pair[1]].labels.get(label) or 0) for label in over))
        else:
            scored.sort(key=lambda pair: pair[0] if select.rule == "min" else -pair[0])
        chosen += [able[k] for k in sorted(k for _, k in scored[: select.count])]
    return chosen


def selected_labels(groups: Sequence[Group], select: Select) -> list[str]:
    """The labels of the groups whose values the rule selects."""
    known = [label for group in groups for label in group.labels]
    return [label_of(key, known) or key for key in select.keys]


def without_rejected(study: Study, index: Index) -> Study:
    """The study without the reported trials of values that the deciding trials do not select.

    Without seeds that decide it is the whole study.
    """
    select = study.options.select
    if select is None or select.seeds is None:
        return study
    failed = _failed(study, index, select)
    deciding = replace(study, runs=tuple(run for run in study.runs if select.decides(run.seed)))
    able = {key: group for key, group in study_groups(deciding, index)[0].items() if key not in failed}
    chosen = {id(group) for group in select_groups(list(able.values()), select, unreported=True)}
    keys = {key for key, group in able.items() if id(group) in chosen}
    return replace(study, runs=tuple(run for run in study.runs if select.decides(run.seed) or _key(run) in keys))


def reported_trials(group: Group, select: Select) -> Group:
    """The group without the trials that decide what is selected."""
    return replace(group, trials=[trial for trial in group.trials if select.reports(trial.seed)])


def describe_selection(select: Select) -> str:
    """The rule in one sentence, for a table's caption."""
    values = "value" if select.count == 1 else f"{select.count} values"
    at, over = _evaluation(select), " or ".join(select.keys)
    if select.rule == "largest-finite":
        rule = f"the largest {values} of {over} with a finite mean {select.by} at {at}"
    else:
        extreme = "smallest" if select.rule == "min" else "largest"
        rule = f"the {values} of {over} with the {extreme} mean {select.by} at {at}"
    seeds = "all trials"
    if select.seeds is not None:
        names = ", ".join(map(str, select.seeds))
        seeds = f"seed{'s' * (len(select.seeds) > 1)} {names}; the other seeds are reported"
    return f"Selected for each setting: {rule} (over {seeds})."


def _evaluation(select: Select) -> str:
    return "the last evaluation" if select.at == "last" else "the best evaluation of each trial"


def best_groups(groups: Sequence[Group], select: Select, axis: str) -> list[int]:
    """The indices of the groups with the best score of the rule's metric, over the trials that decide.

    Groups that differ only on the first axis, `axis`, and in what the rule selects are compared; a group alone has no
    rival, and is not among them.
    """
    compared = {label_of(axis, [label for group in groups for label in group.labels]), *selected_labels(groups, select)}
    best: list[int] = []
    for members in by_other_labels(groups, compared):
        scores = {id(group): value for group in members if np.isfinite(value := select.score(group))}
        if len(members) > 1 and scores:
            top = max(scores.values()) if select.largest_is_best else min(scores.values())
            best += [identity for identity, value in scores.items() if value == top]
    return [k for k, group in enumerate(groups) if id(group) in best]


def report_study(study: Study, out: str | Path | None = None, options: Options | None = None) -> str:
    """The table, and with `out` the figures, of the study's completed runs, after its selection. Raises ConfigError.

    With `options.all` all values are shown, and those that the rule selects are marked.
    """
    index, options = Index(study), options or Options()
    found = reported_groups(study, index, options)
    select = study.options.select
    tuned = selected_labels(found.candidates, select) if select and not options.all else []
    notes = [*found.notes, *([found.mark] if found.marked and not options.pivot else [])]
    notes += few(cautions(found.groups, options.spread, [*found.candidates, *_stopped(study, index)], tuned))
    runs = _incomplete(study, index)
    name = study.options.name
    return report_groups(found.groups, out, options, notes, found.marked, found.candidates, name, runs, tuned)


def compare_study(study: Study, options: CompareOptions) -> Comparisons:
    """The comparisons of the study's methods, each with the values that its rule selects. Raises ConfigError."""
    index, select = Index(study), study.options.select
    found = reported_groups(study, index)
    tuned = selected_labels(found.candidates, select) if select else []
    options = replace(options, tuned=(*tuned, *options.tuned))
    notes = [*found.notes, *few(cautions(found.groups, "range", [*found.candidates, *_stopped(study, index)], tuned))]
    return compare_groups(found.groups, options, notes)


def combinations_of(study: Study, only: Callable[[StudyRun], bool] = lambda run: True) -> list[Group]:
    """The combinations of a study under the short names of tables, without trials; only: those of these runs."""
    names = short_names(list(dict.fromkeys(label for run in study.runs for label in run.labels)))
    runs = {_key(run): run for run in study.runs if only(run)}
    return [Group({name: run.labels.get(label) for label, name in names.items()}, []) for run in runs.values()]


def _stopped(study: Study, index: Index) -> list[Group]:
    """The combinations that a search has stopped: they belong to the grid of those selected."""
    return combinations_of(study, lambda run: index.entries[run.identity].status == "stopped")


def _incomplete(study: Study, index: Index) -> list[Incomplete]:
    """The runs of a study that are not completed, with the reasons."""
    reasons = {"waiting": "not begun; mpifl sweep runs it", "running": "another process computes it",
               "interrupted": "ended before its stop; mpifl sweep continues it",
               "stopped": "the search computes it no further",
               "damaged": "its file cannot be read, or is of another job; mpifl sweep computes it again"}  # fmt: skip
    found = []
    for run in study.runs:
        entry = index.entries[run.identity]
        if entry.status != "completed":
            reason = entry.error or reasons.get(entry.status, "")
            found.append(Incomplete(f"{describe(run)} ({entry.file})", entry.status, reason))
    return found


class NothingToReport(ConfigError):
    """The runs that a report shows are not completed."""


class Reported(NamedTuple):
    """What a report of a study shows."""

    groups: list[Group]
    """the completed trials that the selection keeps"""
    notes: list[str]
    """lines on what was selected, was left out or is missing"""
    marked: list[int]
    """indices of the best groups, or of the selected ones where all are shown"""
    mark: str
    """meaning of the mark, in a sentence"""
    candidates: list[Group]
    """all groups, before the selection"""


def reported_groups(study: Study, index: Index, options: Options | None = None) -> Reported:
    """The study's completed trials after its selection, with all metrics, or with what the options need.

    Raises NothingToReport.
    """
    select = study.options.select
    if options and options.all and not select:
        wrong = "the study has no section select, so every run is shown anyway"
        raise ConfigError("all", "true", wrong, remedy="leave out --all")
    halved = few(settle(study, index))
    by_key, unread = study_groups(study, index, options)
    everything = list(by_key.values())
    found = Reported(everything, [], [], "", everything)
    if select:
        failed = _failed(study, index, select)
        able = [group for key, group in by_key.items() if key not in failed]
        found = _select(able, everything, select, next(iter(study.runs[0].labels)), bool(options and options.all))
        if failed:
            runs = "; ".join(describe(run) for run in failed.values())
            found.notes.append(f"Not selected, because a deciding trial failed: {runs}.")
    found.notes.extend([*halved, *unread])
    if not found.groups and select and by_key:
        wrong = " ".join(["nothing is selected.", *found.notes])
        raise NothingToReport("select.over", " or ".join(select.keys), wrong, "completed runs to choose from")
    if not found.groups:
        wrong = " ".join([f"no run in {study.folder} is completed", *unread])
        raise NothingToReport("study", study.options.name, wrong, "at least one", "mpifl sweep computes the runs")
    counts = {status: n for status, n in index.counts().items() if status not in ("completed", "stopped")}
    if missing := sum(counts.values()):
        statuses = ", ".join(f"{n} {status}" for status, n in counts.items())
        found.notes.append(f"{missing} of the study's {len(study.runs)} runs are missing here: {statuses}.")
    return found


def _select(able: Sequence[Group], everything: Sequence[Group], select: Select, axis: str, whole: bool) -> Reported:
    """The selection among the groups that are able to be selected; whole: show all, and mark the selected ones."""
    chosen = select_groups(able, select)
    shown = [group for group in everything if reported_trials(group, select).trials]
    candidates = [reported_trials(group, select) for group in shown]
    notes = [describe_selection(select)]
    if whole:
        marked = [k for k, group in enumerate(shown) if any(group is one for one in chosen)]
        return Reported(candidates, notes, marked, "Marked: what the rule selects.", candidates)
    extreme = "largest" if select.largest_is_best else "smallest"
    best = f"the {extreme} mean {select.by} at {_evaluation(select)} (over the same trials)"
    mark = f"Marked: {best} among the rows that differ in {axis}."
    groups = [reported_trials(group, select) for group in chosen]
    return Reported(groups, notes, best_groups(chosen, select, axis), mark, candidates)
