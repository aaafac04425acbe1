"""The generators of the process, from which a user's code draws: Python's, NumPy's, and torch's if it is imported.

What such code draws belongs to a seed, and the generators are restored afterwards.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from mpifl.rng import stream

IMPORT_SEED = 67280421310721  # the seed that torch's generator has when torch has just been imported


def torch_seed(seed: int) -> int:
    """The seed of torch's generator where a module of a run with this seed is made or tried."""
    return int(stream(seed, "init").integers(2**63))


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restores the generators of this process."""
    torch = sys.modules.get("torch")
    before = np.random.get_state(), random.getstate(), torch and torch.get_rng_state()
    try:
        yield
    finally:
        np.random.set_state(before[0])
        random.setstate(before[1])
        if torch:
            torch.set_rng_state(before[2])


@contextmanager
def seeded_generators(seed: int, torch_seed: int | None = None) -> Iterator[None]:
    """Seeds the generators, torch's of all devices, with `torch_seed` if it is given; restores those of the CPU."""
    with restored_generators():
        seed_generators(seed)
        if torch := sys.modules.get("torch"):
            torch.manual_seed(seed if torch_seed is None else torch_seed)
        yield


def seed_generators(seed: int) -> None:
    """Seeds the generators of this process, torch's of the CPU alone."""
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
