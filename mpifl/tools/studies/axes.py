"""The axes of a study: what each of them varies, and the combinations of their values.

method: {AREA: {algorithm: area, algorithm.step_size: [10, 100]}, FedAvg: {algorithm: fedavg}}    a named axis
clock.delay.spread: [0, 5]                                                  values of a key of the job
algorithm.step_size: {from: 0.001, to: 10, log: 9}                          a range of values
setting: {zip: {problem.partition.alpha: [0.1, 10], stop.time: [15, 2]}}    keys that vary together
"""

from __future__ import annotations

import difflib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifl.errors import ConfigError
from mpifl.rng import stream

SPACINGS = ("linear", "log", "uniform", "loguniform")
MAX_RUNS = 100_000  # runs of a study: more are a mistake in a range, and would fill the memory
RANGE = "a range such as {from: 0.001, to: 10, log: 9}; in place of log: linear, uniform or loguniform"


@dataclass(frozen=True)
class Point:
    """One choice on an axis, or one combination of choices on all of them."""

    labels: dict[str, Any]
    """values by axis, and by key for keys that vary inside a named axis"""
    settings: dict[str, Any]
    """values by dotted key of the job, in the order in which they are set"""

    def __add__(self, other: Point) -> Point:
        return Point(self.labels | other.labels, {**self.settings, **other.settings})


def combinations(axes: Mapping[str, Any], seed: int = 0) -> list[Point]:
    """Every combination of the axes' values, the first axis varying slowest. Raises ConfigError.

    Args:
        axes: The section `axes` of a study.
        seed: Seed of the ranges that are drawn at random.
    """
    return _product("axes", [axis_points(name, spec, seed) for name, spec in axes.items()])


def _product(key: str, choices: Sequence[Sequence[Point]]) -> list[Point]:
    if (count := math.prod(map(len, choices))) > MAX_RUNS:
        raise ConfigError(key, f"{count} combinations", "too many", f"at most {MAX_RUNS:,}")
    return [sum(combination, Point({}, {})) for combination in itertools.product(*choices)]


def axis_points(name: str, spec: Any, seed: int = 0) -> list[Point]:
    """The choices on one axis. Raises ConfigError."""
    key = f"axes.{name}"
    if isinstance(spec, Mapping) and "zip" in spec:
        return _zipped(key, spec, seed)
    if _is_swept(spec):
        return _swept(key, name, spec, seed)
    if not isinstance(spec, Mapping):
        raise ConfigError(
            key, spec, "not a valid axis", "a list of values, a range, or labels with the keys that each of them sets"
        )
    if not spec:
        raise ConfigError(key, "{}", "empty", "at least one value")
    points: list[Point] = []
    for label, settings in spec.items():
        if not isinstance(settings, Mapping | None):
            expected = "the keys that this label sets, as in {algorithm.step_size: 0.1}"
            raise ConfigError(f"{key}.{label}", settings, "not a section", expected)
        choices = [[Point({name: str(label)}, {})]]
        for each, value in (settings or {}).items():
            constant = [Point({}, {each: value})]
            choices.append(_swept(f"{key}.{label}.{each}", each, value, seed) if _is_swept(value) else constant)
        points += _product(f"{key}.{label}", choices)
    return points


def _zipped(key: str, spec: Mapping[str, Any], seed: int) -> list[Point]:
    keys = spec["zip"]
    if len(spec) > 1 or not isinstance(keys, Mapping) or not keys:
        raise ConfigError(
            key, json.dumps(spec, default=str), "not a section of lists", "{zip: {key: [...], key: [...]}}"
        )
    columns = {k: _swept(f"{key}.zip.{k}", k, values, seed) for k, values in keys.items()}
    if len({len(values) for values in columns.values()}) > 1:
        counts = ", ".join(f"{k} has {len(values)}" for k, values in columns.items())
        raise ConfigError(f"{key}.zip", counts, "different numbers of values", "the same number for each key")
    return [sum(row, Point({}, {})) for row in zip(*columns.values(), strict=True)]


def _is_swept(spec: Any) -> bool:
    """Whether it is a list or a range."""
    return isinstance(spec, list) or (isinstance(spec, Mapping) and {"from", "to"} <= set(spec))


def _values(key: str, name: str, spec: Any, seed: int) -> list[Any]:
    """The values of a list or a range. Raises ConfigError."""
    if isinstance(spec, list):
        if not spec:
            raise ConfigError(key, "[]", "empty", "at least one value")
        return spec
    spacing = set(spec) - {"from", "to"} if _is_swept(spec) else set()
    if len(spacing) != 1 or not spacing <= set(SPACINGS):
        raise ConfigError(key, json.dumps(spec, default=str), "not a valid range", RANGE)
    (kind,) = spacing
    low, high, count = spec["from"], spec["to"], spec[kind]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
    if not numbers or not -np.inf < low < high < np.inf or type(count) is not int or count < 1:
        raise ConfigError(
            key, json.dumps(spec, default=str), "not a valid range", f"{RANGE}, from below to, the count at least 1"
        )
    if count > MAX_RUNS:
        raise ConfigError(f"{key}.{kind}", count, "too many", f"at most {MAX_RUNS:,} values")
    if kind.startswith("log") and low <= 0:
        raise ConfigError(f"{key}.from", low, f"the range is {kind}", "a number above 0")
    if kind in ("linear", "log"):
        grid = np.linspace(low, high, count) if kind == "linear" else np.geomspace(low, high, count)
        return [float(f"{value:.12g}") for value in grid.tolist()]
    rng = stream(seed, f"study {name}")
    ends = np.log([low, high]) if kind == "loguniform" else np.array([low, high])
    drawn = rng.uniform(ends[0], ends[1], count)
    return [float(f"{value:.6g}") for value in (np.exp(drawn) if kind == "loguniform" else drawn).tolist()]


def _swept(key: str, name: str, spec: Any, seed: int) -> list[Point]:
    """A point for each value of a list or a range. Raises ConfigError.

    A section is labelled by its name if no other value has the same one, else by all of it as JSON.
    """
    values = _values(key, name, spec, seed)
    names = [value.get("name") if isinstance(value, Mapping) else None for value in values]
    points = []
    for value, label in zip(values, names, strict=True):
        if not isinstance(value, Mapping | list):
            label = value
        elif label is None or names.count(label) > 1:
            label = json.dumps(value)
        points.append(Point({name: label}, {name: value}))
    return points


def without_excluded(points: Sequence[Point], exclude: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The combinations that no item of `exclude` matches. Raises ConfigError for an item that matches none."""
    left = list(points)
    known = list(dict.fromkeys(label for point in points for label in point.labels))
    for k, item in enumerate(exclude):
        key = f"exclude[{k}]"
        if not isinstance(item, Mapping) or not item:
            raise ConfigError(key, item, "not a section", "labels by axis: {method: AREA}")
        for axis in item:
            if axis not in known:
                near = difflib.get_close_matches(str(axis), known, 1)
                hint = f"the nearest is {near[0]}" if near else f"the axes are {', '.join(known)}"
                raise ConfigError(f"{key}.{axis}", item[axis], "no such axis", remedy=hint)
        if not any(_matches(point, item) for point in points):
            wrong, expected = "no combination has these", "labels of at least one combination of the axes"
            raise ConfigError(key, json.dumps(item, default=str), wrong, expected)
        left = [point for point in left if not _matches(point, item)]
    return left


def _matches(point: Point, item: Mapping[str, Any]) -> bool:
    return all(axis in point.labels and point.labels[axis] == value for axis, value in item.items())
