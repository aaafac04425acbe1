"""Every key of every method, and of the sections that choose how it works: what is no value of it is one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from math import nan
from typing import Annotated, Any, get_args, get_origin

import pytest

from mpifl.algorithms.common.local_solver import Solver
from mpifl.algorithms.common.robust import Aggregation
from mpifl.algorithms.common.server_optimizers import Optimizer
from mpifl.config import read
from mpifl.config.job import Checkpoint, Clock, Evaluate, Faults, MemoryUse, Stop
from mpifl.config.registry import FAMILIES
from mpifl.config.types import Bounds, hints, members
from mpifl.errors import ConfigError
from mpifl.problems import ProblemConfig
from tests.config.test_own_classes import KEYS

BASE: dict[str, Any] = {
    "name": "base",
    "seed": 0,
    "problem": {"clients": 4, "model": "quadratic"},
    "clock": {"mode": "virtual"},
    "stop": {"updates": 9},
}
# The section's place in a job, the name that chooses the class, and the class.
SECTIONS: list[tuple[str, str, type]] = [
    *((KEYS[key], name, family.find(name)) for key, family in FAMILIES.items() for name in family.names()),
    *(("algorithm.solver", kind().name, kind) for kind in get_args(Solver)),
    *(("algorithm.optimizer", kind().name, kind) for kind in get_args(Optimizer)),
    *(("algorithm.aggregation", kind.name, kind) for kind in get_args(Aggregation)),
    *((kind.__name__.lower(), "", kind) for kind in (Clock, Stop, Evaluate, Checkpoint, Faults)),
    ("memory", "", MemoryUse),
    ("problem", "", ProblemConfig),
]
REQUIRED: dict[str, dict[str, Any]] = {"clip": {"norm": 1.0}, "trace": {"after": "off"}}


def wrong_values(hint: Any) -> Iterator[Any]:
    """Values of other types, and numbers beyond each bound."""
    yield [[]]
    kinds = members(hint)
    if str not in kinds and Any not in kinds:
        yield "no such value"
    for kind in kinds:
        yield from [nan] if kind is float else []
        if get_origin(kind) is Annotated:
            number, *more = get_args(kind)
            yield from [nan] if number is float else []
            for bounds in (b for b in more if isinstance(b, Bounds)):
                ends = (bounds.at_least, -1), (bounds.above, 0), (bounds.at_most, 1), (bounds.below, 0)
                yield from (number(end) + step for end, step in ends if end is not None)


def job(section: str, options: dict[str, Any]) -> dict[str, Any]:
    values = {**BASE, "algorithm": {"name": "fedavg"}}
    first, *keys = section.split(".")
    for key in reversed(keys):
        options = {key: options if key != "model" or "name" in options else {"name": "logistic", **options}}
    return {**values, first: {**values[first], **options} if keys else options}


@pytest.mark.parametrize(("section", "name", "kind"), SECTIONS, ids=[f"{s}-{n}" for s, n, _ in SECTIONS])
def test_a_wrong_value_is_refused_in_one_line_that_begins_with_its_key(section: str, name: str, kind: type) -> None:
    tried = 0
    needed = REQUIRED.get(name, {}) if section != "clock.delay" else {}
    for field in fields(kind):
        if not field.init or field.name == "name":
            continue
        for value in wrong_values(hints(kind)[field.name]):
            with pytest.raises(ConfigError) as error:
                read.load(job(section, {**needed, **({"name": name} if name else {}), field.name: value}))
            line = str(error.value)
            assert line.startswith(f"{section}.{field.name}") and "\n" not in line, (value, line)
            tried += 1
    assert tried or not [f for f in fields(kind) if f.init and f.name != "name"]
