"""What is minimised: data sets, partitions and models, which make n clients' objectives on flat vectors.

The base classes are here. The other names are imported on first use: a rank that hosts clients loads one model, and no
data set or partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from mpifl.problems.problem import ComputeResources as ComputeResources
from mpifl.problems.problem import Data as Data
from mpifl.problems.problem import HostedClients as HostedClients
from mpifl.problems.problem import Init as Init
from mpifl.problems.problem import Model as Model
from mpifl.problems.problem import Partition as Partition
from mpifl.problems.problem import Problem as Problem
from mpifl.problems.problem import Rows as Rows
from mpifl.problems.problem import Shard as Shard

MODULES = {  # name -> the module that it is imported from on first use
    "Contact": "own_training",
    "DATA": "data",
    "INITS": "inits",
    "MODELS": "models",
    "PARTITIONS": "partitions",
    "ProblemConfig": "problem_section",
    "ProblemSettings": "settings",
    "Torch": "settings",
    "check_optimizer": "loading",
    "host": "loading",
    "load": "loading",
    "objective": "loading",
    "process_group": "torch.process_group",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)


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
