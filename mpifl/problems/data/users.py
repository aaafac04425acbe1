"""Which users of data that come by user become clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mpifl.errors import ConfigError
from mpifl.rng import stream


def drawn(field: str, wanted: int | None, ready: np.ndarray, seed: int, source: Path, which: str) -> np.ndarray:
    """The places of `wanted` of the users that are `ready` (users,) bool, at random, in their order; null: of all.

    `field` is the option that says how many, `which` says who is ready. ConfigError where `source` has too few.
    """
    places = np.flatnonzero(ready)
    if not len(places):
        raise ConfigError("data file", source, f"{which}: it has none")
    if wanted is None:
        return places
    if wanted > len(places):
        raise ConfigError(f"problem.data.{field}", wanted, f"at most {len(places)}, the {which} in {source}")
    return np.sort(stream(seed, field).choice(places, wanted, replace=False))
