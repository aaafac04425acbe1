"""Run files as trials, and trials of one configuration as a group."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from mpifl.config.job import OUTPUT_KEYS
from mpifl.config.read import flatten
from mpifl.errors import ConfigError
from mpifl.runfile.reader import Run, open_run
from mpifl.runfile.tables import EvaluationRow
from mpifl.safe_input import printable
from mpifl.scheduling.overload import describe_overload, describe_slow_contacts
from mpifl.text import format_count
from mpifl.tools.analysis.labels import Labels
from mpifl.tools.analysis.spread import mean_and_spread

if TYPE_CHECKING:
    import pandas as pd

TRAINING = ("train_loss", "gradient_norm", "gradient_mapping")  # measured at one of `evaluate.train_every` evaluations
# Keys that may differ between the trials of one group.
NOT_COMPARED = ("seed", *OUTPUT_KEYS, "evaluate.gradient", "evaluate.clients", "evaluate.metrics")
MAX_VALUE = 200  # characters of a value in tables and figures
MAX_KEYS = 2000  # keys in a configuration; a job has about 100
TARGET_ACCURACY = 0.80  # t_80 is the time at which the test accuracy reaches this
BLOCK = 1 << 20  # values of a curve that are computed together
# The quantities that curves are drawn against and accuracies are reached in, with their columns of `Trial.evaluations`.
PROGRESS = {"time": "time", "updates": "updates", "rounds": "version", "bytes": "bytes", "local-steps": "local_steps"}
SCALES = {"bytes": 1e-6}  # the factor from a value of PROGRESS to what is shown: bytes are shown in MB
# Columns of `Trial.evaluations` that sum columns of /updates over the updates consumed before an evaluation.
SUMS = {"bytes": ("bytes", "bytes_down"), "local_steps": ("local_steps",)}


@dataclass(frozen=True)
class Trial:
    """What the report needs of one run file."""

    path: Path
    status: str
    clock: str
    config: dict[str, Any]  # values by dotted key, without the keys of NOT_COMPARED
    evaluations: pd.DataFrame  # the columns that `load_trial` was asked for
    rate: float  # updates a second of the run's clock
    staleness: float  # mean over the updates
    global_steps: int  # aggregations
    seed: int = 0
    labels: Labels | None = None  # None: it is no run of a study
    staleness_counts: tuple[np.ndarray, np.ndarray] = field(default_factory=lambda: (np.zeros(0), np.zeros(0)))
    """values of the staleness, and the number of updates with each of them"""
    client_updates: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    """(clients,) number of updates of each client"""
    alive: bool = False  # whether the file was being written when it was read
    placement: tuple[int, str] = (1, "")  # ranks, and the hosts of all of them
    overload: str = ""  # how a run in real time could not keep up
    train_every: int = 1  # evaluations for each one that measures the columns of TRAINING

    @property
    def horizon(self) -> float:
        """stop.time, s, else the time of the last evaluation; NaN if there is none."""
        return float(number_above_0(self.config.get("stop.time")) or self.last("time"))

    def last(self, metric: str) -> float:
        """The metric at the last evaluation; NaN if there is none, or no such metric."""
        known = len(self.evaluations) and metric in self.evaluations
        return float(self.evaluations[metric].iloc[-1]) if known else np.nan

    def measured(self, metric: str) -> pd.DataFrame:
        """The evaluations that measured the metric."""
        return self.evaluations[:: self.train_every] if metric in TRAINING else self.evaluations

    def diverged(self, metric: str) -> bool:
        """Whether the metric is infinite or NaN at the last evaluation, and was not so before."""
        return not np.isfinite(self.last(metric)) and bool(np.isfinite(self.evaluations.get(metric, [])).any())

    def reached(self, accuracy: float, x: str = "time") -> float:
        """The first value of a quantity of PROGRESS at which the test accuracy is `accuracy` or above; inf: never."""
        xs, ys = self.curve("test_accuracy", x)
        there = ys >= accuracy
        return float(xs[there.argmax()]) if there.any() else np.inf

    def curve(self, metric: str, x: str = "time") -> tuple[np.ndarray, np.ndarray]:
        """A column of PROGRESS, ascending, and the metric there; the last of several values at one place.

        Rows without the quantity are left out, those that did not measure the metric, and those before its first value:
        a later one without a value is NaN, as the run has diverged. A metric that the run does not have has no rows.
        """
        import pandas as pd

        if metric not in self.evaluations:
            return np.empty(0), np.empty(0)
        rows = self.measured(metric)
        pairs = pd.DataFrame({"x": rows[PROGRESS[x]], "y": rows[metric]}, dtype=float)
        pairs = pairs[pairs.x.notna() & (pairs.y.notna().cumsum() > 0)]
        pairs = pairs.sort_values("x", kind="stable").drop_duplicates("x", keep="last")
        return pairs.x.to_numpy(), pairs.y.to_numpy()


@dataclass(frozen=True)
class Group:
    """Trials of one configuration; `labels` are the keys in which the groups differ, under short names."""

    labels: dict[str, Any]
    trials: list[Trial]

    @property
    def name(self) -> str:
        known = {key: value for key, value in self.labels.items() if value is not None}
        parts = [
            format_value(v) if k in ("algorithm", "method") else f"{k} {format_value(v)}".replace("_", " ")
            for k, v in known.items()
        ]
        return ", ".join(parts) or "all trials"

    def without(self, *labels: str | None) -> Group:
        """The group without these labels."""
        return replace(self, labels={key: value for key, value in self.labels.items() if key not in labels})

    def by_seed(self) -> dict[tuple[int, int], Trial]:
        """The trials by seed, and number among those with this seed: in real time a seed may be run again."""
        found: dict[tuple[int, int], Trial] = {}
        for trial in self.trials:
            found[trial.seed, sum(seed == trial.seed for seed, _ in found)] = trial
        return found

    def last(self, metric: str) -> np.ndarray:
        """(trials,) the metric at the last evaluations; trials without it are left out."""
        values = np.array([trial.last(metric) for trial in self.trials])
        return values[~np.isnan(values)]

    def curve(self, metric: str, x: str = "time", spread: str = "range", hold: bool = False) -> pd.DataFrame:
        """The metric over the trials, by time or another column of PROGRESS: mean, low and high (`mean_and_spread`).

        Times are those of all trials together. Between its evaluations a trial has the value on the line between them,
        or with `hold` that of the evaluation before; after the last one a completed trial keeps its value. The curve
        starts when every trial has a value and ends where an unfinished one does. It is not finite from where a trial
        diverges.
        """
        import pandas as pd

        curves = [trial.curve(metric, x) for trial in self.trials]
        ends = [xs[-1] for trial, (xs, _) in zip(self.trials, curves, strict=True) if trial.status != "completed"
                and len(xs)]  # fmt: skip
        curves = [(xs, ys) for xs, ys in curves if len(xs)]
        if not curves:
            return pd.DataFrame(columns=["mean", "low", "high"], dtype=float)
        points = np.unique(np.concatenate([xs for xs, _ in curves]))
        points = points[(points >= max(xs[0] for xs, _ in curves)) & (points <= min(ends, default=np.inf))]
        found = np.empty((3, len(points)))
        size = max(1, BLOCK // len(curves))
        for first in range(0, len(points), size):
            block = points[first : first + size]
            if hold:
                values = np.stack([ys[np.searchsorted(xs, block, side="right") - 1] for xs, ys in curves])
            else:
                values = np.stack([np.interp(block, xs, ys) for xs, ys in curves])
            found[:, first : first + size] = mean_and_spread(values, spread)
        return pd.DataFrame(dict(zip(("mean", "low", "high"), found, strict=True)), index=points)

    def reached(self, accuracy: float, x: str = "time") -> np.ndarray:
        """The first value of a quantity of PROGRESS at which each trial's test accuracy is `accuracy` or above.

        (trials that reach it,); trials that never do, and those without that column, are left out.
        """
        found = np.array([trial.reached(accuracy, x) for trial in self.trials])
        return found[np.isfinite(found)]

    @property
    def horizon(self) -> float:
        """t_h, s: the longest of the trials."""
        times = [trial.horizon for trial in self.trials]
        return float(np.nanmax(times)) if not np.isnan(times).all() else np.nan

    @cached_property
    def t_80(self) -> float:
        """First evaluation time, s, at which the mean accuracy is 80 % or more; inf: never; NaN: no accuracy."""
        mean = self.curve("test_accuracy", hold=True)["mean"]
        reached = mean.index[mean >= TARGET_ACCURACY]
        return np.nan if mean.empty else float(reached[0]) if len(reached) else np.inf

    @property
    def rho(self) -> float:
        """t_80 / t_h; inf: 80 % is not reached."""
        return self.t_80 / self.horizon if self.horizon > 0 else np.nan


def load_trial(
    path: str | Path, metrics: Collection[str] | None = None, sums: Collection[str] = (), labels: Labels | None = None
) -> Trial:
    """Reads the trial of one run file, and of its tables no column that is not asked for.

    metrics: columns of /evaluations besides time, updates, version and those of `evaluate.metrics`; None: all. sums: of
    SUMS. Raises ConfigError where the file cannot be read.
    """
    with open_run(path) as run:
        updates = run.count("updates")
        seconds = float(run.rows("updates", "time", updates - 1, updates)[0]) if updates else 0.0
        staleness, counts = np.unique(run.rows("updates", "staleness", 0, updates), return_counts=True)
        return Trial(
            path=Path(path),
            status=run.status,
            clock=str(run.attrs.get("clock", "")),
            config={key: value for key, value in flat_config(run).items() if key not in NOT_COMPARED},
            evaluations=_evaluations(run, metrics, sums),
            rate=updates / seconds if seconds > 0 else np.nan,
            staleness=float(staleness @ counts / updates) if updates else np.nan,
            global_steps=run.count("aggregations"),
            seed=int(run.attrs.get("seed", 0)),
            labels=labels,
            staleness_counts=(staleness, counts),
            client_updates=_client_updates(run, updates),
            alive=run.is_alive,
            placement=(int(run.attrs.get("ranks", 1)), str(run.attrs.get("hosts", ""))),
            overload=next(filter(None, overload_of(run)), "") if run.attrs.get("clock") == "real" else "",
            train_every=train_every(run),
        )


def overload_of(run: Run) -> tuple[str, str]:
    """Clauses on a run that could not keep up with real time: its evaluations, and its contacts; "" where they did."""
    ages = run.rows("evaluations", "age", 0, run.count("evaluations"))
    every = evaluate_number(run, "every")
    late = describe_overload(float(np.fmax.reduce(ages, initial=0.0)), every, run.attrs.get("ranks") == 1)
    return late, describe_slow_contacts(*(run.attrs.get(n, np.nan) for n in ("contact_delay", "contact_seconds")))


def _evaluations(run: Run, metrics: Collection[str] | None, sums: Collection[str]) -> pd.DataFrame:
    import pandas as pd

    names = [name for name in EvaluationRow._fields
             if metrics is None or name in metrics or name in ("time", "updates", "version")]  # fmt: skip
    rows = run.count("evaluations")
    data = {name: run.rows("evaluations", name, 0, rows) for name in names} | run.metric_columns()
    every = train_every(run)
    measured = np.arange(rows) // every * every  # the last evaluation that measured them
    data |= {name: data[name][measured] for name in TRAINING if name in data}
    updates = run.count("updates")
    for name in sums:
        each = sum(run.rows("updates", column, 0, updates).astype(float) for column in SUMS[name])
        total = np.concatenate([[0.0], np.cumsum(each)])
        total += np.where(np.isnan(total[-1]), np.nan, 0.0)  # files of older versions have no bytes_down
        data[name] = total[np.clip(data["updates"].astype(int), 0, updates)]
    return pd.DataFrame(data)


def evaluate_number(run: Run, key: str) -> float | None:
    """A number above 0 of the section `evaluate` of a run's job; None where it has none."""
    evaluate = run.config.get("evaluate")
    return number_above_0(evaluate.get(key)) if isinstance(evaluate, dict) else None


def number_above_0(value: Any) -> float | None:
    """A value of a configuration, if it is a number above 0; else None."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**63
    return value if known else None


def train_every(run: Run) -> int:
    """`evaluate.train_every` of a run; 1 where it is missing."""
    return max(1, int(evaluate_number(run, "train_every") or 1))


def _client_updates(run: Run, updates: int) -> np.ndarray:
    """(clients,) updates of each; of an unfinished run, whose table of clients has none yet, from its updates."""
    found = run.rows("clients", "updates", 0, None)
    if run.status != "running":
        return found
    senders = run.rows("updates", "client", 0, updates)
    return np.bincount(senders[(senders >= 0) & (senders < len(found))], minlength=len(found))


def flat_config(run: Run) -> dict[str, Any]:
    """The flat configuration of a run, keys without control characters. Raises ConfigError for too many keys."""
    flat = {printable(key): value for key, value in flatten(run.config).items()}
    if len(flat) > MAX_KEYS:
        raise ConfigError("run file", run.path, f"its configuration has {len(flat)} keys", f"at most {MAX_KEYS}")
    return flat


def group_trials(trials: Iterable[Trial]) -> list[Group]:
    """Groups the trials, in the order of their first appearance: by their labels, if all are runs of studies.

    Otherwise by their configurations, seeds and names aside. Runs of one study are in the order of the study.
    """
    trials = list(trials)
    if all(trial.labels for trial in trials):
        trials.sort(key=lambda trial: trial.labels.place if trial.labels else 0)
    studies = {trial.labels.study if trial.labels else None for trial in trials}
    found: dict[str, tuple[dict[str, Any], list[Trial]]] = {}
    for trial in trials:
        keys = trial.config
        if trial.labels and None not in studies:
            keys = {**({"study": trial.labels.study} if len(studies) > 1 else {}), **trial.labels.axes}
        found.setdefault(json.dumps(keys, sort_keys=True, default=str), (keys, []))[1].append(trial)
    if None in studies:
        names = short_names(differing_keys([keys for keys, _ in found.values()]))
    else:
        names = short_names(list(dict.fromkeys(key for keys, _ in found.values() for key in keys)))
    return [Group({name: keys.get(key) for key, name in names.items()}, members) for keys, members in found.values()]


def count_trials(groups: Sequence[Group]) -> str:
    """The number of trials of a group, such as "1 trial" or "3 to 10 trials"."""
    counts = sorted({len(group.trials) for group in groups})
    return f"{counts[0]} to {counts[-1]} trials" if len(counts) > 1 else format_count(counts[0], "trial")


def own_metrics(groups: Iterable[Group]) -> list[str]:
    """The metrics of `evaluate.metrics`, and the numbers that the method logs, that at least one trial has."""
    known = {*EvaluationRow._fields, *SUMS}
    names = dict.fromkeys(str(name) for group in groups for trial in group.trials for name in trial.evaluations)
    return [name for name in names if name not in known]


def have_values(groups: Sequence[Group], *metrics: str) -> bool:
    """Whether any trial has a value of one of the metrics at its last evaluation."""
    return any(len(group.last(metric)) for group in groups for metric in metrics)


class Labelled(Protocol):
    """What has labels: a group, a run or a combination of a study."""

    @property
    def labels(self) -> dict[str, Any]: ...


L = TypeVar("L", bound=Labelled)


def by_other_labels(groups: Sequence[L], labels: Collection[str | None]) -> list[list[L]]:
    """The groups in lists, in each of which they differ in these labels alone."""
    found: dict[str, list[L]] = {}
    for group in groups:
        rest = {label: value for label, value in group.labels.items() if label not in labels}
        found.setdefault(json.dumps(rest, default=str), []).append(group)
    return list(found.values())


def label_of(key: str, labels: Iterable[str]) -> str | None:
    """The label of an axis or a key of the job among those of groups, which are the endings of such keys."""
    plain = key.removesuffix(".name")
    return max((label for label in labels if label == key or f".{plain}".endswith(f".{label}")), key=len, default=None)


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
