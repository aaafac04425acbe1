"""The values of measures: of a trial, of a group of trials, and of two groups side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd

from mpifl.errors import ConfigError
from mpifl.runfile.reader import open_run
from mpifl.tools.analysis.options import is_percentage
from mpifl.tools.analysis.trials import Group, Trial, by_other_labels, format_value
from mpifl.tools.reproduce.spec import Measure

RANGE_OF_TEN = 3.08  # expected range of ten normal values in standard deviations


@dataclass(frozen=True)
class Summary:
    """A measure over the trials of a group."""

    values: np.ndarray
    """(trials,) values of the trials that have one; inf: level not reached; `Measure.diverged`: the trial diverged"""
    mean: float
    """mean over the trials that did not diverge; for a measure with `reaches` the value of the mean curve; NaN: there
    is none"""
    diverged: int = 0
    """number of trials that diverged"""

    @property
    def kept(self) -> np.ndarray:
        """(trials - diverged,) values of the trials that did not diverge"""
        return self.values[np.isfinite(self.values)] if self.diverged else self.values

    @property
    def deviation(self) -> float:
        """Standard deviation over the trials; NaN for fewer than two, or where one is infinite."""
        known = len(self.values) > 1 and np.isfinite(self.values).all()
        return float(np.std(self.values, ddof=1)) if known else np.nan


def units(measure: Measure, groups: Sequence[Group]) -> list[list[Group]]:
    """Lists of groups with one value of the measure each: each group alone; with `over` all that differ in it alone."""
    return by_other_labels(groups, [axis_of(groups[0].labels, measure.over)] if groups and measure.over else [])


def seed_values(measure: Measure, unit: Sequence[Group]) -> dict[int, float]:
    """The measure by the seed of the trials of a unit (`units`); NaN where a trial has none."""
    if not measure.over:
        return {trial.seed: trial_value(measure, trial) for group in unit for trial in group.trials}
    metric = replace(measure, over="", at_most=None, slope=None, log=False)
    trials = {axis_number(group, measure.over): {trial.seed: trial for trial in group.trials} for group in unit}
    values = {}
    for seed in sorted({seed for by_seed in trials.values() for seed in by_seed}):
        along = {x: trial_value(metric, by_seed[seed]) for x, by_seed in trials.items() if seed in by_seed}
        if measure.slope is not None:
            values[seed] = log_slope(np.array(list(along)), np.array(list(along.values())), measure.slope)
        else:  # a failed run does not pass
            values[seed] = largest_passed([(x, along.get(x, np.inf) <= (measure.at_most or 0.0)) for x in trials])
    return {seed: float(np.log10(v)) if v > 0 else -np.inf for seed, v in values.items()} if measure.log else values


def log_slope(x: np.ndarray, y: np.ndarray, first: float) -> float:
    """The slope b of y = a x^b by least squares of log y against log x, for x of at least `first` times the largest.

    Each point is weighted by its share of the logarithmic axis, so that evenly spaced x do not give the last ones all
    the weight. NaN where there are fewer than three such points, or a y that is not positive; inf where a y is not
    finite.
    """
    order = np.argsort(x)
    x, y = x[order], y[order]
    shown = (x > 0) & (x >= first * x.max(initial=0.0) * (1 - 1e-9))
    if not np.isfinite(y[shown]).all():
        return np.inf
    if shown.sum() < 3 or y[shown].min() <= 0:
        return np.nan
    u, v = np.log(x[shown]), np.log(y[shown])
    return float(np.polyfit(u, v, 1, w=np.sqrt(np.gradient(u)))[0])


def axis_number(group: Group, name: str) -> float:
    """The group's value on an axis with numbers. Raises ConfigError."""
    axis = axis_of(group.labels, name)
    try:
        return float(group.labels[axis])  # type: ignore[index]  # None: KeyError
    except (KeyError, TypeError, ValueError):
        raise ConfigError("page", name, "not an axis whose values are numbers", "one of the study") from None


def largest_passed(passed: Sequence[tuple[float, bool]]) -> float:
    """The largest value that passes, as all smaller ones do; 0: none."""
    return max((value for value, _ in takewhile(lambda pair: pair[1], sorted(passed))), default=0.0)


def summarise(measure: Measure, *unit: Group) -> Summary:
    """The measure over the trials of a group, or of the groups of a unit (`units`)."""
    values = np.array(list(seed_values(measure, unit).values()))
    values = values[~np.isnan(values)]
    if measure.reaches is None:
        diverged = 0 if measure.over else int((values == measure.diverged).sum())
        kept = values[values != measure.diverged] if diverged else values
        return Summary(values, float(kept.mean()) if len(kept) else np.nan, diverged)
    (group,) = unit
    mean = mean_curve(group, _metric(measure, group.trials[0]), measure.x, hold=True)["mean"]
    curve = pd.DataFrame({"x": mean.index, "y": mean.to_numpy()})
    return Summary(values, _reached(measure, curve, group.horizon) if len(curve) else np.nan)


def trial_value(measure: Measure, trial: Trial) -> float:
    """The measure of one trial; NaN: it has none; inf: it does not reach the level; `Measure.diverged`: it diverged.

    Raises ConfigError.
    """
    curve = trial_curve(trial, _metric(measure, trial), measure.x)
    if measure.until is not None:
        curve = curve[curve.x <= measure.until * (1 + 1e-9)]
    if curve.empty:
        return np.nan
    if measure.reaches is not None:
        return _reached(measure, curve, trial.horizon)
    y = curve.y.to_numpy() ** measure.power * measure.scale
    if measure.slope is not None:
        return log_slope(curve.x.to_numpy(float), y, measure.slope)
    if measure.at == "best":
        value = float(np.nanmax(y) if measure.largest_is_best else np.nanmin(y))
    else:
        last = len(y) if measure.tail == "all" else measure.tail or 1
        value = float(y[-last:].mean())
    if not np.isfinite(value):
        return measure.diverged
    if measure.log:
        return float(np.log10(value)) if value > 0 else -np.inf
    return value


def _metric(measure: Measure, trial: Trial) -> str:
    """The column of the measure: its metric, or its fallback where the trial has no values of the metric."""
    column = trial.evaluations.get(measure.metric)
    return measure.fallback if measure.fallback and column is not None and column.isna().all() else measure.metric


def _reached(measure: Measure, curve: pd.DataFrame, horizon: float) -> float:
    """The first x at which the curve reaches the level; inf: never."""
    assert measure.reaches is not None
    upwards = is_percentage(measure.metric)
    x = curve.x[curve.y >= measure.reaches if upwards else curve.y <= measure.reaches]
    return float(x.iloc[0]) * measure.scale / (horizon if measure.of_horizon else 1) if len(x) else np.inf


def trial_curve(trial: Trial, metric: str, x: str) -> pd.DataFrame:
    """Columns x and y: a quantity and a metric, from the first evaluation that has it; NaN later: it diverged.

    Raises ConfigError.
    """
    if metric not in trial.evaluations:
        raise ConfigError(
            "page.measures", metric, "no such metric", f"one of {', '.join(map(str, trial.evaluations.columns))}"
        )
    table = trial.measured(metric)
    xs = _sums(trial, table, x) if x in ("bytes", "local_steps") else table[x].to_numpy()
    return pd.DataFrame({"x": xs, "y": table[metric].to_numpy()})[table[metric].notna().cumsum().to_numpy() > 0]


def _sums(trial: Trial, evaluations: pd.DataFrame, x: str) -> np.ndarray:
    """(evaluations,) bytes, or local steps of a client on average, of the updates consumed before each of them."""
    with open_run(trial.path) as run:
        updates, clients = run.updates, len(run.clients)
    each = updates.bytes + updates.bytes_down if x == "bytes" else updates.local_steps / clients
    total = np.concatenate([[0], np.cumsum(each.to_numpy())])
    return np.asarray(total[evaluations.updates.to_numpy()])


def mean_curve(group: Group, metric: str, x: str, power: float = 1.0, hold: bool = False) -> pd.DataFrame:
    """mean, low and high (range) of a metric over the trials, by x; NaN from where a trial diverges.

    Between its evaluations a trial has the value on the line between them, or with `hold` that of the one before.
    """
    if x == "time" and power == 1:
        return group.curve(metric, hold=hold)
    columns = [
        trial_curve(trial, metric, x).drop_duplicates("x", keep="last").set_index("x").y.fillna(np.inf) ** power
        for trial in group.trials
    ]
    table = pd.concat(columns, axis=1).sort_index()
    table = (table if hold else table.interpolate("index", limit_area="inside")).ffill().dropna()
    table = table[table.index <= min((column.index[-1] for column in columns if len(column)), default=0)]
    table[~np.isfinite(table).all(axis=1)] = np.nan
    return pd.DataFrame({"mean": table.mean(axis=1), "low": table.min(axis=1), "high": table.max(axis=1)})


def paired(measure: Measure, left: Sequence[Group], right: Sequence[Group], times: float = 1.0) -> np.ndarray:
    """(pairs,) left value minus `times` the right one, for the trials of two units with the same seed.

    Infinite where one trial of the pair diverged or did not reach the level, NaN where both did. Pairs in which a trial
    has no value are left out.
    """
    lefts, rights = seed_values(measure, left), seed_values(measure, right)
    pairs = [(value, rights[seed]) for seed, value in lefts.items() if seed in rights]
    one, two = np.array([pair for pair in pairs if not np.isnan(pair).any()]).reshape(-1, 2).T
    with np.errstate(invalid="ignore"):  # inf - inf
        return np.asarray(one - times * two)


def is_null_model(trial: Trial) -> bool:
    """Whether the trial's final model is the zero vector, or is measured as its first model, to the last bit."""
    with open_run(trial.path) as run:
        if not run.model.any():
            return True
    metrics = trial.evaluations.drop(columns=["time", "updates", "version", "age"], errors="ignore")
    return len(metrics) > 1 and metrics.iloc[0].equals(metrics.iloc[-1])


def format_number(measure: Measure, value: float) -> str:
    """A value with the measure's digits; a level never reached is `>1` as a share of the horizon, else `never`."""
    if math.isinf(value) and measure.reaches is not None:
        return ">1" if measure.of_horizon else "never"
    small = 0 < abs(value) < 10**-measure.digits
    return f"{value:.2g}" if small or abs(value) >= 1e6 else f"{value:.{measure.digits}f}"


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
