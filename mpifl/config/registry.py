"""The classes that a section of a job may name: built-in ones by their name, a user's own as "package.module:Class"."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mpifl import algorithms, problems
from mpifl.algorithms.base import Algorithm
from mpifl.algorithms.participation import Trigger
from mpifl.config.own_classes import check_class
from mpifl.errors import ConfigError
from mpifl.problems.data import DATA
from mpifl.problems.inits import INITS
from mpifl.problems.models import MODELS
from mpifl.problems.partitions import PARTITIONS
from mpifl.scheduling.availability import AVAILABILITIES, Availability
from mpifl.scheduling.delays import DELAYS, Delay
from mpifl.user_code import import_object


@dataclass(frozen=True)
class Family:
    """The classes that one kind of section may name: subclasses of `base`; where that is None, built-in ones alone."""

    base: type | None
    names: Callable[[], list[str]]  # returns the names of the built-in classes
    load: Callable[[str], type]  # returns the built-in class of a name
    builtin_name: Callable[[type], str | None]  # the inverse of `load`; None for a user's own class
    default: type | None = None  # the class of a section without a name
    aliases: Mapping[str, algorithms.Alias] = field(default_factory=dict)

    def find(self, name: str) -> type:
        """The class of a name, or of an alias. Raises ConfigError("name", ...)."""
        if ":" in name and self.base:
            return import_class(name, self.base)
        names = self.names()
        if name in self.aliases:
            return self.load(self.aliases[name].name)
        if name in names:
            return self.load(name)
        near = difflib.get_close_matches(name, [*names, *self.aliases], 1)
        choices = [f"one of {', '.join(names)}"] if names else []
        choices += ["a class of your own, as package.module:Class"] if self.base or not names else []
        if near:
            raise ConfigError("name", name, "no such name", remedy=f"did you mean {near[0]}?")
        raise ConfigError("name", name, "no such name", ", or ".join(choices))

    def expand(self, section: Mapping[str, Any]) -> Mapping[str, Any]:
        """The section with the class' own name and the options of an alias. Raises ConfigError where it contradicts."""
        name = section.get("name")
        if not isinstance(name, str) or name not in self.aliases:
            return section
        alias = self.aliases[name]
        return {**_merge(section, alias.options, f"{name} stands for {alias}"), "name": alias.name}

    def name_of(self, cls: type) -> str | None:
        """The name that `find` takes for a class; None for the default class, which needs none."""
        if cls is self.default:
            return None
        return self.builtin_name(cls) or f"{cls.__module__}:{cls.__qualname__}"


def _merge(given: Mapping[str, Any], fixed: Mapping[str, Any], why: str, path: str = "") -> dict[str, Any]:
    """The section `given` with the options `fixed`. Raises ConfigError where it gives one of them another value."""
    merged = dict(given)
    for key, value in fixed.items():
        own, key_path = given.get(key, value), f"{path}{key}"
        if isinstance(value, Mapping):
            section = {"name": own} if isinstance(own, str) else own
            if not isinstance(section, Mapping):
                raise ConfigError(key_path, own, why, value["name"])
            merged[key] = _merge(section, value, why, f"{key_path}.")
        elif own != value:
            raise ConfigError(key_path, own, why, str(value))
        else:
            merged[key] = value
    return merged


def import_class(name: str, base: type) -> type:
    """The class "package.module:Class", a subclass of `base`. Raises ConfigError("name", ...)."""
    found = import_object("name", name, "Class")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError("name", name, "another class", f"a subclass of {base.__module__}.{base.__qualname__}")
    check_class(found, base)
    return found


def table(base: type | None, classes: Mapping[str, type], default: type | None = None) -> Family:
    """A family of built-in classes by name."""
    names = {cls: name for name, cls in classes.items()}
    return Family(base, lambda: list(classes), classes.__getitem__, names.get, default)


FAMILIES: dict[str, Family] = {  # families by the key of the section
    "algorithm": Family(Algorithm, algorithms.names, algorithms.find, algorithms.name_of, aliases=algorithms.ALIASES),
    "trigger": table(Trigger, {}, default=Trigger),
    "data": Family(problems.Data, lambda: list(DATA), DATA.__getitem__, DATA.name_of),
    "partition": table(problems.Partition, PARTITIONS),
    "model": Family(problems.Model, lambda: list(MODELS), MODELS.__getitem__, MODELS.name_of),
    "init": table(problems.Init, INITS),
    "delay": table(Delay, DELAYS),
    "availability": table(Availability, AVAILABILITIES),
}
