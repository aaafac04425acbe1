"""Data sets by name."""

from __future__ import annotations

from mpifl.problems.base import Data
from mpifl.problems.data.cifar import Cifar10, Cifar100
from mpifl.problems.data.digits import Digits
from mpifl.problems.data.fedpd import FedPDSynthetic
from mpifl.problems.data.femnist import Femnist
from mpifl.problems.data.folder import Folder
from mpifl.problems.data.images import EmnistLetters, FashionMnist, Mnist
from mpifl.problems.data.leaf import Leaf
from mpifl.problems.data.leaf_text import LeafShakespeare, Sent140
from mpifl.problems.data.no_data import NoData
from mpifl.problems.data.shakespeare import Shakespeare
from mpifl.problems.data.synthetic import Synthetic, SyntheticIid

DATA: dict[str, type[Data]] = {
    "digits": Digits,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "emnist-letters": EmnistLetters,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "femnist": Femnist,
    "shakespeare": Shakespeare,
    "leaf-shakespeare": LeafShakespeare,
    "sent140": Sent140,
    "synthetic": Synthetic,
    "synthetic-iid": SyntheticIid,
    "fedpd-synthetic": FedPDSynthetic,
    "leaf": Leaf,
    "folder": Folder,
    "none": NoData,
}
