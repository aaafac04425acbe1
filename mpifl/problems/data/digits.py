"""The 1,797 handwritten digits (8 x 8 pixels, 0..16) that come with scikit-learn: no download, no file."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from mpifl.problems.problem import Data, RowCounts, Rows
from mpifl.rng import stream

TRAIN = 1497


@dataclass(frozen=True)
class Digits(Data):
    """scikit-learn's digits: 64 features pixel/16, 10 classes, 1,497 rows to train on and 300 to test on."""

    default_clients: ClassVar[int | None] = 32
    name: str = "digits"

    def counts(self, clients: int) -> RowCounts:
        return RowCounts(TRAIN, 300, 64, 10, raw=64)

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        sklearn = find_spec("sklearn")  # only the file is needed: importing scikit-learn takes two seconds
        assert sklearn and sklearn.submodule_search_locations  # mpifl depends on it
        file = Path(sklearn.submodule_search_locations[0], "datasets/data/digits.csv.gz")
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
        table = table[stream(0, "digits").permutation(len(table))]  # one fixed split, whatever the seed of the run
        x, y = table[:, :-1].astype(np.uint8), table[:, -1]
        return Rows(x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:], classes=10, divisor=16, shape=(1, 8, 8))
