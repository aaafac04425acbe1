"""What is minimised: data sets, partitions and models, which make n clients' objectives on flat vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.problems.base import Data, Init, Model, Partition, Problem, Rows
from mpifl.problems.config import ProblemConfig
from mpifl.problems.data import DATA
from mpifl.problems.inits import INITS
from mpifl.problems.models import MODELS
from mpifl.problems.partitions import PARTITIONS

if TYPE_CHECKING:
    from mpifl.algorithms.base import Objective

__all__ = [
    "DATA",
    "INITS",
    "MODELS",
    "PARTITIONS",
    "Data",
    "Init",
    "Model",
    "Partition",
    "Problem",
    "ProblemConfig",
    "Rows",
    "load",
    "objective",
]


def load(config: ProblemConfig) -> Problem:
    """Reads the data and deals it to the clients; rank 0 or one process. Raises ConfigError."""
    return config.model.problem(config)


def objective(config: ProblemConfig, meta: dict[str, Any], shard: Sequence[np.ndarray], i: int, seed: int) -> Objective:
    """Client i's objective from its shard and `Problem.meta`; any rank."""
    return config.model.objective(config, meta, shard, i, seed)
