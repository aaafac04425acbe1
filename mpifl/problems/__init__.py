"""What is minimised: data sets, partitions and models, which make n clients' objectives on flat vectors."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpifl.errors import ConfigError
from mpifl.problems.base import Data, Hosted, Init, Model, Partition, Place, Problem, Rows, Shard
from mpifl.problems.data import DATA
from mpifl.problems.inits import INITS
from mpifl.problems.models import MODELS
from mpifl.problems.partitions import PARTITIONS
from mpifl.problems.settings import ProblemConfig

if TYPE_CHECKING:
    from mpifl.objective import Objective

__all__ = [
    "DATA",
    "INITS",
    "MODELS",
    "PARTITIONS",
    "Data",
    "Hosted",
    "Init",
    "Model",
    "Partition",
    "Place",
    "Problem",
    "ProblemConfig",
    "Rows",
    "host",
    "load",
    "objective",
]


def load(config: ProblemConfig) -> Problem:
    """Reads the data and deals it to the clients; rank 0 or one process. Raises ConfigError."""
    if config.torch is not None:
        try:
            import mpifl.problems.torch  # noqa: F401 - before torch: it sets what torch reads when it starts

            for name in ("torch", "greenlet"):
                import_module(name)
        except ImportError as error:
            key, value = ("entry", config.entry) if config.entry else ("model", getattr(config.model, "name", ""))
            text = f"torch and greenlet installed, as by pip install 'mpifl[torch]' ({error})"
            raise ConfigError(f"problem.{key}", value, text) from error
    if config.entry is not None:
        from mpifl.problems.torch.entry import EntryProblem

        return EntryProblem(config)
    return config.model.problem(config)


def host(config: ProblemConfig, meta: dict[str, Any], shards: Mapping[int, Shard], seed: int, place: Place) -> Hosted:
    """The clients of one rank, from their shards and `Problem.meta`; any rank. Raises ConfigError."""
    if config.entry is not None:
        from mpifl.problems.torch.entry import host_entry

        return host_entry(config, meta, list(shards), seed, place)
    return config.model.host(config, meta, shards, seed, place)


def objective(config: ProblemConfig, meta: dict[str, Any], shard: Shard, i: int, seed: int) -> Objective:
    """Client i's objective alone, from its shard and `Problem.meta`. Raises ConfigError."""
    return host(config, meta, {i: shard}, seed, Place()).objectives[i]
