"""A job: everything that one run needs to know, typed, validated, and as plain as a dict for the wire and the file.

Rank 0 reads YAML with `load`; the other ranks get `job_to_dict` and build an equal job without a YAML library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from mpifl import algorithms, problems
from mpifl.algorithms.base import Algorithm
from mpifl.config.schema import Family, Reader, dump, table
from mpifl.config.types import INT64_MAX, Bounds, Config, PositiveFloat, PositiveFraction, PositiveInt
from mpifl.errors import ConfigError, inside
from mpifl.problems import ProblemConfig
from mpifl.scheduling.delays import DELAYS, Delay, NoDelay


@dataclass(frozen=True)
class Clock(Config):
    """What decides the order in which updates are consumed."""

    mode: Literal["real", "virtual"] = "real"
    """real: as updates arrive; virtual: as the delay model says, the same on any number of ranks"""
    delay: Delay = field(default_factory=NoDelay)
    """how long a client takes from one contact to the next: a delay model"""


@dataclass(frozen=True)
class Stop(Config):
    """When the run ends: the first of those given."""

    time: PositiveFloat | None = None
    """seconds of the run's clock"""
    updates: PositiveInt | None = None
    """updates that the server has consumed"""
    accuracy: PositiveFraction | None = None
    """test accuracy that an evaluation reaches, 0..1"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time is self.updates is self.accuracy is None:
            raise ConfigError("stop", None, "at least one of time, updates, accuracy")


@dataclass(frozen=True)
class Evaluate(Config):
    """How often the global model is evaluated: exactly one of every and updates is given."""

    every: PositiveFloat | None = None
    """seconds of the run's clock"""
    updates: PositiveInt | None = None
    """updates that the server has consumed"""
    gradient: bool = False
    """measure the norm of the training loss's gradient as well, without a method's own penalty"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.every is None) == (self.updates is None):
            both = None if self.every is None else "every and updates"
            raise ConfigError("evaluate", both, "either every (seconds) or updates (a count)")


@dataclass(frozen=True)
class Checkpoint(Config):
    """How often the run is saved while it goes on; a signal has it saved in any case."""

    every: PositiveFloat | None = None
    """seconds of the run's clock; null: not by time"""
    updates: PositiveInt | None = None
    """updates that the server has consumed; null: not by updates"""


@dataclass(frozen=True)
class Faults(Config):
    """The policy for clients that fail, and what is refused of them."""

    lost: Literal["freeze", "rehost", "stop"] = "freeze"
    """a client that is lost: freeze, the run goes on without it; rehost, another rank hosts it; stop, the run fails"""
    norm: PositiveFloat | None = None
    """an update with a larger Euclidean norm is refused; null: only those that are not finite, or of another shape"""
    refusals: PositiveInt = 3
    """updates refused in a row after which a client is set aside; moves in a row after which one is moved no more"""
    patience: PositiveFloat | None = None
    """seconds of wall time that a client may take for an answer, its emulated delay not counted; null: any time"""


@dataclass(frozen=True)
class Job(Config):
    """One run."""

    name: str
    """the run's name, and by default the name of its file"""
    seed: Annotated[int, Bounds(at_least=0, at_most=INT64_MAX)]
    """all random numbers of the run are functions of it; 0 .. 2**63 - 1"""
    problem: ProblemConfig
    """what is minimised"""
    algorithm: Algorithm
    """how"""
    stop: Stop
    """when the run ends"""
    output: str
    """the run file; results/NAME.h5 where a job file does not say"""
    clock: Clock = field(default_factory=Clock)
    """what decides the order of events"""
    evaluate: Evaluate = field(default_factory=lambda: Evaluate(every=1.0))
    """how often the model is evaluated"""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    """how often the run is saved"""
    faults: Faults = field(default_factory=Faults)
    """what becomes of clients that fail"""
    overwrite: bool = False
    """replace the output where it exists"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"\w[\w.+=,@-]*", self.name) or len(self.name.encode()) > 200:
            raise ConfigError("name", self.name, "a file name's letters, digits and . + = , @ _ -")
        if not Path(self.output).name.removesuffix(".h5") or not self.output.endswith(".h5"):
            raise ConfigError("output", self.output, "the path of a file that ends in .h5")
        if self.clock.mode == "virtual" and self.clock.delay.may_be_zero and self.stop.updates is None:
            text = "a delay model with times above 0, or stop.updates: without them virtual time stands still"
            raise ConfigError("clock.delay", type_name(self.clock.delay), text)
        if self.clock.mode == "virtual" and self.algorithm.needs_timings() and not self.clock.delay.has_parts:
            text = "speed: this method is told the times of computing and exchanging, which no other model tells apart"
            raise ConfigError("clock.delay", type_name(self.clock.delay), text)
        if self.problem.torch is not None:
            torch = self.problem.torch.with_defaults(repeatable=self.clock.mode == "virtual")
            object.__setattr__(self, "problem", replace(self.problem, torch=torch))
        if self.problem.clients is not None:  # data that come by client say how many only when they are read
            with inside("algorithm"):
                self.algorithm.validate(self.problem.clients)


def type_name(section: object) -> str:
    """The name by which a job selects a section's class; of a user's own class that has none, the class' own."""
    return str(getattr(section, "name", type(section).__qualname__))


def _algorithm_name(cls: type) -> str:
    package, _, module = cls.__module__.rpartition(".")
    own = package == algorithms.__name__
    return module.replace("_", "-") if own else f"{cls.__module__}:{cls.__qualname__}"


FAMILIES = {
    "algorithm": Family(algorithms.names, algorithms.find, _algorithm_name),
    "data": table(lambda: problems.DATA),
    "partition": table(lambda: problems.PARTITIONS),
    "model": table(lambda: problems.MODELS),
    "init": table(lambda: problems.INITS),
    "delay": table(lambda: DELAYS),
}


def job_from_dict(values: Mapping[str, Any]) -> Job:
    """The job of a plain dict (of `job_to_dict`, or a resolved YAML file). Raises ConfigError."""
    return Reader(Job, values, FAMILIES).read()


def job_to_dict(job: Job) -> dict[str, Any]:
    """The job as dicts, lists, text and numbers."""
    return dump(job, FAMILIES)


def replayed(
    config: Mapping[str, Any], output: Path, overrides: Sequence[str] = (), keys: Mapping[str, Any] | None = None,
    threads: int | None = None,
) -> Job:  # fmt: skip
    """The job of a run file's `config`, to be replayed into `output`; only where to write may be changed.

    threads: of torch, on the ranks of that run. Clients are computed one by one, so that the replay's bits do not
    depend on its ranks; they are those of the run where that did so too.
    """
    values = {**config, "output": str(output), "overwrite": False}
    problem = values.get("problem")
    if isinstance(problem, Mapping) and isinstance(torch := problem.get("torch"), Mapping):
        repeatable = {"batched": False, "deterministic": True, "threads": torch.get("threads") or threads}
        values["problem"] = {**problem, "torch": {**torch, **repeatable}}
    for key, value in [*map(_override, overrides), *_plain(keys or {}).items()]:
        if key not in ("output", "overwrite"):
            raise ConfigError(key, value, "a replay is the recorded job; only output and overwrite can be given")
        values[key] = value
    return job_from_dict(values)


def load(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), keys: Mapping[str, Any] | None = None
) -> Job:
    """The job of a YAML file or a dict, changed by overrides, then by keys, then ${...} resolved. Raises ConfigError.

    A `key=value` override sets its key to the value, whatever stood there: `stop={updates: 9}` replaces the section,
    while `stop.updates=9` adds to it. `keys` likewise set top-level keys to plain values.
    """
    if isinstance(source, Mapping):
        values, what = _plain(source), "a dict"
    else:
        values, what = _parsed(str(source), _text(Path(source))), "a YAML file"
    if all(value is None for value in values.values()):  # nothing, or prose
        shown = "{}" if isinstance(source, Mapping) else source
        raise ConfigError("job", shown, f"{what} with name, seed, problem, algorithm, stop")
    for override in overrides:
        _set(values, *_override(override))
    values |= _plain(keys or {})
    resolved = _resolved(values)
    return job_from_dict({"output": f"results/{resolved.get('name')}.h5", **resolved})


def _plain(value: Any) -> Any:
    """A copy of dicts and lists in which paths are text, and NumPy's numbers Python's."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def to_yaml(job: Job) -> str:
    """The resolved configuration; loads again to an equal job."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(job_to_dict(job)))


# -- reading YAML ------------------------------------------------------------------------------------------------------
def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError("job", path, "no such file") from None
    except OSError as error:
        raise ConfigError("job", path, (error.strerror or "cannot be read").lower()) from None
    if raw.startswith(b"\x89HDF\r\n"):
        raise ConfigError("job", path, "a YAML file; this is HDF5, which mpifl show and mpifl replay take")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError("job", path, "a YAML file, and this is no text")
    return text


def _parsed(name: str, text: str) -> dict[str, Any]:
    """YAML to a dict, ${...} left as they are."""
    import io

    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        values = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError("job", name, f"not valid YAML: {where}{error.problem or error.context}") from None
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "job"
        raise ConfigError(key, name, f"not valid: {str(error).splitlines()[0]}") from None
    except Exception as error:  # a wrong !!tag makes YAML's constructors raise nearly anything
        what = "a YAML file of sections" if isinstance(error, OSError) else f"not valid YAML: {error}"
        raise ConfigError("job", name, what) from None
    if not isinstance(values, dict):
        raise ConfigError("job", name, "a YAML file of sections")
    return {str(key): value for key, value in values.items()}


def _override(text: str) -> tuple[str, Any]:
    """`key=value` as the key and the value that YAML makes of it."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", key):
        raise ConfigError("override", text, "key=value, as in algorithm.step_size=0.1")
    try:
        return key, _parsed(text, f"value: {value}")["value"]
    except ConfigError as error:
        raise ConfigError(key, value, error.expected) from None


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    node = values
    for depth, part in enumerate(path):
        below = node.get(part)
        if isinstance(below, str):  # `partition: iid` is short for this
            below = {"name": below}
        if not isinstance(below, dict | None):
            raise ConfigError(key, value, f"{'.'.join(path[: depth + 1])} is no section")
        node[part] = node = below or {}
    node[last] = value


def _resolved(values: dict[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(error.full_key or "job", _at(values, error.full_key), str(error).splitlines()[0]) from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _at(values: Any, key: str | None) -> Any:
    """The value of a dotted key, as it was written."""
    for part in (key or "").split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values
