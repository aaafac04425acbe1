"""The suite of the arena: its scenarios, its methods and their search spaces, and the study of each scenario."""

from __future__ import annotations

import copy
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mpifl.config import read, yaml_io
from mpifl.config.job import Job
from mpifl.config.packaged import JOBS
from mpifl.config.registry import FAMILIES
from mpifl.config.schema import Reader, fields_of
from mpifl.config.types import Config, NonNegativeInt, PositiveInt
from mpifl.errors import ConfigError, as_unwritable, inside
from mpifl.rng import stream
from mpifl.scheduling.availability import Always
from mpifl.scheduling.delays import Speed
from mpifl.tools.arena.audit import KNOWLEDGE
from mpifl.tools.studies.study import Study, load_study

FOLDER = JOBS / "arena"
TIERS = ("quick", "standard")
LOCAL_STEPS = "${algorithm.local_steps}"  # each local step of a contact takes the time `compute` of its client


@dataclass(frozen=True)
class Scenario(Config):
    """A scenario of the suite. Its job is the file of the same name."""

    tier: Literal["quick", "standard"]
    """the smallest tier that includes it"""
    task: str
    """what is trained"""
    partition: str
    """how data rows, or the optima of quadratics, differ between the clients"""
    delay: str
    """how long clients take, and when they are available"""
    target: float
    """training loss; the time at which it is first reached is measured"""
    name: str = field(default="", init=False)

    @property
    def path(self) -> Path:
        """The file of its job."""
        return FOLDER / f"{self.name}.yaml"

    @property
    def why(self) -> str:
        """Why the suite has it: the first line of its job."""
        return self.path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


@dataclass(frozen=True)
class Method(Config):
    """A method and the space of its random search."""

    algorithm: Any
    """the section `algorithm` with the defaults of the method's paper"""
    space: Any = field(default_factory=dict)
    """for keys of that section: a list of values, {from, to} for a log-uniform range, {clients: SHARES} of the number
    of clients, or {exchange: MULTIPLES} of the time of a contact's messages"""
    per_update: bool = False
    """whether each update moves the model by a whole step; the step sizes are then divided by the number of clients"""
    knows: list[str] = field(default_factory=list)
    """what the method is told besides its messages and the number of clients"""


@dataclass(frozen=True)
class Suite(Config):
    """The file suite.yaml, and the methods of methods.yaml."""

    name: str
    """name and version: numbers of different suites are not compared"""
    configurations: PositiveInt
    """configurations of each method in each scenario, its paper's defaults among them"""
    tuning_seeds: list[NonNegativeInt]
    """seeds of the runs that decide which configuration is reported"""
    reporting_seeds: list[NonNegativeInt]
    """seeds of the runs that are reported"""
    step_size: Any
    """the range of `step_size`, the same for all methods"""
    scenarios: Any
    """scenarios by name"""
    held_out: list[str] = field(default_factory=list)
    """scenarios and methods that were not run while the suite was first chosen"""
    home: list[str] = field(default_factory=list)
    """methods whose papers' studies are in the package"""
    methods: Any = field(default_factory=dict)
    """methods by name"""

    def tier(self, name: str, key: str = "--tier") -> dict[str, Scenario]:
        """The scenarios of a tier: the standard one has those of the quick one too. Raises ConfigError, for `key`."""
        if name not in TIERS:
            raise ConfigError(key, name, "no such tier", f"one of {', '.join(TIERS)}")
        return {key: each for key, each in self.scenarios.items() if TIERS.index(each.tier) <= TIERS.index(name)}

    def tier_of(self, names: Sequence[str]) -> str:
        """The smallest tier that has these scenarios, as far as they are known."""
        known = [self.scenarios[name].tier for name in names if name in self.scenarios]
        return max(known, key=TIERS.index, default=TIERS[0])

    def chosen(self, tier: str, only: Sequence[str]) -> dict[str, Scenario]:
        """Those scenarios of a tier that are named; all of it if none is. Raises ConfigError."""
        found = self.tier(tier)
        for name in only:
            if name in self.scenarios and name not in found:
                wrong = f"the {tier} tier does not have this scenario"
                raise ConfigError("--scenario", name, wrong, remedy=f"give --tier {self.scenarios[name].tier}")
            if name not in found:
                raise ConfigError("--scenario", name, "no such scenario of this tier", f"one of {', '.join(found)}")
        return {name: each for name, each in found.items() if not only or name in only}


def stored_table(tier: str) -> Path:
    """The file with results of the suite's methods in the scenarios that a tier adds, which comes with the package."""
    return FOLDER / f"{tier}.csv.gz"


def load_suite() -> Suite:
    """The suite of the package."""
    values = read.read_yaml(FOLDER / "suite.yaml", "suite")
    suite: Suite = Reader(Suite, values, {}).read()
    for name, section in suite.scenarios.items():
        with inside(f"scenarios.{name}"):
            suite.scenarios[name] = Reader(Scenario, section, {}).read()
            object.__setattr__(suite.scenarios[name], "name", name)
    for name, section in read.read_yaml(FOLDER / "methods.yaml", "methods").items():
        suite.methods[name] = read_method(name, section)
    return suite


def read_method(name: str, section: Any) -> Method:
    """A method of its section. Raises ConfigError."""
    with inside(_place(name)):
        method: Method = Reader(Method, section, {}).read()
        if not isinstance(method.space, Mapping):
            raise ConfigError("space", method.space, "not valid", "a range for each option")
        return method


def _place(name: str) -> str:
    """Where the section of a method is: in the dict of its module, or in methods.yaml."""
    return "ARENA" if ":" in name else f"methods.{name}"


def own_method(name: str, key: str = "--method") -> Method:
    """A user's method "module:Class"; its module may have a dict ARENA with `space`, `knows` and `algorithm`.

    Raises ConfigError, of this key where the name or the class is wrong.
    """
    if ":" not in name:
        expected = "a subclass of mpifl.algorithms.Algorithm"
        raise ConfigError(key, name, "not of the form module:Class", expected)
    try:
        found = FAMILIES["algorithm"].find(name)
    except ConfigError as error:
        raise error.of(key, name) from error
    if "step_size" not in fields_of(found):
        wrong = "this class has no option step_size, which the suite tunes in all methods"
        raise ConfigError(key, name, wrong, "a subclass of LocalTraining, or a field step_size")
    section = getattr(sys.modules[name.partition(":")[0]], "ARENA", {})
    options = section.get("algorithm", {}) if isinstance(section, Mapping) else None
    if not isinstance(options, Mapping):
        raise ConfigError("ARENA", section, "not valid", 'a dict such as {"space": {"local_steps": [1, 5]}}')
    method = read_method(name, {**section, "algorithm": {**options, "name": name}})
    told = KNOWLEDGE.values()
    if unknown := [each for each in method.knows if each not in told]:
        raise ConfigError("ARENA.knows", unknown[0], "nothing that a method can be told", f"one of {', '.join(told)}")
    if "step_size" in method.space:
        wrong = "the suite has the range of the step size, the same for all methods"
        raise ConfigError("ARENA.space.step_size", method.space["step_size"], wrong, remedy="leave it out")
    return method


def configurations(suite: Suite, scenario: Scenario, name: str, method: Method) -> list[dict[str, Any]]:
    """The sections `algorithm` that are tuned in a scenario: the defaults first, then random draws.

    A draw depends only on the scenario, the key and its range, so methods with the same range have the same draws.
    """
    job = read.load(scenario.path)
    delay = job.clock.delay
    assert job.problem.clients and isinstance(delay, Speed)
    exchange = min(delay.exchange) if isinstance(delay.exchange, list) else delay.exchange
    units = {"clients": job.problem.clients, "exchange": exchange}
    space = {"step_size": suite.step_size, **method.space}
    with inside(_place(name)):
        drawn = {key: _draw(f"arena {scenario.name} {key}", key, spec, units, suite) for key, spec in space.items()}
        found = [_resolved(method.algorithm, units)]
        for k in range(suite.configurations - 1):
            found.append(copy.deepcopy(found[0]))
            for key, values in drawn.items():
                read.set_key(found[-1], key, values[k])
    for section in found if method.per_update else ():
        step = section.get("step_size") or _job(scenario, section).algorithm.step_size  # type: ignore[attr-defined]
        section["step_size"] = float(f"{step / job.problem.clients:.3g}")
    return found


def _job(scenario: Scenario, section: Mapping[str, Any]) -> Job:
    """A scenario's job with a method."""
    return read.load(scenario.path, keys={"algorithm": section})


def _draw(purpose: str, key: str, spec: Any, units: Mapping[str, float], suite: Suite) -> list[Any]:
    """The values of a key in the drawn configurations: a Latin hypercube sample of its range. Raises ConfigError."""
    generator, count = stream(0, purpose), suite.configurations - 1
    places = (generator.permutation(count) + generator.random(count)) / count
    values: Any = None
    with suppress(TypeError):  # ends or shares that are no numbers
        if isinstance(spec, Mapping) and spec.keys() == {"from", "to"} and 0 < spec["from"] < spec["to"]:
            return [float(f"{value:.3g}") for value in spec["from"] * (spec["to"] / spec["from"]) ** places]
        values = _resolved(spec, units)
    if not isinstance(values, list) or not values:
        expected = "a list that is not empty, {from: 0.01, to: 1}, {clients: [0.1, 0.5]} or {exchange: [0.5, 1]}"
        raise ConfigError(f"space.{key}", spec, "not a valid range", expected)
    return [values[int(place * len(values))] for place in places.tolist()]


def _resolved(value: Any, units: Mapping[str, float]) -> Any:
    """The value with every {UNIT: MULTIPLES} replaced by values; a number of clients is at least 1."""
    if isinstance(value, Mapping):
        if len(value) == 1 and (unit := next(iter(value))) in units:
            several = isinstance(value[unit], list)
            found = [each * units[unit] for each in (value[unit] if several else [value[unit]])]
            found = [max(1, round(each)) for each in found] if unit == "clients" else found
            return found if several else found[0]
        return {key: _resolved(each, units) for key, each in value.items()}
    return value


def _keys(job: Job, steps: Any = None) -> dict[str, Any]:
    """The keys of a scenario's job that depend on its method.

    A contact takes the time of its local steps, if the method has these and does not poll. Cohorts are drawn from the
    clients that are available.

    steps: The value of the key for the number of local steps; None: that number.
    """
    keys: dict[str, Any] = {}
    if "local_steps" in fields_of(type(job.algorithm)) and not job.algorithm.polls:
        keys["clock.delay.steps"] = steps or job.algorithm.local_steps  # type: ignore[attr-defined]
    if job.algorithm.draws_cohorts and type(job.clock.availability) is not Always:
        keys["clock.availability.cohort_from"] = "available"
    return keys


def run_command(scenario: Scenario, configuration: str, seed: int) -> str:
    """The command that computes one run of the results table."""
    section = json.loads(configuration)
    keys = "".join(f" {key}={value}" for key, value in _keys(_job(scenario, section)).items())
    algorithm = shlex.quote(f"algorithm={json.dumps(section)}")
    return f"mpifl run jobs/arena/{scenario.name}.yaml {algorithm}{keys} seed={seed}"


def scenario_study(
    suite: Suite, scenario: Scenario, methods: Mapping[str, Method], folder: Path, ranks: int = 1
) -> Study:  # fmt: skip
    """The study of a scenario. Writes its file into the folder; its runs lie in a folder beside the file.

    `mpifl sweep` and `mpifl report` accept the file too. Raises ConfigError.
    """
    labels: dict[str, Any] = {}
    for name, method in methods.items():
        sections = configurations(suite, scenario, name, method)
        job = _job(scenario, sections[0])
        keys = _keys(job, LOCAL_STEPS)
        for section in sections if "clock.delay.steps" in keys else ():
            section.setdefault("local_steps", job.algorithm.local_steps)  # type: ignore[attr-defined]
        labels[name] = {"algorithm": sections, **keys}
    values = {
        "name": scenario.name, "job": str(scenario.path), "output": str(folder / scenario.name),
        "axes": {"method": labels}, "trials": {"seeds": [*suite.tuning_seeds, *suite.reporting_seeds]},
        "select": {"over": "algorithm", "by": "train_loss", "seeds": suite.tuning_seeds}, "ranks": ranks,
    }  # fmt: skip
    path = folder / f"{scenario.name}.yaml"
    with as_unwritable("--out", folder):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml_io.dump(values), encoding="utf-8")
    return load_study(path)
