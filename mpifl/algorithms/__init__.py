"""The algorithms, one file each, and what an algorithm of your own is made of.

    from mpifl.algorithms import Clients, LocalTraining, Message, Objective, State, Trigger, Update, Vector

`Algorithm` is the interface; `LocalTraining` adds a local solver with its options. The algorithm `async-fedavg` is the
one Algorithm that async_fedavg.py defines; a job names a class of your own as "package.module:Class".
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from mpifl.algorithms.base import Algorithm, Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining
from mpifl.algorithms.participation import CohortSampler, Reply, Trigger
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector, clone

__all__ = [
    "Algorithm",
    "Clients",
    "CohortSampler",
    "LocalTraining",
    "Message",
    "Objective",
    "Reply",
    "State",
    "Trigger",
    "Update",
    "Vector",
    "clone",
    "find",
    "names",
]

SHARED = {"base", "participation", "common"}  # modules of this package that are no algorithms


def names() -> list[str]:
    """The names of all algorithms of the package, sorted."""
    return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__) if m.name not in SHARED)


def find(name: str) -> type[Algorithm]:
    """The class of an algorithm: one of `names()`, or a user's own as "package.module:Class".

    Imports the module of that algorithm only. Raises ConfigError if there is no such algorithm or class.
    """
    if ":" in name:
        return _import_class(name)
    if name not in names():
        near = difflib.get_close_matches(str(name), names(), 1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(names())}"
        raise ConfigError("name", name, hint)
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    (found,) = (v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__
                and issubclass(v, Algorithm))  # fmt: skip
    return found


def _import_class(name: str) -> type[Algorithm]:
    """The class "package.module:Class"."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError("name", name, f"an importable package.module:Class ({error})") from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError("name", name, "a subclass of mpifl.algorithms.Algorithm")
    return found
