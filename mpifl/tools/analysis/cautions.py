"""What could mislead a reader of a table of trials, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mpifl.tools.analysis.options import METRICS, is_percentage
from mpifl.tools.analysis.spread import half_width
from mpifl.tools.analysis.trials import Group, Trial, by_other_labels

FEW = 5  # trials: of fewer, Student's quantile, more than the data, determines the width of the interval


def cautions(
    groups: Sequence[Group], spread: str = "range", candidates: Sequence[Group] = (), tuned: Sequence[str] = ()
) -> list[str]:
    """The cautions about these groups.

    spread: that of the table. candidates: all groups, before a selection of values of the labels in `tuned`.
    """
    found = []
    if edges := list(_edges(groups, candidates, tuned)):
        found = [f"selected at the edge of its grid, beyond which a better value may lie: {'; '.join(edges)}"]
    for group in groups:
        found += _of_trials(group)
        if spread == "ci95":
            found += _of_interval(group)
    return [f"Caution: {text}." for text in found]


def _edges(groups: Sequence[Group], candidates: Sequence[Group], tuned: Sequence[str]) -> Iterator[str]:
    """The groups whose selected value is the smallest or the largest of its grid, each with that value's label."""
    chosen = {id(group) for group in groups}
    for members in by_other_labels([*groups, *(g for g in candidates if id(g) not in chosen)], tuned):
        for label in tuned:
            values = [(group, value) for group in members if isinstance(value := group.labels.get(label), int | float)
                      and not isinstance(value, bool)]  # fmt: skip
            grid = sorted({value for _, value in values})
            for group, value in values:
                if id(group) in chosen and len(grid) > 1 and value in (grid[0], grid[-1]):
                    yield f"{group.name} ({label}: the {'smallest' if value == grid[0] else 'largest'})"


def _of_trials(group: Group) -> Iterator[str]:
    first: dict[int, list[Trial]] = {}
    for trial in group.trials:
        for other in first.setdefault(trial.seed, []):
            if len(trial.evaluations) and trial.evaluations.equals(other.evaluations):
                yield (f"{trial.path} and {other.path} have the same seed and the same evaluations, bit for bit: they "
                       f"are one trial counted twice ({group.name})")  # fmt: skip
        first[trial.seed].append(trial)
    if none := sum(trial.global_steps == 0 and len(trial.client_updates) > 0 for trial in group.trials):
        yield f"{none} of {len(group.trials)} trials made no aggregation ({group.name})"
    if any((len(trial.evaluations) - 1) % trial.train_every for trial in group.trials if len(trial.evaluations)):
        yield f"the training loss, if shown, is of an earlier evaluation than the last, by train_every ({group.name})"
    real = [trial for trial in group.trials if trial.clock == "real"]
    if len({trial.placement for trial in real}) > 1:
        yield f"trials in real time ran on different numbers of ranks or on different hosts ({group.name})"
    if slow := [trial for trial in real if trial.overload]:
        yield f"{len(slow)} of {len(real)} trials in real time could not keep up: {slow[0].overload} ({group.name})"


def _of_interval(group: Group) -> Iterator[str]:
    trials = len(group.trials)
    if 1 < trials < FEW:
        from scipy.special import stdtrit

        factor = stdtrit(trials - 1, 0.975)
        yield f"the 95 % interval of {trials} trials is {factor:.1f} standard errors to each side ({group.name})"
    for metric in filter(is_percentage, METRICS):
        values = group.last(metric)
        if len(values) > 1 and 2 * np.nan_to_num(half_width(values, "ci95")) > 1:
            yield f"the 95 % interval of {metric} is wider than the metric's range ({group.name})"
