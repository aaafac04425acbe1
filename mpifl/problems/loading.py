"""The problem of a job, from its data, and the clients of a rank, from their parts of the data."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from mpifl.errors import ConfigError
from mpifl.objective import Objective, OptimizerSettings
from mpifl.problems.micro_batches import Group, by_micro_batches
from mpifl.problems.problem import ComputeResources, HostedClients, Model, Problem, Shard
from mpifl.problems.problem_section import ProblemConfig
from mpifl.problems.settings import ProblemSettings
from mpifl.problems.torch import set_environment


def load(config: ProblemConfig) -> Problem:
    """Reads the data and partitions it over the clients; on rank 0 or in one process. Raises ConfigError."""
    problem = _load(config)
    if config.validation_split is not None and not problem.validation_rows:
        most = int(problem.samples.max())
        wrong = f"no client has a row to hold out: the largest has {most:,} rows"
        expected = "null, or a larger fraction"
        if config.validation_split * most >= 1:
            wrong, expected = f"a {type(problem).__qualname__} holds no rows out", "null"
        raise ConfigError("problem.validation_split", config.validation_split, wrong, expected)
    return problem


def _load(config: ProblemConfig) -> Problem:
    if config.entry is not None or config.torch is not None:
        set_environment()
    if config.entry is not None:
        from mpifl.problems.entry_function import DATA_SEED, call, trains_itself

        made = call(config.settings, DATA_SEED)
        if trains_itself(made):
            from mpifl.problems.own_training import OwnTraining

            return OwnTraining(config.settings, made)
    if config.torch is not None:
        _import_torch(config)
    if config.entry is not None:
        from mpifl.problems.torch.entry import EntryProblem

        return EntryProblem(config.settings, made)
    assert config.data is not None and config.partition is not None
    return config.model.problem(config.data, config.partition, config.settings)


def _import_torch(config: ProblemConfig) -> None:
    """Raises ConfigError where torch is not installed."""
    try:
        for name in ("torch", "greenlet"):
            import_module(name)
    except ImportError as error:
        key, value = ("entry", config.entry) if config.entry else ("model", getattr(config.model, "name", ""))
        wrong, remedy = f"it needs torch and greenlet: {error}", "pip install 'mpifl[torch]'"
        raise ConfigError(f"problem.{key}", value, wrong, remedy=remedy) from error


def check_optimizer(config: ProblemConfig, optimizer: OptimizerSettings) -> None:
    """Imports torch; raises ConfigError for an optimiser or a schedule that it does not have, and for their options."""
    _import_torch(config)
    from mpifl.problems.torch.optimizers import check_names

    check_names(optimizer)


def host(
    model: Model,
    settings: ProblemSettings,
    meta: dict[str, Any],
    shards: Mapping[int, Shard],
    seed: int,
    resources: ComputeResources,
    group: Group | None = None,
    patience: float | None = None,
) -> HostedClients:
    """The clients of one rank, from their shards and `Problem.meta`; on any rank. Raises ConfigError.

    group: the ranks that compute these clients together; None: this one alone.
    patience: s that a contact which is tried may take; None: any time.
    """
    if settings.entry is not None or settings.torch is not None:
        set_environment()
    if meta.get("own_training"):
        from mpifl.problems.own_training import host_own

        hosted = host_own(settings, meta, list(shards), seed, resources, group is None, patience)
        if group is None:
            return hosted
        from mpifl.problems.group_training import by_groups

        return by_groups(hosted, group, meta)
    if settings.entry is not None:
        from mpifl.problems.torch.entry import host_entry

        hosted = host_entry(settings, meta, list(shards), seed, resources)
    else:
        hosted = model.host(settings, meta, shards, seed, resources)
    return by_micro_batches(hosted, settings.micro_batches, group) if settings.micro_batches > 1 else hosted


def objective(config: ProblemConfig, meta: dict[str, Any], shard: Shard, i: int, seed: int) -> Objective:
    """Client i's objective alone, from its shard and `Problem.meta`. Raises ConfigError."""
    return host(config.model, config.settings, meta, {i: shard}, seed, ComputeResources()).objectives[i]
