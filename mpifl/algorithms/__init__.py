"""The algorithms, one file each, and what an algorithm of your own is made of.

    from mpifl.algorithms import Clients, LocalTraining, Message, Objective, State, Trigger, Update, Vector

`Algorithm` is the interface; `LocalTraining` adds a local solver with its options. The algorithm `async-fedavg` is the
one Algorithm that async_fedavg.py defines; a job names a class of your own as "package.module:Class". `ALIASES` are
names of methods that are another one with some options set.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from mpifl.algorithms.base import Algorithm, Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining
from mpifl.algorithms.participation import CohortSampler, Reply, Trigger
from mpifl.objective import Objective, Vector, clone

__all__ = [
    "ALIASES",
    "Algorithm",
    "Alias",
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

SHARED = {"base", "participation", "common"}  # modules of this package that define no algorithm


class Alias(NamedTuple):
    """A name under which a method is known that is another one with some options set."""

    name: str  # name of the algorithm
    options: Mapping[str, Any]  # options of the algorithm, as a job has them
    summary: str

    def __str__(self) -> str:
        """The job's keys that it stands for: "name: fedavg, optimizer: adam"."""
        values = {k: v["name"] if isinstance(v, Mapping) else v for k, v in self.options.items()}
        text = {k: str(v).lower() if isinstance(v, bool) else v for k, v in values.items()}
        return ", ".join(f"{key}: {value}" for key, value in {"name": self.name, **text}.items())


ALIASES = {
    "ca2fl": Alias("fedbuff", {"calibrate": True}, "FedBuff with a table of the clients' last updates"),
    "fadas": Alias("fedbuff", {"optimizer": {"name": "amsgrad"}}, "FedBuff with the server optimiser AMSGrad"),
    "fedadagrad": Alias("fedavg", {"optimizer": {"name": "adagrad"}}, "FedAvg with the server optimiser Adagrad"),
    "fedadmm-wang": Alias(
        "feddr", {"alpha": 1.0, "init": "x0"}, "FedADMM of Wang et al.: FedDR with alpha = 1, whose eta is 1/rho"
    ),
    "fedadam": Alias("fedavg", {"optimizer": {"name": "adam"}}, "FedAvg with the server optimiser Adam"),
    "fedavgm": Alias("fedavg", {"optimizer": {"name": "momentum"}}, "FedAvg with momentum on the server"),
    "favano": Alias("favas", {}, "FAVANO, the same method as FAVAS"),
    "ia2sgd": Alias("ace", {}, "IA2SGD, the same rule as ACE"),
    "rescaled-asgd": Alias(
        "async-sgd", {"rescale": "rates"}, "Asynchronous SGD with steps in proportion to the clients' contact times"
    ),
    "ringmaster": Alias("async-sgd", {"step_rule": "ringmaster"}, "Ringmaster ASGD: discards what is too late"),
    "scaffnew": Alias("proxskip", {}, "Scaffnew, ProxSkip of federated learning"),
    "fedyogi": Alias("fedavg", {"optimizer": {"name": "yogi"}}, "FedAvg with the server optimiser Yogi"),
}


@functools.cache
def _modules() -> tuple[str, ...]:
    import pkgutil

    return tuple(module.name for module in pkgutil.iter_modules(__path__))


def names() -> list[str]:
    """The names of all algorithms of the package, sorted."""
    return sorted(name.replace("_", "-") for name in _modules() if name not in SHARED)


def find(name: str) -> type[Algorithm]:
    """The class of one of `names()`; imports that one module alone."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    (found,) = (v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__
                and issubclass(v, Algorithm))  # fmt: skip
    return found


def name_of(cls: type) -> str | None:
    """The name of an algorithm's class; None where it is not of this package."""
    package, _, module = cls.__module__.rpartition(".")
    return module.replace("_", "-") if package == __name__ else None
