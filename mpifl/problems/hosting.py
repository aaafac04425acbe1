"""The clients of a rank, from their data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpifl.problems.problem import ComputeResources, HostedClients, Model, Shard
from mpifl.problems.settings import ProblemSettings


def host(
    model: Model,
    settings: ProblemSettings,
    meta: dict[str, Any],
    shards: Mapping[int, Shard],
    seed: int,
    resources: ComputeResources,
) -> HostedClients:
    """The clients of one rank, from their shards and `Problem.meta`; on any rank. Raises ConfigError."""
    if settings.entry is not None:
        from mpifl.problems.torch.entry import host_entry

        return host_entry(settings, meta, list(shards), seed, resources)
    return model.host(settings, meta, shards, seed, resources)
