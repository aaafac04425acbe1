"""The trials of a study in groups, and the selection of the values that its report shows."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.analysis.report import report_groups
from mpifl.analysis.trials import Group, Trial, load_trial, short_names
from mpifl.errors import ConfigError
from mpifl.studies.index import Index
from mpifl.studies.study import Select, Study, StudyRun, describe

HIGHER_IS_BETTER = ("validation_accuracy",)


def study_groups(study: Study, index: Index, without: Collection[str] = ()) -> list[Group]:
    """The completed trials of the study, grouped by their labels on the axes, which get short names.

    without: Labels, as JSON, whose trials are left out.
    """
    found: dict[str, tuple[StudyRun, list[Trial]]] = {}
    for run in study.runs:
        if index.entries[run.identity].status == "completed" and (key := _key(run)) not in without:
            found.setdefault(key, (run, []))[1].append(load_trial(run.path))
    names = short_names(list(dict.fromkeys(label for run, _ in found.values() for label in run.labels)))
    return [
        Group({name: run.labels.get(label) for label, name in names.items()}, trials) for run, trials in found.values()
    ]


def _key(run: StudyRun) -> str:
    return json.dumps(run.labels, default=str)


def _failed(study: Study, index: Index, select: Select) -> dict[str, StudyRun]:
    """A failed deciding run by its labels, as JSON: the trials that did not fail would bias the mean."""
    deciding = [run for run in study.runs if select.seeds is None or run.seed in select.seeds]
    return {_key(run): run for run in deciding if index.entries[run.identity].status == "failed"}


def select_groups(groups: Sequence[Group], select: Select) -> list[Group]:
    """The groups that the rule selects, for each combination of the other axes, each with its reported trials only.

    Groups are compared by the metric's mean over the deciding trials. A group is not selected if that mean is not
    finite, or if the group has no trial to report.
    """
    over = _label(select.over, [label for group in groups for label in group.labels])
    rest: dict[str, list[Group]] = {}
    for group in groups:
        key = json.dumps({label: value for label, value in group.labels.items() if label != over}, default=str)
        rest.setdefault(key, []).append(group)
    chosen: list[int] = []
    for candidates in rest.values():
        scores = {id(group): _score(group, select) for group in candidates if _reported(group, select).trials}
        finite = [group for group in candidates if np.isfinite(scores.get(id(group), np.nan))]
        if select.rule == "largest-finite":  # a method without the key is alone: it has no value
            finite.sort(key=lambda group: -float(group.labels[over] or 0))
        else:
            finite.sort(key=lambda group: scores[id(group)] * (1 if select.rule == "min" else -1))
        chosen += [id(group) for group in finite[: select.count]]
    return [_reported(group, select) for group in groups if id(group) in chosen]


def _label(key: str, labels: Sequence[str]) -> str:
    """The label of a key in groups, which is the shortest ending that tells it from the others."""
    plain = key.removesuffix(".name")
    return max((label for label in labels if label == key or f".{plain}".endswith(f".{label}")), key=len, default=key)


def _score(group: Group, select: Select) -> float:
    """The mean of the metric over the trials that decide; NaN where one of them has none."""
    best = np.fmax.reduce if select.by in HIGHER_IS_BETTER else np.fmin.reduce  # of those that are not NaN
    values = []
    for trial in group.trials:
        if select.seeds is None or trial.seed in select.seeds:
            known = trial.evaluations[select.by].to_numpy()
            if len(known) == 0:
                return np.nan
            values.append(float(known[-1] if select.at == "last" else best(known)))
    return float(np.mean(values)) if values else np.nan


def _reported(group: Group, select: Select) -> Group:
    trials = [trial for trial in group.trials if select.seeds is None or trial.seed not in select.seeds]
    return replace(group, trials=trials)


def describe_selection(select: Select) -> str:
    """The rule in one sentence, for a table's caption."""
    values = "value" if select.count == 1 else f"{select.count} values"
    at = "the last evaluation" if select.at == "last" else "the best evaluation of each trial"
    if select.rule == "largest-finite":
        rule = f"the largest {values} of {select.over} with a finite mean {select.by} at {at}"
    else:
        extreme = "smallest" if select.rule == "min" else "largest"
        rule = f"the {values} of {select.over} with the {extreme} mean {select.by} at {at}"
    seeds = "all trials" if select.seeds is None else f"seeds {_listed(select.seeds)}; the other seeds are reported"
    return f"Selected for each row: {rule} (over {seeds})."


def report_study(study: Study, out: str | Path | None = None) -> str:
    """The table, and with `out` the figures, of the study's completed runs, after its selection. Raises ConfigError."""
    groups, notes = reported_groups(study, Index(study))
    return report_groups(groups, out, notes=notes)


def reported_groups(study: Study, index: Index) -> tuple[list[Group], list[str]]:
    """The study's completed trials after its selection, and notes on what was selected or is missing.

    Raises ConfigError if there is nothing to report.
    """
    notes = []
    if select := study.options.select:
        failed = _failed(study, index, select)
        groups = select_groups(study_groups(study, index, failed), select)
        notes.append(describe_selection(select))
        if failed:
            runs = "; ".join(describe(run) for run in failed.values())
            notes.append(f"Not selected, because a deciding trial failed: {runs}.")
    else:
        groups = study_groups(study, index)
    if not groups and index.counts()["completed"]:
        raise ConfigError("select.over", select.over if select else "", " ".join(["a selection of something;", *notes]))
    if not groups:
        raise ConfigError(
            "study", study.options.name, f"at least one completed run in {study.folder}; mpifl sweep computes the runs"
        )
    if missing := len(study.runs) - index.counts()["completed"]:
        notes.append(f"{missing} of the study's {len(study.runs)} runs are missing here: {_statuses(index)}.")
    return groups, notes


def _statuses(index: Index) -> str:
    return ", ".join(f"{count} {status}" for status, count in index.counts().items() if status != "completed")


def _listed(numbers: Sequence[Any]) -> str:
    return ", ".join(map(str, numbers))
