"""What the rule of a study compares: the mean of its metric over the trials that decide."""

from __future__ import annotations

import numpy as np

from mpifl.tools.analysis.trials import Group
from mpifl.tools.studies.study import Select, StudyRun

HIGHER_IS_BETTER = ("validation_accuracy",)


def is_deciding(run: StudyRun, select: Select | None) -> bool:
    """Whether the run is a trial that decides what is selected apart from the trials that are reported."""
    return select is not None and select.seeds is not None and run.seed in select.seeds


def largest_is_best(select: Select) -> bool:
    """Whether a large score is a good one."""
    return select.by in HIGHER_IS_BETTER if select.rule == "largest-finite" else select.rule == "max"


def score(group: Group, select: Select) -> float:
    """The mean of the metric over the trials that decide; NaN where one of them has none."""
    best = np.fmax.reduce if select.by in HIGHER_IS_BETTER else np.fmin.reduce  # both ignore NaN
    values = []
    for trial in group.trials:
        if select.seeds is None or trial.seed in select.seeds:
            known = trial.evaluations[select.by].to_numpy()
            if len(known) == 0:
                return np.nan
            values.append(float(known[-1] if select.at == "last" else best(known)))
    return float(np.mean(values)) if values else np.nan
