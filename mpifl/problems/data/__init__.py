"""Data sets by name."""

from __future__ import annotations

from mpifl.problems.base import Data
from mpifl.problems.data.digits import Digits
from mpifl.problems.data.fedpd import FedPDSynthetic
from mpifl.problems.data.folder import Folder
from mpifl.problems.data.images import EmnistLetters, FashionMnist, Mnist
from mpifl.problems.data.leaf import Leaf
from mpifl.problems.data.nothing import Nothing
from mpifl.problems.data.synthetic import Synthetic, SyntheticIid

DATA: dict[str, type[Data]] = {
    "digits": Digits,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "emnist-letters": EmnistLetters,
    "synthetic": Synthetic,
    "synthetic-iid": SyntheticIid,
    "fedpd-synthetic": FedPDSynthetic,
    "leaf": Leaf,
    "folder": Folder,
    "none": Nothing,
}
