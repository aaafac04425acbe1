"""Reads a study file, which has a base job, axes that vary its keys, and trials, and builds its runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mpifl.config import read
from mpifl.config.job import NOT_IDENTITY, Job
from mpifl.config.packaged import find_file
from mpifl.config.schema import Reader, fields_of
from mpifl.config.types import Config, NonNegativeInt, PositiveInt
from mpifl.errors import ConfigError
from mpifl.problems.metrics import METRICS
from mpifl.rng import stream
from mpifl.tools.analysis.trials import Group, by_other_labels
from mpifl.tools.studies.axes import MAX_RUNS, Point, combinations, without_excluded
from mpifl.tools.studies.search import Search, Stage, check_job, end_of, rungs_of, stages_of
from mpifl.transport.layout import Layout

FREE = ("set", "axes", "exclude", "page")  # sections with readers of their own, not fields of `StudyOptions`
OF_THE_STUDY = {  # keys of a job that a study sets in each run
    "seed": "trials has the seeds of the runs",
    "name": "the runs are named after the study, whose name is the key name of the study file",
    "output": "the folder of the run files is the key output of the study file",
    "overwrite": "a sweep replaces a run file only by that of the same run",
}
TEST_METRICS = ("test_", "client_accuracy", "personal_accuracy", *METRICS)  # metrics of test rows begin with these
HIGHER_IS_BETTER = "validation_accuracy"  # of the metrics that may select
MAX_NAME = 120  # bytes of a run file's name in front of the identity
RUN_FILE = re.compile(r".*-([0-9a-f]{12})\.h5")


@dataclass(frozen=True)
class Trials(Config):
    """The repetitions of each combination: `10`, `[0, 3, 7]`, or a section."""

    seeds: list[NonNegativeInt]
    """seeds of the trials: a list"""
    vary: list[str] = field(default_factory=list)
    """keys of the job besides `seed` that are set to a trial's seed, such as problem.partition.seed"""


@dataclass(frozen=True)
class Select(Config):
    """Which values of an axis a report shows: those that are best by a rule, for each combination of the other axes."""

    over: str | list[str]
    """the axis, or the key inside a named axis, whose values are selected; a list: the combination of those that a
    method has"""
    by: Literal["train_loss", "validation_loss", "validation_accuracy", "gradient_norm", "gradient_mapping"] = (
        "train_loss"
    )
    """the metric that decides: of the training rows, or of the validation rows (`problem.validation_split`)"""
    at: Literal["last", "best"] = "last"
    """last: at a trial's last evaluation; best: at its best one"""
    rule: Literal["min", "max", "largest-finite"] | None = None
    """min or max of the metric's mean over the trials; largest-finite: the largest values at which it is finite; null:
    max for validation_accuracy, min for the others"""
    count: PositiveInt = 1
    """how many values are shown"""
    seeds: list[NonNegativeInt] | None = None
    """seeds of the trials that decide; the others are reported. null: all decide and are reported"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule is None:
            object.__setattr__(self, "rule", "max" if self.by == HIGHER_IS_BETTER else "min")

    @property
    def keys(self) -> list[str]:
        """The axes or keys of `over`."""
        return [self.over] if isinstance(self.over, str) else self.over

    @property
    def largest_is_best(self) -> bool:
        """Whether a large score is a good one."""
        return self.by == HIGHER_IS_BETTER if self.rule == "largest-finite" else self.rule == "max"

    def decides(self, seed: int) -> bool:
        """Whether trials of this seed decide what is selected."""
        return self.seeds is None or seed in self.seeds

    def reports(self, seed: int) -> bool:
        """Whether trials of this seed are reported."""
        return self.seeds is None or seed not in self.seeds

    def score(self, group: Group) -> float:
        """The mean of the metric over the trials that decide; NaN where one of them has none."""
        best = np.fmax.reduce if self.by == HIGHER_IS_BETTER else np.fmin.reduce  # both ignore NaN
        known = [trial.evaluations[self.by].to_numpy() for trial in group.trials if self.decides(trial.seed)]
        if not known or not all(map(len, known)):
            return np.nan
        return float(np.mean([float(values[-1] if self.at == "last" else best(values)) for values in known]))


@dataclass(frozen=True)
class StudyOptions(Config):
    """The keys of a study file besides `set`, `axes` and `exclude`."""

    name: str
    """name of the study"""
    job: str
    """the job file that all runs share, relative to the folder of the study file"""
    trials: Trials
    """repetitions of each combination: their number (seeds 0, 1, ...), a list of seeds, or a section"""
    select: Select | None = None
    """what `mpifl report` selects; null: nothing"""
    search: Search | None = None
    """which of the values that it chooses among are computed to the end; null: all"""
    output: str = "results/${name}"
    """the folder of the run files"""
    budget: PositiveInt | None = None
    """number of combinations to run, drawn at random; null: all"""
    seed: NonNegativeInt = 0
    """seed of the random draws: combinations of a budget, values of a range"""
    retries: NonNegativeInt = 1
    """how many times a run that failed is tried again"""
    ranks: PositiveInt = 1
    """MPI ranks of each run, its server among them; 1: each run in one process"""


@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    labels: dict[str, Any]
    """values by axis"""
    seed: int
    job: Job
    """job whose output is in the study's folder"""
    identity: str
    """12 hexadecimal digits of a hash of the resolved job"""
    ranks: int = 1
    """MPI ranks that compute it"""

    @property
    def path(self) -> Path:
        return Path(self.job.output)


@dataclass(frozen=True)
class Study:
    """A study, read and checked."""

    options: StudyOptions
    runs: tuple[StudyRun, ...]
    """every combination of the axes and every trial, in their order"""
    page: Any = None
    """the section `page`, which `mpifl reproduce` reads"""

    @property
    def folder(self) -> Path:
        return Path(self.options.output)


def planned_stages(study: Study) -> list[Stage]:
    """What the search of a study is to compute; empty without one."""
    search, select, trials = study.options.search, study.options.select, len(study.options.trials.seeds)
    if search is None or select is None:
        return []
    deciding = len(select.seeds) if select.seeds else trials
    brackets = by_other_labels(study.runs, select.keys)
    rungs = [rungs_of(search, len(runs) // trials, end_of(runs[0].job), select.count) for runs in brackets]
    return stages_of(rungs, deciding, select.count * (trials - deciding))


def load_study(path: str | Path, overrides: Sequence[str] = ()) -> Study:
    """The study of a YAML file, changed by `key=value` overrides, with the jobs of all its runs. Raises ConfigError."""
    source = find_file(path)
    values = read.read_yaml(source, "study")
    if not values:
        raise ConfigError("study", source, "empty", "a YAML file with name, job, axes, trials")
    if "problem" in values:
        raise ConfigError(
            "study", source, "this is a job", "a study file, with name, job, axes, trials", "use mpifl run"
        )
    for override in overrides:
        _override(values, *read.parse_override(override))
    free = {key: values.pop(key, None) for key in FREE}
    options = _options(values)
    _check(options, free)
    points = _points(options, free["axes"] or {}, free["exclude"] or [])
    _check_settings("set", free["set"] or {})
    for point in points:
        _check_settings("axes", point.settings)
    base = read.read_yaml(source.parent / options.job, "job")
    for key, value in (free["set"] or {}).items():
        read.set_key(base, str(key), value)
    if options.search:
        read.set_key(base, "checkpoint.end", True)  # from which a run goes on to the next rung
    existing = _existing(Path(options.output))
    runs = [run for point in points for run in _trials(options, base, point, existing)]
    _check_identities(runs)
    _check_ranks(options.ranks, runs)
    _check_metric(options.select, runs)
    _check_search(options, runs)
    return Study(options, tuple(runs), free["page"])


def _options(values: dict[str, Any]) -> StudyOptions:
    """The options of a study; `trials` may be a number or a list, the output may hold ${name}. Raises ConfigError."""
    for key in values:
        if key not in fields_of(StudyOptions) and (near := get_close_matches(key, FREE, 1)):
            raise ConfigError(key, values[key], "no such key", remedy=f"the nearest is {near[0]}")
    trials = values.get("trials")
    section = dict(trials) if isinstance(trials, Mapping) else {"seeds": trials}
    if isinstance(count := section.get("seeds"), int) and not isinstance(count, bool):
        if count < 1:
            raise ConfigError("trials", count, "not a number of trials", "a number of at least 1, or a list of seeds")
        if count > MAX_RUNS:
            raise ConfigError("trials", count, "too many", f"at most {MAX_RUNS:,} trials")
        section["seeds"] = list(range(count))
    if trials is not None:
        if not isinstance(section.get("seeds"), list):
            raise ConfigError("trials", trials, "not a number of trials", "a number of at least 1, or a list of seeds")
        values = {**values, "trials": section}
    select = values.get("select")
    by = select.get("by") if isinstance(select, Mapping) else None
    if isinstance(by, str) and (by.startswith(TEST_METRICS) or ":" in by):
        wrong = "selecting by a test metric would tune on the test data"
        expected = "train_loss, or validation_accuracy with problem.validation_split"
        raise ConfigError("select.by", by, wrong, expected)
    options: StudyOptions = Reader(StudyOptions, values, {}).read()
    output = options.output.replace("${name}", options.name)
    if "${" in output:
        raise ConfigError("output", options.output, "contains a reference other than ${name}", "a folder")
    return replace(options, output=output)


def _points(options: StudyOptions, axes: Mapping[str, Any], exclude: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The combinations of the axes that are run. Raises ConfigError."""
    points = without_excluded(combinations(axes, options.seed), exclude)
    if options.budget and options.budget < len(points):
        drawn = stream(options.seed, "study budget").choice(len(points), options.budget, replace=False)
        points = [points[k] for k in sorted(drawn.tolist())]
    if options.search and options.select and options.search.budget:
        points = _drawn(points, options.select.keys, options.search.budget, options.seed)
    if not points:
        raise ConfigError(
            "exclude", f"{len(exclude)} items", "they leave no combination of the axes", "items that leave at least one"
        )
    if (count := len(points) * len(options.trials.seeds)) > MAX_RUNS:
        wrong = f"the study has {count:,} runs"
        raise ConfigError("trials", len(options.trials.seeds), wrong, f"at most {MAX_RUNS:,}")
    if options.select:
        _check_select(options.select, options.trials, points)
    return points


def _drawn(points: Sequence[Point], over: Sequence[str], budget: int, seed: int) -> list[Point]:
    """The points that a search draws, for each combination of the labels that are not in `over`."""
    kept: set[int] = set()
    for members in by_other_labels(points, over):
        count = min(budget, len(members))
        drawn = stream(seed, "study search").choice(len(members), count, replace=False)
        kept |= {id(members[k]) for k in drawn.tolist()}
    return [point for point in points if id(point) in kept]


def _override(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a key of the study; what follows `set.` or `axes.` is one key of the job, or one axis."""
    first, _, rest = key.partition(".")
    if first in ("set", "axes") and rest:
        if not isinstance(values.get(first) or {}, dict):
            raise ConfigError(key, value, f"{first} is not a section", "a section there")
        values[first] = {**(values.get(first) or {}), rest: value}
    elif key == "trials" and isinstance(values.get(key), dict) and not isinstance(value, dict):
        values[key] = {**values[key], "seeds": value}  # `vary` stays
    else:
        read.set_key(values, key, value)


def _check(options: StudyOptions, free: Mapping[str, Any]) -> None:
    if not re.fullmatch(r"[\w.-]+", options.name):
        raise ConfigError("name", options.name, "contains other characters", "letters, digits, and any of _ . -")
    if not options.trials.seeds:
        raise ConfigError("trials", "[]", "empty", "at least one seed")
    if len(set(options.trials.seeds)) < len(options.trials.seeds):
        raise ConfigError("trials", options.trials.seeds, "a seed occurs twice", "distinct seeds")
    for key, kind, what in (("set", Mapping, "keys of the job with their values"), ("axes", Mapping, "axes by name"),
                            ("exclude", list, "a list of labels by axis")):  # fmt: skip
        if not isinstance(free[key], kind | None):
            raise ConfigError(key, free[key], "not a list" if kind is list else "not a section", what)


def _check_settings(section: str, settings: Mapping[str, Any]) -> None:
    """Raises ConfigError for a key of the job that the study sets by itself."""
    for key, remedy in OF_THE_STUDY.items():
        if key in settings:
            raise ConfigError(f"{section}.{key}", settings[key], "no such key here", remedy=remedy)


def _check_select(select: Select, trials: Trials, points: Sequence[Point]) -> None:
    known = list(dict.fromkeys(label for point in points for label in point.labels))
    for key in select.keys or [""]:
        if key not in known:
            raise ConfigError(
                "select.over", key, "no such axis", f"one of {', '.join(known) or 'the axes, of which there are none'}"
            )
        for point in points if select.rule == "largest-finite" else ():
            if isinstance(value := point.labels.get(key, 0), bool) or not isinstance(value, int | float):
                raise ConfigError("select.rule", "largest-finite", f"{key} has the value {value}", "an axis of numbers")
    if select.seeds is not None and (not select.seeds or not set(select.seeds) < set(trials.seeds)):
        raise ConfigError(
            "select.seeds", select.seeds, "not a part of the trials' seeds", f"some, not all, of {trials.seeds}"
        )


def _check_metric(select: Select | None, runs: Sequence[StudyRun]) -> None:
    """Raises ConfigError where a run will not have the metric that selects."""
    if select is None:
        return
    for run in runs:
        if select.by.startswith("validation_") and run.job.problem.validation_split is None:
            what, remedy = "validation rows", "set problem.validation_split, such as 0.1"
        elif select.by.startswith("gradient_") and not run.job.evaluate.gradient:
            what, remedy = select.by.replace("_", " "), "set evaluate.gradient: true"
        elif select.by == "gradient_norm" and _is_composite(run.job):
            what, remedy = (
                "gradient norm that is 0 at its optimum",
                "select by gradient_mapping: its method minimises f + g",
            )
        elif select.by == "gradient_mapping" and not _is_composite(run.job):
            what, remedy = "gradient mapping", "select by gradient_norm: its method has no g"
        else:
            continue
        raise ConfigError("select.by", select.by, f"{describe(run)} has no {what}", "runs that have it", remedy)


def _check_search(options: StudyOptions, runs: Sequence[StudyRun]) -> None:
    """Raises ConfigError where the study's runs cannot be searched."""
    search, select = options.search, options.select
    if search is None:
        return
    if select is None or select.rule == "largest-finite":
        wrong = "a search needs to know which combinations to try and which metric decides"
        raise ConfigError("search", search.rule, wrong, "a section select with over, and the rule min or max")
    if options.budget:
        raise ConfigError("budget", options.budget, "a search has a budget of its own", "search.budget")
    for members in by_other_labels(runs, select.keys):
        count = len(members) // len(options.trials.seeds)
        for run in members:
            check_job(run.job, rungs_of(search, count, end_of(run.job), select.count)[0], select.by)


def _is_composite(job: Job) -> bool:
    """Whether the job's method minimises f + g."""
    return job.algorithm.gradient_mapping(np.zeros(1), np.zeros(1)) is not None


def _trials(
    options: StudyOptions, base: Mapping[str, Any], point: Point, existing: Mapping[str, Path]
) -> Iterator[StudyRun]:
    """The runs of one combination. Raises ConfigError."""
    values = json.loads(json.dumps(base))
    for key, value in point.settings.items():
        read.set_key(values, key, json.loads(json.dumps(value)))
    values |= {"name": options.name, "output": "-.h5", "overwrite": False}
    seed_alone = not options.trials.vary and not re.search(r"\$\{[^}]*seed", json.dumps(values))
    job = None
    for seed in options.trials.seeds:
        for key in ("seed", *options.trials.vary):
            read.set_key(values, key, seed)
        job = replace(job, seed=seed) if job and seed_alone else read.load(values)
        identity, name = identify(job, options.ranks), _name([options.name, *point.labels.values(), seed])
        path = existing.get(identity, Path(options.output) / f"{name}-{identity}.h5")
        yield StudyRun(point.labels, seed, replace(job, name=name, output=str(path)), identity, options.ranks)


def _name(parts: Sequence[Any]) -> str:
    """The name of a run, made from the study's name, the run's labels and its seed; at most MAX_NAME bytes."""
    texts = (re.sub(r"[^\w.]+", "_", f"{v:g}" if isinstance(v, float) else str(v)).strip("_") for v in parts[1:])
    return "-".join([parts[0], *texts]).encode()[:MAX_NAME].decode(errors="ignore")


def _existing(folder: Path) -> dict[str, Path]:
    """The run files of a folder by the identities at the end of their names; of one identity the first by name."""
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except OSError:  # there is no folder; `Index` reports a file in its place
        return {}
    return {found[1]: folder / name for name in names if (found := RUN_FILE.fullmatch(name))}


def identify(job: Job, ranks: int = 1) -> str:
    """The identity of what a job computes: a hash of its keys that differ from their defaults.

    Its name, its output and its checkpoints do not belong to it. A version that adds a key with a default changes no
    identity. The number of ranks belongs to it under the real clock, where the order of arrivals depends on them.
    """
    values = {key: value for key, value in read.job_to_dict(job, defaults=False).items() if key not in NOT_IDENTITY}
    if ranks > 1 and job.clock.mode == "real":
        values["ranks"] = ranks if job.ranks_per_client == 1 else [ranks, job.ranks_per_client]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _check_identities(runs: Sequence[StudyRun]) -> None:
    seen: dict[str, StudyRun] = {}
    for run in runs:
        if (other := seen.setdefault(run.identity, run)) is not run:
            wrong, expected = "these two combinations give the same job", "combinations that differ in a key of the job"
            raise ConfigError("axes", f"{describe(run)} and {describe(other)}", wrong, expected)


def _check_ranks(ranks: int, runs: Sequence[StudyRun]) -> None:
    """Raises ConfigError where every run would leave ranks without clients, or a run's ranks form incomplete groups."""
    layouts = [Layout(ranks, run.job.ranks_per_client).check() for run in runs]
    clients = [run.job.problem.clients for run in runs]
    known = [n * layout.per_client for n, layout in zip(clients, layouts, strict=True) if n is not None]
    if len(known) == len(clients) and ranks > (most := max(known)) + 1:
        wrong = f"the clients of a run take at most {most} ranks, and the server one more"
        raise ConfigError("ranks", ranks, wrong, f"at most {most + 1}")


def describe(run: StudyRun) -> str:
    """The labels and the seed of a run, in one clause."""
    return ", ".join([*(f"{axis} {value}" for axis, value in run.labels.items()), f"seed {run.seed}"])
