"""The part of a job that a rank with clients needs, as JSON-able values that name classes.

Such a rank builds an equal algorithm and model from the values alone. It needs no schema, and imports the modules of
these classes, not those of all that a job could name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mpifl.config.own_classes import import_object
from mpifl.errors import ConfigError

if TYPE_CHECKING:
    from mpifl.algorithms.base import Algorithm
    from mpifl.config.job import Job
    from mpifl.problems import Model, ProblemSettings


@dataclasses.dataclass(frozen=True)
class ClientJob:
    """What a rank needs to host clients; the fields are explained in `Job`."""

    algorithm: Algorithm
    model: Model
    settings: ProblemSettings
    seed: int
    output: str
    norm: float | None  # `faults.norm`
    patience: float | None  # `faults.patience`
    grace: float  # `faults.grace`
    states_limit: float | None  # `memory.client_states`
    states_folder: str  # folder of the file with the states beyond that limit

    @classmethod
    def of(cls, job: Job) -> ClientJob:
        """The part of a job that a client rank needs."""
        faults = job.faults
        return cls(
            job.algorithm, job.problem.model, job.problem.settings, job.seed, job.output,
            faults.norm, faults.patience, faults.grace, job.memory.client_states, job.states_folder,
        )  # fmt: skip

    def to_values(self) -> dict[str, Any]:
        """JSON-able values, of which `from_values` makes an equal job."""
        return {field.name: _to_values(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> ClientJob:
        """Inverse of `to_values`. Raises ConfigError for a class that cannot be imported or built on this rank."""
        keys = {"model": "problem.model", "settings": "problem"}
        return cls(**{name: _from_values(value, keys.get(name, name)) for name, value in values.items()})


def _to_values(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        cls = type(value)
        given = {f.name: _to_values(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"class": f"{cls.__module__}:{cls.__qualname__}", "fields": given}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [_to_values(each) for each in value]}
    return {"dict": value} if isinstance(value, dict) else value


def _from_values(value: Any, key: str) -> Any:
    if not isinstance(value, dict):
        return value
    if "class" not in value:
        ((kind, items),) = value.items()
        if kind == "dict":
            return items
        found = [_from_values(each, f"{key}[{k}]") for k, each in enumerate(items)]
        return tuple(found) if kind == "tuple" else found
    cls = import_object(f"{key}.name", value["class"], "Class")
    given = {name: _from_values(each, f"{key}.{name}") for name, each in value["fields"].items()}
    try:
        return cls(**given)
    except ConfigError as error:
        raise error.under(key) from None
