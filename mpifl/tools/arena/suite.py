"""The suite of the arena: its scenarios, its methods with the spaces of their random search, and their studies."""

from __future__ import annotations

import copy
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mpifl.config import read, yaml_io
from mpifl.config.packaged import JOBS
from mpifl.config.registry import FAMILIES
from mpifl.config.schema import Reader, fields_of
from mpifl.config.types import Config, NonNegativeInt, PositiveInt
from mpifl.errors import ConfigError, inside
from mpifl.rng import stream
from mpifl.tools.studies.study import Study, load_study

FOLDER = JOBS / "arena"
TIERS = ("quick", "standard")
LOCAL_STEPS = "${algorithm.local_steps}"  # each local step of a contact takes the time `compute` of its client


@dataclass(frozen=True)
class Scenario(Config):
    """A scenario of the suite, whose job is the file of its name."""

    tier: Literal["quick", "standard"]
    """the smallest tier that has it"""
    task: str
    """what is trained"""
    split: str
    """how rows or optima differ between the clients"""
    delay: str
    """how long clients take, and when they are on"""
    target: float
    """training loss whose first time is measured"""
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
    """by key of that section: a list, {from, to} for a log-uniform law, or {clients: SHARES} of their number"""
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
    """scenarios and methods that were not run while the suite was chosen"""
    methods: Any = field(default_factory=dict)
    """methods by name"""

    def tier(self, name: str) -> dict[str, Scenario]:
        """The scenarios of a tier: the standard one has those of the quick one too. Raises ConfigError."""
        if name not in TIERS:
            raise ConfigError("--tier", name, "no such tier", f"one of {', '.join(TIERS)}")
        return {key: each for key, each in self.scenarios.items() if TIERS.index(each.tier) <= TIERS.index(name)}

    def chosen(self, tier: str, only: Sequence[str]) -> dict[str, Scenario]:
        """Those scenarios of a tier that are named; all of it if none is. Raises ConfigError."""
        found = self.tier(tier)
        if unknown := [name for name in only if name not in found]:
            raise ConfigError("--scenario", unknown[0], "no such scenario of this tier", f"one of {', '.join(found)}")
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
    with inside(f"methods.{name}"):
        method: Method = Reader(Method, section, {}).read()
        return method


def own_method(name: str) -> Method:
    """A user's method "module:Class"; its module may have a dict ARENA with `space`, `knows` and `algorithm`.

    Raises ConfigError.
    """
    if ":" not in name:
        expected = "a subclass of mpifl.algorithms.Algorithm"
        raise ConfigError("--method", name, "not of the form module:Class", expected)
    FAMILIES["algorithm"].find(name)  # imports the module
    section = dict(getattr(sys.modules[name.partition(":")[0]], "ARENA", {}))
    options = dict(section.pop("algorithm", {}))
    return read_method(name, {"algorithm": {**options, "name": name}, **section})


def configurations(suite: Suite, name: str, method: Method, clients: int) -> list[dict[str, Any]]:
    """The sections `algorithm` that are tried for so many clients: the defaults first, then random draws.

    A draw depends on the method's name, the key and the space alone.
    """
    space = {"step_size": suite.step_size, **method.space}
    with inside(f"methods.{name}"):
        drawn = {key: _draw(f"arena {name} {key}", key, spec, clients, suite) for key, spec in space.items()}
        found = [_resolved(method.algorithm, clients)]
        for k in range(suite.configurations - 1):
            found.append(copy.deepcopy(found[0]))
            for key, values in drawn.items():
                read.set_key(found[-1], key, values[k])
    return found


def _draw(purpose: str, key: str, spec: Any, clients: int, suite: Suite) -> list[Any]:
    """The values of a key in the configurations that are drawn: one in each of as many parts of its range, in random
    order. Raises ConfigError."""
    generator, count = stream(0, purpose), suite.configurations - 1
    places = (generator.permutation(count) + generator.random(count)) / count
    if isinstance(spec, Mapping) and spec.keys() == {"from", "to"} and 0 < spec["from"] < spec["to"]:
        return [float(f"{value:.3g}") for value in spec["from"] * (spec["to"] / spec["from"]) ** places]
    values = _resolved(spec, clients)
    if not isinstance(values, list) or not values:
        raise ConfigError(
            f"space.{key}", spec, "not a valid range", "a list, {from: 0.01, to: 1}, or {clients: [0.1, 0.5]}"
        )
    return [values[int(place * len(values))] for place in places.tolist()]


def _resolved(value: Any, clients: int) -> Any:
    """The value with every {clients: SHARE} replaced by that share of the number of clients, at least 1."""
    if isinstance(value, Mapping):
        if value.keys() == {"clients"}:
            shares = value["clients"]
            counts = [max(1, round(share * clients)) for share in (shares if isinstance(shares, list) else [shares])]
            return counts if isinstance(shares, list) else counts[0]
        return {key: _resolved(each, clients) for key, each in value.items()}
    return value


def _default_steps(section: Mapping[str, Any]) -> Any:
    """The default number of local steps of a method whose contacts have any; None: they have one gradient or a poll."""
    algorithm: Any = FAMILIES["algorithm"].find(str(section["name"]))
    steps = fields_of(algorithm).get("local_steps")
    return steps.default if steps and not algorithm.polls else None


def run_command(scenario: Scenario, configuration: str, seed: int) -> str:
    """The command that computes a run of the results table by itself."""
    section = json.loads(configuration)
    steps = f" clock.delay.steps={section['local_steps']}" if _default_steps(section) else ""
    algorithm = shlex.quote(f"algorithm={json.dumps(section)}")
    return f"mpifl run jobs/arena/{scenario.name}.yaml {algorithm}{steps} seed={seed}"


def scenario_study(
    suite: Suite, scenario: Scenario, methods: Mapping[str, Method], folder: Path, ranks: int = 1
) -> Study:  # fmt: skip
    """The study of a scenario, whose file is written into the folder; its runs lie in a folder beside it.

    `mpifl sweep` and `mpifl report` take the file too. Raises ConfigError.
    """
    clients = read.load(scenario.path).problem.clients
    assert clients is not None
    labels: dict[str, Any] = {}
    for name, method in methods.items():
        sections = configurations(suite, name, method, clients)
        labels[name] = {"algorithm": sections}
        if steps := _default_steps(method.algorithm):
            for section in sections:
                section.setdefault("local_steps", steps)
            labels[name]["clock.delay.steps"] = LOCAL_STEPS
    values = {
        "name": scenario.name, "job": str(scenario.path), "output": str(folder / scenario.name),
        "axes": {"method": labels}, "trials": {"seeds": [*suite.tuning_seeds, *suite.reporting_seeds]},
        "select": {"over": "algorithm", "by": "train_loss", "seeds": suite.tuning_seeds}, "retries": 0,
        "ranks": ranks,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{scenario.name}.yaml"
    path.write_text(yaml_io.dump(values), encoding="utf-8")
    return load_study(path)
