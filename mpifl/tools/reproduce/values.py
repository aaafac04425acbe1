"""The values of measures: of a trial, of a group of trials, and of two groups side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mpifl.errors import ConfigError
from mpifl.runfile import open_run
from mpifl.tools.analysis.spread import half_width
from mpifl.tools.analysis.trials import Group, Trial, by_other_labels, format_value
from mpifl.tools.reproduce.spec import Measure

RANGE_OF_TEN = 3.08  # expected range of ten normal values in standard deviations


@dataclass(frozen=True)
class Summary:
    """A measure over the trials of a group."""

    values: np.ndarray
    """(trials,) values of the trials that have one; inf: not reached"""
    mean: float
    """mean over the trials; a measure with `reaches` has its value for the mean curve; NaN: there is none"""

    @property
    def deviation(self) -> float:
        """Standard deviation over the trials; NaN for fewer than two, or where one is infinite."""
        known = len(self.values) > 1 and np.isfinite(self.values).all()
        return float(np.std(self.values, ddof=1)) if known else np.nan


@dataclass(frozen=True)
class Difference:
    """Left minus right, paired by seed."""

    values: np.ndarray
    """(pairs,)"""

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if len(self.values) else np.nan

    @property
    def half_width(self) -> float:
        """Half the 95 % confidence interval of the mean by Student's t; NaN for fewer than two pairs."""
        return float(half_width(self.values, "ci95"))


def units(measure: Measure, groups: Sequence[Group]) -> list[list[Group]]:
    """Lists of groups that share a value of the measure: each alone; with `over` all that differ in it alone."""
    return by_other_labels(groups, [axis_of(groups[0].labels, measure.over)] if groups and measure.over else [])


def seed_values(measure: Measure, unit: Sequence[Group]) -> dict[int, float]:
    """The measure by the seed of the trials of a unit (`units`); NaN where a trial has none."""
    if not measure.over:
        return {trial.seed: trial_value(measure, trial) for group in unit for trial in group.trials}
    metric = replace(measure, over="", at_most=None, log=False)
    trials = {axis_number(group, measure.over): {trial.seed: trial for trial in group.trials} for group in unit}
    values = {}
    for seed in sorted({seed for by_seed in trials.values() for seed in by_seed}):  # a failed run does not pass
        passed = [
            (value, seed in by_seed and trial_value(metric, by_seed[seed]) <= (measure.at_most or 0.0))
            for value, by_seed in trials.items()
        ]
        values[seed] = largest_passed(passed)
    return {seed: float(np.log10(v)) if v > 0 else -np.inf for seed, v in values.items()} if measure.log else values


def axis_number(group: Group, name: str) -> float:
    """The group's value on an axis with numbers. Raises ConfigError."""
    axis = axis_of(group.labels, name)
    try:
        return float(group.labels[axis])  # type: ignore[index]  # None: KeyError
    except (KeyError, TypeError, ValueError):
        raise ConfigError("page", name, "no axis whose values are numbers", "one of the study") from None


def largest_passed(passed: Sequence[tuple[float, bool]]) -> float:
    """The largest value that passes with all smaller ones; 0: none."""
    largest = 0.0
    for value, fine in sorted(passed):
        if not fine:
            break
        largest = value
    return largest


def summarise(measure: Measure, *unit: Group) -> Summary:
    """The measure over the trials of a group, or of the groups of a unit (`units`)."""
    values = np.array(list(seed_values(measure, unit).values()))
    values = values[~np.isnan(values)]
    if measure.reaches is None:
        return Summary(values, float(values.mean()) if len(values) else np.nan)
    (group,) = unit
    mean = mean_curve(group, _metric(measure, group.trials[0]), measure.x)["mean"]
    curve = pd.DataFrame({"x": mean.index, "y": mean.to_numpy()})
    return Summary(values, _reached(measure, curve, group.horizon) if len(curve) else np.nan)


def trial_value(measure: Measure, trial: Trial) -> float:
    """The measure of one trial; NaN where it has none, inf where it does not reach the level. Raises ConfigError."""
    curve = trial_curve(trial, _metric(measure, trial), measure.x)
    if measure.until is not None:
        curve = curve[curve.x <= measure.until * (1 + 1e-9)]
    if curve.empty:
        return np.nan
    if measure.reaches is not None:
        return _reached(measure, curve, float(trial.config.get("stop.time") or trial.end))
    y = curve.y.to_numpy() ** measure.power * measure.scale
    if measure.at == "best":
        value = float(y.max() if measure.higher_is_better else y.min())
    else:
        value = float(y[-(measure.tail or 1) :].mean())
    if measure.log:
        return float(np.log10(value)) if value > 0 else -np.inf
    return value


def _metric(measure: Measure, trial: Trial) -> str:
    """The column of the measure: its metric, or where the trial has no values in it its fallback."""
    column = trial.evaluations.get(measure.metric)
    return measure.fallback if measure.fallback and column is not None and column.isna().all() else measure.metric


def _reached(measure: Measure, curve: pd.DataFrame, horizon: float) -> float:
    """The first x at which the curve reaches the level; inf: never."""
    assert measure.reaches is not None
    upwards = "accuracy" in measure.metric
    x = curve.x[curve.y >= measure.reaches if upwards else curve.y <= measure.reaches]
    return float(x.iloc[0]) / (horizon if measure.of_horizon else 1) if len(x) else np.inf


def trial_curve(trial: Trial, metric: str, x: str) -> pd.DataFrame:
    """Columns x and y: a metric at the evaluations that have it, against a quantity. Raises ConfigError."""
    if metric not in trial.evaluations:
        raise ConfigError(
            "page.measures", metric, "no such metric", f"one of {', '.join(map(str, trial.evaluations.columns))}"
        )
    table = trial.evaluations
    xs = _sums(trial, x) if x in ("bytes", "local_steps") else table[x].to_numpy()
    return pd.DataFrame({"x": xs, "y": table[metric].to_numpy()}).dropna()


def _sums(trial: Trial, x: str) -> np.ndarray:
    """(evaluations,) bytes, or local steps of a client on average, of the updates consumed before each evaluation."""
    with open_run(trial.path) as run:
        updates, clients = run.updates, len(run.clients)
    each = updates.bytes + updates.bytes_down if x == "bytes" else updates.local_steps / clients
    total = np.concatenate([[0], np.cumsum(each.to_numpy())])
    return np.asarray(total[trial.evaluations.updates.to_numpy()])


def mean_curve(group: Group, metric: str, x: str) -> pd.DataFrame:
    """mean, low and high (range) of a metric over the trials, by x; between evaluations a trial keeps its value."""
    if x == "time":
        return group.curve(metric)
    columns = [
        trial_curve(trial, metric, x).drop_duplicates("x", keep="last").set_index("x").y for trial in group.trials
    ]
    table = pd.concat(columns, axis=1).sort_index().ffill().dropna()
    table = table[table.index <= min((column.index[-1] for column in columns if len(column)), default=0)]
    return pd.DataFrame({"mean": table.mean(axis=1), "low": table.min(axis=1), "high": table.max(axis=1)})


def paired(measure: Measure, left: Sequence[Group], right: Sequence[Group]) -> Difference:
    """The differences of the trials of two units with the same seed; those without a finite value are left out."""
    lefts, rights = seed_values(measure, left), seed_values(measure, right)
    values = [value - rights[seed] for seed, value in lefts.items() if seed in rights]
    return Difference(np.array([value for value in values if np.isfinite(value)]))


# -- labels ------------------------------------------------------------------------------------------------------------
def matches(labels: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether labels match the wanted ones, whose axes may be named by their last parts."""
    return all(_has(labels, str(axis), value) for axis, value in (wanted or {}).items())


def axis_of(labels: Mapping[str, Any], name: str) -> str | None:
    """The axis of this name, or the only one whose last parts are it; None: there is none."""
    if name in labels:
        return name
    found = [axis for axis in labels if f".{axis}".endswith(f".{name}") or f".{name}".endswith(f".{axis}")]
    return found[0] if len(found) == 1 else None


def _has(labels: Mapping[str, Any], name: str, value: Any) -> bool:
    axis = axis_of(labels, name)
    return axis is not None and label_text(labels[axis]) == label_text(value)


def label_text(value: Any) -> str:
    """A label as text: 100 for 100.0."""
    try:
        return f"{float(value):g}" if not isinstance(value, bool) else str(value)
    except (TypeError, ValueError):
        return format_value(value)


def find(groups: Sequence[Group], wanted: Mapping[str, Any] | None) -> list[Group]:
    """The groups with these labels."""
    return [group for group in groups if matches(group.labels, wanted)]


def find_labels(labels: Sequence[dict[str, Any]], wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The labels that match the wanted ones."""
    return [each for each in labels if matches(each, wanted)]
