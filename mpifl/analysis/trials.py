"""Run files as trials, and trials of one configuration as a group."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mpifl.config.job import OUTPUT_KEYS
from mpifl.errors import ConfigError
from mpifl.storage import Run, open_run
from mpifl.untrusted import printable

# Keys that may differ between the trials of one group.
NOT_COMPARED = ("seed", *OUTPUT_KEYS, "evaluate.gradient", "evaluate.clients")
# Options that change what a step_size does, and whose defaults differ between methods.
CONVENTIONS = ("algorithm.step_weights", "algorithm.trigger.every", "algorithm.reply")
MAX_VALUE = 200  # characters of a value in tables and figures
MAX_KEYS = 2000  # of a configuration; a job has some 100
TARGET_ACCURACY = 0.80  # test accuracy that t_80 is the time of


@dataclass(frozen=True)
class Trial:
    """What the report needs of one run file."""

    path: Path
    status: str
    clock: str
    config: dict[str, Any]  # flat, without the irrelevant keys
    evaluations: pd.DataFrame
    rate: float  # updates a second of the run's clock
    staleness: float  # mean over the updates
    global_steps: int  # aggregations
    seed: int = 0

    @property
    def end(self) -> float:
        """Time of the last evaluation, s; NaN if there is none."""
        return float(self.evaluations.time.iloc[-1]) if len(self.evaluations) else np.nan

    def last(self, metric: str) -> float:
        """The metric at the last evaluation; NaN if there is none."""
        return float(self.evaluations[metric].iloc[-1]) if len(self.evaluations) else np.nan


@dataclass(frozen=True)
class Group:
    """Trials of one configuration; `labels` are the keys in which the groups differ, under short names."""

    labels: dict[str, Any]
    trials: list[Trial]

    @property
    def name(self) -> str:
        known = {key: value for key, value in self.labels.items() if value is not None}
        parts = [
            format_value(v) if k == "algorithm" else f"{k} {format_value(v)}".replace("_", " ")
            for k, v in known.items()
        ]
        return ", ".join(parts) or "all trials"

    def last(self, metric: str) -> np.ndarray:
        """(trials,) the metric at the last evaluations; trials without it are left out."""
        values = np.array([trial.last(metric) for trial in self.trials])
        return values[~np.isnan(values)]

    def curve(self, metric: str) -> pd.DataFrame:
        """mean, min and max of the metric over the trials, by time.

        Times are those of all trials together; between its evaluations, and after the last one of a completed trial, a
        trial keeps its value. The curve starts when every trial has a value and ends where an unfinished one does.
        """
        columns = []
        for trial in self.trials:
            values = trial.evaluations.set_index("time")[metric].dropna()
            if len(values):
                columns.append(values[~values.index.duplicated(keep="last")])
        if not columns:
            return pd.DataFrame(columns=["mean", "min", "max"], dtype=float)
        table = pd.concat(columns, axis=1).sort_index().ffill().dropna()
        ends = [t.end for t in self.trials if t.status != "completed" and not np.isnan(t.end)]
        table = table[table.index <= min(ends, default=np.inf)]
        return pd.DataFrame({"mean": table.mean(axis=1), "min": table.min(axis=1), "max": table.max(axis=1)})

    @property
    def horizon(self) -> float:
        """t_h, s: stop.time, else the time of the last evaluation."""
        times = [t.config.get("stop.time") or t.end for t in self.trials]
        return float(np.nanmax(times)) if not np.isnan(times).all() else np.nan

    @property
    def t_80(self) -> float:
        """First evaluation time, s, at which the mean accuracy is 80 % or more; inf: never; NaN: no accuracy."""
        mean = self.curve("test_accuracy")["mean"]
        reached = mean.index[mean >= TARGET_ACCURACY]
        return np.nan if mean.empty else float(reached[0]) if len(reached) else np.inf

    @property
    def rho(self) -> float:
        """t_80 / t_h; inf: 80 % is not reached."""
        return self.t_80 / self.horizon if self.horizon > 0 else np.nan


def load_trial(path: str | Path) -> Trial:
    """Reads the trial of one run file. Raises ConfigError where it cannot be read."""
    with open_run(path) as run:
        updates = run.updates
        seconds = float(updates.time.iloc[-1]) if len(updates) else 0.0
        return Trial(
            path=Path(path),
            status=run.status,
            clock=str(run.attrs.get("clock", "")),
            config={key: value for key, value in flat_config(run).items() if key not in NOT_COMPARED},
            evaluations=run.evaluations,
            rate=len(updates) / seconds if seconds > 0 else np.nan,
            staleness=float(updates.staleness.mean()) if len(updates) else np.nan,
            global_steps=len(run.aggregations),
            seed=int(run.attrs.get("seed", 0)),
        )


def flat_config(run: Run) -> dict[str, Any]:
    """The flat configuration of a run, keys without control characters. Raises ConfigError for too many keys."""
    flat = {printable(key): value for key, value in flatten(run.config).items()}
    if len(flat) > MAX_KEYS:
        raise ConfigError("run file", run.path, f"a configuration of at most {MAX_KEYS} keys; this one has {len(flat)}")
    return flat


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens {"a": {"b": 1}} to {"a.b": 1}; lists become their JSON text."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return flat


def group_trials(trials: Iterable[Trial]) -> list[Group]:
    """Groups trials of the same configuration, in the order of their first appearance."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(json.dumps(trial.config, sort_keys=True, default=str), []).append(trial)
    configs = [members[0].config for members in found.values()]
    names = short_names(differing_keys(configs))
    return [
        Group({name: members[0].config.get(key) for key, name in names.items()}, members) for members in found.values()
    ]


def unlike_conventions(groups: Sequence[Group]) -> dict[str, dict[str, list[str]]]:
    """The options that decide what a step_size does, and in which the compared methods differ.

    By option and value, the methods with that value; a method without an option is left out of it.
    """
    configs = [group.trials[0].config for group in groups]
    unlike = {}
    for key in CONVENTIONS:
        pairs = {(format_value(c[key]), str(c.get("algorithm.name"))): None for c in configs if c.get(key) is not None}
        values, methods = dict.fromkeys(value for value, _ in pairs), {method for _, method in pairs}
        if len(values) > 1 and len(methods) > 1:
            unlike[key.removeprefix("algorithm.")] = {v: [m for value, m in pairs if value == v] for v in values}
    return unlike


def format_value(value: Any) -> str:
    """Formats a value of the configuration: 100 for 100.0, - for none; control characters are escaped."""
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else printable(value, most=MAX_VALUE)


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Finds the keys whose values differ between configurations.

    A key that only some have, with the same value in all of them, is left out where a `name` in its section differs: an
    algorithm's own hyper-parameter, for example.
    """
    keys = dict.fromkeys(key for config in configs for key in config)
    values = {key: {repr(config.get(key)) for config in configs} for key in keys}
    result = [key for key in keys if len(values[key]) > 1]

    def implied(key: str) -> bool:
        present = {repr(config[key]) for config in configs if key in config}
        partial = any(key not in config for config in configs)
        parts = key.split(".")[:-1]
        sections = [".".join([*parts[: i + 1], "name"]) for i in range(len(parts))]
        return partial and len(present) == 1 and any(name in result for name in sections if name != key)

    return [key for key in result if not implied(key)]


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Maps each dotted key to its shortest ending that no other key has; `algorithm.name` is `algorithm`."""
    plain = {key: key.removesuffix(".name") for key in keys}
    names = {}
    for key, full in plain.items():
        parts = full.split(".")
        endings = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        others = [f".{other}" for name, other in plain.items() if name != key]
        names[key] = next((e for e in endings if not any(o.endswith(f".{e}") for o in others)), key)
    return names
