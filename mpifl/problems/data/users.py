"""Selects the users that become clients, for data that come by user."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mpifl.errors import ConfigError
from mpifl.rng import stream


def select_users(
    field: str, wanted: int | None, eligible: np.ndarray, seed: int, source: Path, which: str
) -> np.ndarray:
    """Draws `wanted` of the users that are `eligible` (users,) bool; returns their indices in order. None: all of them.

    `field` is the option with their number, `which` describes the eligible users. Raises ConfigError if `source` has
    too few.
    """
    indices = np.flatnonzero(eligible)
    if not len(indices):
        raise ConfigError("data file", source, f"it has no {which}", "at least one of them")
    if wanted is None:
        return indices
    if wanted > len(indices):
        raise ConfigError(
            f"problem.data.{field}", wanted, f"{source} has {len(indices)} {which}", f"at most {len(indices)}"
        )
    return np.sort(stream(seed, field).choice(indices, wanted, replace=False))
