"""The classes that a section of a job may name: built-in ones by their name, a user's own as "package.module:Class"."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from mpifl import algorithms, problems
from mpifl.algorithms.base import Algorithm
from mpifl.algorithms.participation import Trigger
from mpifl.config.own_classes import check_class
from mpifl.errors import ConfigError
from mpifl.scheduling.delays import DELAYS, Delay


@dataclass(frozen=True)
class Family:
    """The classes that one kind of section may name: subclasses of `base`; where that is None, built-in ones alone."""

    base: type | None
    names: Callable[[], list[str]]  # of the built-in classes
    load: Callable[[str], type]  # the built-in class of a name
    builtin_name: Callable[[type], str | None]  # its inverse; None for a user's own class
    default: type | None = None  # where a section has no name

    def find(self, name: str) -> type:
        """The class of a name. Raises ConfigError("name", ...)."""
        if ":" in name and self.base:
            return import_class(name, self.base)
        names = self.names()
        if name in names:
            return self.load(name)
        near = difflib.get_close_matches(name, names, 1)
        known = f"one of {', '.join(names)}" if names else "a class of your own, as package.module:Class"
        raise ConfigError("name", name, f"did you mean {near[0]}?" if near else known)

    def name_of(self, cls: type) -> str | None:
        """The name that `find` takes for a class; None for the default class, which needs none."""
        if cls is self.default:
            return None
        return self.builtin_name(cls) or f"{cls.__module__}:{cls.__qualname__}"


def import_class(name: str, base: type) -> type:
    """The class "package.module:Class", a subclass of `base`. Raises ConfigError("name", ...)."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # whatever a user's module raises when it is imported
        reason = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise ConfigError("name", name, f"an importable package.module:Class ({reason})") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError("name", name, f"a subclass of {base.__module__}.{base.__qualname__}")
    check_class(found, base)
    return found


def table(base: type | None, classes: Mapping[str, type], default: type | None = None) -> Family:
    """A family of built-in classes by name."""
    names = {cls: name for name, cls in classes.items()}
    return Family(base, lambda: list(classes), classes.__getitem__, names.get, default)


FAMILIES: dict[str, Family] = {  # by the key of the section
    "algorithm": Family(Algorithm, algorithms.names, algorithms.find, algorithms.name_of),
    "trigger": table(Trigger, {}, default=Trigger),
    "data": table(problems.Data, problems.DATA),
    "partition": table(problems.Partition, problems.PARTITIONS),
    "model": table(problems.Model, problems.MODELS),
    "init": table(problems.Init, problems.INITS),
    "delay": table(Delay, DELAYS),
}
