"""Draws of a user's code from the generators of the process: they belong to a seed, and the generators are restored.

A data set that draws when it is asked for a row, as for augmentation, has a seed for each row.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restores torch's, NumPy's and Python's generators of this process."""
    before = np.random.get_state(), random.getstate()
    with torch.random.fork_rng([]):
        try:
            yield
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seeds these generators; restores them afterwards."""
    with restored_generators():
        _seed(seed)
        yield


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


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
            _seed(seed)
            rows.append(dataset[k])
    return rows


def _states() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), name, np.asarray(keys).tobytes(), rest, random.getstate()
