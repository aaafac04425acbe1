"""Successive halving over the runs of a study: which of them are computed, and how far.

A choice depends on the evaluations up to its rung alone, which a run has however far it has gone since. So it is the
same when a sweep is started again, and on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, nan
from typing import Any, NamedTuple

import numpy as np

from mpifl.errors import ConfigError
from mpifl.tools.analysis.trials import Group, Trial, by_other_labels, format_value, load_trial
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.search import Search, end_of, interval_of, rungs_of
from mpifl.tools.studies.study import Select, Study, StudyRun


class Outcome(NamedTuple):
    """What a search has found so far."""

    stopped: frozenset[str]
    """identities of the runs that do not go on"""
    notes: list[str]
    """lines on the rungs, and on what is left for each combination of the other axes"""


def search(study: Study, compute: Callable[[list[StudyRun], str], bool]) -> Outcome:
    """Has the runs of each rung computed, and last the trials to report of what is left.

    compute(runs, stage): computes runs to the stops of their jobs; returns whether all of them have ended.
    """
    options, select = study.options.search, study.options.select
    assert options and select
    brackets = [_Bracket(runs, options, select) for runs in by_other_labels(study.runs, select.keys)]
    stages = max(len(each.rungs) for each in brackets)
    for k in range(stages):
        if not compute([run for each in brackets for run in each.runs(k)], f"rung {k + 1} of {stages}"):
            break
        for each in brackets:
            each.choose(k)
    else:
        if select.seeds is not None:
            compute([run for each in brackets for runs in each.left for run in runs], "trials to report")
    kept = {run.identity for each in brackets for runs in each.left for run in runs}
    return Outcome(frozenset({run.identity for run in study.runs} - kept), _notes(brackets))


def settle(study: Study, index: Index) -> list[str]:
    """Marks in the index the runs that the study's search has stopped; its notes. Without a search there is none."""
    if study.options.search is None:
        return []
    found = search(study, lambda runs, stage: all(map(index.has_ended, runs)))
    index.stop(found.stopped)
    return found.notes


class _Bracket:
    """The combinations that are compared with one another, each as its runs: they differ in the keys `select.over`."""

    def __init__(self, runs: Sequence[StudyRun], search: Search, select: Select) -> None:
        self.left = by_other_labels(runs, ())
        self.rungs = rungs_of(search, len(self.left), end_of(runs[0].job), select.count)
        self.passed = 0  # rungs at which combinations have been chosen
        self._select, unit = select, "s" if runs[0].job.stop.time else "updates"
        counts = ", ".join(f"{count} to {end:g} {unit}" for count, end in self.rungs)
        self.title = f"Successive halving of {' and '.join(select.keys)}: combinations {counts}"
        self.name = _clause({axis: value for axis, value in runs[0].labels.items() if axis not in select.keys})

    def runs(self, rung: int) -> list[StudyRun]:
        """The runs that decide at a rung, up to there; none where there is no such rung."""
        if rung >= len(self.rungs):
            return []
        deciding = [run for runs in self.left for run in runs if self._select.decides(run.seed)]
        return [up_to(run, self.rungs[rung].end) for run in deciding]

    def choose(self, rung: int) -> None:
        """Keeps the best combinations for the next rung. Those that failed or diverged before this one are the last."""
        if rung < len(self.rungs):
            self.passed = rung + 1
            following = self.rungs[rung + 1].combinations if rung + 1 < len(self.rungs) else self._select.count
            sign = -1 if self._select.largest_is_best else 1
            scores = [sign * self._score(runs, self.rungs[rung].end) for runs in self.left]
            finite = [k for k, value in enumerate(scores) if np.isfinite(value)]
            self.left = [self.left[k] for k in sorted(finite, key=scores.__getitem__)[:following]]

    def values(self) -> str:
        """The values of what is left."""
        found = [", ".join(format_value(runs[0].labels.get(key)) for key in self._select.keys) for runs in self.left]
        return " and ".join(found) or "none"

    def _score(self, runs: Sequence[StudyRun], end: float) -> float:
        try:
            trials = [_trial(run, self._select.by, end) for run in runs if self._select.decides(run.seed)]
        except ConfigError:  # a run failed before it had a file
            return nan
        return self._select.score(Group({}, trials))


def up_to(run: StudyRun, end: float) -> StudyRun:
    """The run with an earlier end of its job."""
    stop = run.job.stop
    earlier = replace(stop, time=end) if stop.time else replace(stop, updates=ceil(end))
    return replace(run, job=replace(run.job, stop=earlier))


def _trial(run: StudyRun, metric: str, end: float) -> Trial:
    """The trial of a run with its regular evaluations up to a rung, or none where it ended before the last of them.

    The evaluation at the end of a run is left out: a run that goes on does not have it. Raises ConfigError.
    """
    interval, column = interval_of(run.job) or end, "time" if run.job.stop.time else "updates"
    trial = load_trial(run.path, {metric})
    at = trial.evaluations[column].to_numpy(float)
    numbers = np.round(at / interval)
    regular = (numbers * interval == at) & (at <= end) & (np.diff(at, prepend=-1.0) > 0)
    last = int(end / interval) + 1
    while last * interval > end:
        last -= 1
    there = bool((numbers[regular] == last).any())
    return replace(trial, evaluations=trial.evaluations[regular & there])


def _notes(brackets: Sequence[_Bracket]) -> list[str]:
    """What `Outcome` says."""
    titles = list(dict.fromkeys(each.title for each in brackets))
    names = [", ".join(each.name for each in brackets if each.title == title) for title in titles]
    lines = [f"{title}{f' ({name})' if len(titles) > 1 else ''}." for title, name in zip(titles, names, strict=True)]
    left = [f"{each.name}{each.name and ': '}{each.values()}" for each in brackets if each.passed]
    return [*lines, *([f"Left by the search: {'; '.join(left)}."] if left else [])]


def _clause(labels: dict[str, Any]) -> str:
    return ", ".join(f"{axis} {format_value(value)}" for axis, value in labels.items())
