"""What is minimised: data sets, partitions and models, which make n clients' objectives on flat vectors.

Names are imported on first use: a rank that hosts clients loads one model, and no data set or partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpifl.problems.data import DATA
    from mpifl.problems.hosting import host
    from mpifl.problems.inits import INITS
    from mpifl.problems.loading import check_optimizer, load, objective
    from mpifl.problems.models import MODELS
    from mpifl.problems.partitions import PARTITIONS
    from mpifl.problems.problem import (
        ComputeResources,
        Data,
        HostedClients,
        Init,
        Model,
        Partition,
        Problem,
        Rows,
        Shard,
    )
    from mpifl.problems.problem_section import ProblemConfig
    from mpifl.problems.settings import ProblemSettings, Torch

__all__ = [
    "DATA",
    "INITS",
    "MODELS",
    "PARTITIONS",
    "ComputeResources",
    "Data",
    "HostedClients",
    "Init",
    "Model",
    "Partition",
    "Problem",
    "ProblemConfig",
    "ProblemSettings",
    "Rows",
    "Shard",
    "Torch",
    "check_optimizer",
    "host",
    "load",
    "objective",
]

_MODULES = {
    "DATA": "data",
    "INITS": "inits",
    "MODELS": "models",
    "PARTITIONS": "partitions",
    "ProblemConfig": "problem_section",
    "ProblemSettings": "settings",
    "Torch": "settings",
    "check_optimizer": "loading",
    "host": "hosting",
    "load": "loading",
    "objective": "loading",
}  # the other names are in `problem`


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'problem')}"), name)


class NamedClasses:
    """Classes of a package by their names in a job. Each is imported on first use, and its module alone."""

    def __init__(self, package: str, table: str, classes: Mapping[str, tuple[str, str]]) -> None:
        """
        package  the package whose modules define them
        table    attribute of the package that is a dict of all of them by name
        classes  by name in a job: the module, and the class in it
        """
        self._package, self._table, self._classes = package, table, classes

    def names(self) -> list[str]:
        """The names that a job can give."""
        return list(self._classes)

    def find(self, name: str) -> type[Any]:
        """The class of one of `names()`."""
        module, cls = self._classes[name]
        found: type[Any] = getattr(import_module(f"{self._package}.{module}"), cls)
        return found

    def name_of(self, cls: type) -> str | None:
        """The name of a class of the package; None for another one."""
        for name, (module, own) in self._classes.items():
            if (cls.__module__, cls.__qualname__) == (f"{self._package}.{module}", own):
                return name
        return None

    def attribute(self, name: str) -> Any:
        """The `__getattr__` of the package: a class, or the table of all of them."""
        if name == self._table:
            return {key: self.find(key) for key in self._classes}
        for key, (_, cls) in self._classes.items():
            if cls == name:
                return self.find(key)
        raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
