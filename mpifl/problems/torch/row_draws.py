"""Rows of a user's data set that may draw when it is asked for a row, as for augmentation: each row has a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from mpifl.problems.generators import restored_generators, seed_generators


def read_all(dataset: Any) -> tuple[list[Any], bool]:
    """All rows of a data set, and whether it draws from one of these generators; restores them."""
    with restored_generators():
        before = _states()
        rows = [dataset[k] for k in range(len(dataset))]
        return rows, _states() != before


def read_seeded(dataset: Any, numbers: Iterable[int], seeds: Iterable[int]) -> list[Any]:
    """Rows of a data set, each read with these generators at a seed of its own; restores them."""
    rows = []
    with restored_generators():
        for k, seed in zip(numbers, seeds, strict=True):
            seed_generators(seed)
            rows.append(dataset[k])
    return rows


def _states() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), name, np.asarray(keys).tobytes(), rest, random.getstate()
