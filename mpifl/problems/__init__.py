"""What is minimised: data sets, partitions and models, which make n clients' objectives on flat vectors.

The base classes are here. The other names are imported on first use: a rank that hosts clients loads one model, and no
data set or partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class LazyClasses(Mapping[str, type[Any]]):
    """Classes of a package by their names in a job. Each is imported on first use, and its module alone."""

    def __init__(self, package: str, classes: Mapping[str, tuple[str, str]]) -> None:
        """classes: by name in a job, the module of the package, and the class in it."""
        self._package, self._classes = package, classes

    def __getitem__(self, name: str) -> type[Any]:
        module, cls = self._classes[name]
        found: type[Any] = getattr(import_module(f"{self._package}.{module}"), cls)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def name_of(self, cls: type) -> str | None:
        """The name of a class of the package; None for another one."""
        for name, (module, own) in self._classes.items():
            if (cls.__module__, cls.__qualname__) == (f"{self._package}.{module}", own):
                return name
        return None

    def attribute(self, name: str) -> type[Any]:
        """The `__getattr__` of the package: one of the classes."""
        for key, (_, cls) in self._classes.items():
            if cls == name:
                return self[key]
        raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
