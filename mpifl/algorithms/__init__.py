"""One file an algorithm, found by its name: `async-fedavg` is the Algorithm that async_fedavg.py defines."""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from mpifl.algorithms.base import Algorithm
from mpifl.errors import ConfigError

SHARED = {"base", "common"}  # what algorithms are made of


def names() -> list[str]:
    """The names of all algorithms."""
    return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__) if m.name not in SHARED)


def find(name: str) -> type[Algorithm]:
    """The class of an algorithm: one of `names()`, or a user's own as "package.module:Class".

    Imports that one module alone. Raises ConfigError.
    """
    if ":" in name:
        return _entry(name)
    if name not in names():
        near = difflib.get_close_matches(str(name), names(), 1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(names())}"
        raise ConfigError("name", name, hint)
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    (found,) = (v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__
                and issubclass(v, Algorithm))  # fmt: skip
    return found


def _entry(name: str) -> type[Algorithm]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError("name", name, f"an importable package.module:Class ({error})") from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError("name", name, "a subclass of mpifl.algorithms.base.Algorithm")
    return found
