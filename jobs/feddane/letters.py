"""A stand-in for the FEMNIST of FedProx's code: its recipe, applied to EMNIST letters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from mpifl.config.types import NonNegativeInt, PositiveInt
from mpifl.problems.data.images import EmnistLetters
from mpifl.problems.problem import Rows
from mpifl.rng import stream

LETTERS = 10  # a to j
MOST = 4000  # rows of a letter


@dataclass(frozen=True)
class Letters(EmnistLetters):
    """The letters a to j of EMNIST on devices with consecutive letters and sizes LogNormal(4, 1) + 5, 90 % to train on.

    FedProx's FEMNIST has lower-case letters of NIST's writers; EMNIST letters has both cases. Rows of a letter are
    dealt without replacement, at most 4,000 of each.
    """

    default_clients: ClassVar[int | None] = 200
    natural: ClassVar[bool] = True
    letters: PositiveInt = 5
    """letters of a device: 5 in the FedProx paper, 3 in its code"""
    seed: NonNegativeInt = 0
    """seed of the devices; the run's own seed does not change it"""

    def counts(self, clients: int) -> None:
        return None

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        rows, devices = super().read(root, download, clients), clients or self.default_clients or 1
        generator = stream(self.seed, "data")
        left = [generator.permutation(np.flatnonzero(rows.y == c))[:MOST].tolist() for c in range(LETTERS)]
        sizes = generator.lognormal(4, 1, devices).astype(int) + 5
        parts = []
        for k, size in enumerate(sizes):
            own = [(k + j) % LETTERS for j in range(self.letters)]
            wanted = [len(part) for part in np.array_split(np.arange(size), self.letters)]
            taken = [
                left[c].pop() for c, count in zip(own, wanted, strict=True) for _ in range(min(count, len(left[c])))
            ]
            parts.append(generator.permutation(np.array(taken, np.int64)))
        cuts = [-(-9 * len(part) // 10) for part in parts]
        train = np.concatenate([part[:cut] for part, cut in zip(parts, cuts, strict=True)])
        test = np.concatenate([part[cut:] for part, cut in zip(parts, cuts, strict=True)])
        owner = np.repeat(np.arange(devices), cuts)
        owner_test = np.repeat(np.arange(devices), [len(part) - cut for part, cut in zip(parts, cuts, strict=True)])
        return Rows(
            rows.x[train], rows.y[train], rows.x[test], rows.y[test], LETTERS, divisor=rows.divisor, owner=owner,
            owner_test=owner_test, shape=rows.shape,
        )  # fmt: skip
