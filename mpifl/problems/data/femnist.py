"""FEMNIST as LEAF writes it: 62 handwritten digits and letters by writer, 28 x 28 grey pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.problems.data.folder import Part
from mpifl.problems.data.leaf import LeafUsers, gather_users, labels, located_halves, read_halves
from mpifl.problems.problem import Rows

SIDE = 28  # pixels
CLASSES = 62  # digits, upper case, lower case


@dataclass(frozen=True)
class Femnist(LeafUsers):
    """LEAF's FEMNIST (arXiv 1812.01097): 62 classes, 784 features from 0 (ink) to 1 (paper); a client is a writer.

    Writers that are left out have no test rows either.
    """

    name: str = "femnist"
    path: str = "femnist"
    """Folder with train/*.json and test/*.json: an existing path, else relative to the data root."""

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        folder = located_halves(self.path, root)
        train, test = read_halves(folder, images)
        users = list(train)
        chosen = [users[k] for k in self.select(np.array([len(y) for _, y in train.values()]), folder)]
        left_out = train.keys() - set(chosen)
        kept = {user: part for user, part in test.items() if user not in left_out}
        rows = gather_users({user: train[user] for user in chosen}, kept, folder)
        return replace(rows, classes=CLASSES, shape=(1, SIDE, SIDE))


def images(x: Any, y: Any) -> Part:
    """Images (rows, 784), float32 as there may be 800,000 of them, and labels (rows,)."""
    rows = np.array(x, np.float32)
    if rows.shape[1:] != (SIDE * SIDE,) or not (rows.min() >= 0 and rows.max() <= 1):
        raise ValueError(f"x has no images of {SIDE * SIDE} numbers between 0 and 1")
    return rows, labels(y, len(rows), CLASSES)
