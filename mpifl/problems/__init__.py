"""What is minimised: data sets, partitions and models, which make n clients' objectives on flat vectors.

Names are imported on first use: a rank that hosts clients loads one model, and no data set or partition.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpifl.problems.base import (
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
    from mpifl.problems.config import ProblemConfig
    from mpifl.problems.data import DATA
    from mpifl.problems.hosting import host
    from mpifl.problems.inits import INITS
    from mpifl.problems.loading import check_optimizer, load, objective
    from mpifl.problems.models import MODELS
    from mpifl.problems.partitions import PARTITIONS
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
    "ProblemConfig": "config",
    "ProblemSettings": "settings",
    "Torch": "settings",
    "check_optimizer": "loading",
    "host": "hosting",
    "load": "loading",
    "objective": "loading",
}  # the others are of `base`


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'base')}"), name)
