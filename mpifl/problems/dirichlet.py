"""The Dirichlet split: for every class a share of each client from Dir(alpha), redrawn until all clients have enough.

A split where all of many clients have enough rows is rare (about 1 in 10,000 for alpha = 0.1, 128 clients, 60,000 rows
and at least 32 each), so many candidates are drawn at once, a few clients at a time, and a candidate is dropped as
soon as one client has too few. That does not change the law: the shares of some clients among themselves are again
Dirichlet, and independent of their total, which is a beta variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mpifl.config.types import Bounds, NonNegativeInt, PositiveInt
from mpifl.errors import ConfigError
from mpifl.problems.problem import Partition
from mpifl.rng import stream

CANDIDATES = 256  # candidates drawn at once
CLIENTS_PER_DRAW = 16  # clients drawn at once
BUDGET = 2e8  # candidates x classes x clients before giving up: some seconds


@dataclass(frozen=True)
class Dirichlet(Partition):
    """For every class each client's share is drawn from Dir(alpha); all is redrawn until everyone has enough rows."""

    name: str = "dirichlet"
    alpha: Annotated[float, Bounds(at_least=0.01)] = 0.1
    """Concentration: the smaller, the fewer classes a client holds; of at least 0.01."""
    seed: NonNegativeInt = 0
    """Seed of the split; the run's own seed does not change it."""
    min_samples: PositiveInt | None = None
    """Least rows of a client; null: the batch size, or 1 where there is none."""

    def owners(self, y: np.ndarray, classes: int, clients: int, batch: int) -> np.ndarray:
        sizes = np.bincount(y, minlength=classes)
        least = self.min_samples or batch
        if least * clients > len(y):
            wrong = f"there are {len(y)} rows for {clients} clients"
            raise ConfigError("problem.partition.min_samples", least, wrong, f"at most {len(y) // clients}")
        counts = self._counts(sizes, clients, least)
        generator = stream(self.seed, "partition", round=1)  # a separate stream: the number of redraws does not matter
        owner = np.empty(len(y), np.int64)
        for label, held in enumerate(counts):
            rows = generator.permutation(np.flatnonzero(y == label))
            owner[rows] = np.repeat(np.arange(clients), held)
        return owner

    def _counts(self, sizes: np.ndarray, clients: int, least: int) -> np.ndarray:
        """(classes, clients) rows of the first candidate that leaves every client at least `least`."""
        generator = stream(self.seed, "partition")
        draws = max(CANDIDATES, int(BUDGET / (len(sizes) * clients)))
        for _ in range(0, draws, CANDIDATES):
            counts = candidates(generator, self.alpha, sizes, clients, least)
            if len(counts):
                return counts[0]
        wrong = f"none of {draws} splits gave each client as many"
        remedy = "choose a smaller number, a larger alpha or fewer clients"
        raise ConfigError("problem.partition.min_samples", least, wrong, remedy=remedy)


def candidates(generator: np.random.Generator, alpha: float, sizes: np.ndarray, clients: int, least: int) -> np.ndarray:
    """(accepted, classes, clients) row counts of the candidates that leave every client at least `least`."""
    classes = len(sizes)
    counts = np.empty((CANDIDATES, classes, 0), np.int64)
    mass = np.ones((CANDIDATES, classes, 1))  # the share left for the remaining clients
    for first in range(0, clients, CLIENTS_PER_DRAW):
        size, rest = min(CLIENTS_PER_DRAW, clients - first), max(clients - first - CLIENTS_PER_DRAW, 0)
        shape = (len(mass), classes)
        taken = generator.beta(alpha * size, alpha * rest, (*shape, 1)) if rest else np.ones((*shape, 1))
        shares = generator.standard_gamma(alpha, (*shape, size))
        with np.errstate(invalid="ignore"):
            shares /= shares.sum(2, keepdims=True)
        shares[np.isnan(shares)] = 0  # all underflowed, as may be at the least alpha: dropped as too few
        shares *= mass * taken
        new = (shares * sizes[:, None]).astype(np.int64)
        mass = mass * (1 - taken)
        if not rest:  # the remainders of the floors go to the last client
            new[:, :, -1] += sizes - counts.sum(2) - new.sum(2)
        keep = (new.sum(1) >= least).all(1)
        counts, mass = np.concatenate([counts[keep], new[keep]], 2), mass[keep]
        if not len(counts):
            return np.empty((0, classes, clients), np.int64)
    return counts
