"""Data sets by name. A rank that hosts clients imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpifl.problems import NamedClasses

if TYPE_CHECKING:
    from mpifl.problems.problem import Data

    DATA: dict[str, type[Data]]

_CLASSES = {  # name in a job -> module, and class in it
    "digits": ("digits", "Digits"),
    "mnist": ("images", "Mnist"),
    "fashion-mnist": ("images", "FashionMnist"),
    "emnist-letters": ("images", "EmnistLetters"),
    "cifar10": ("cifar", "Cifar10"),
    "cifar100": ("cifar", "Cifar100"),
    "femnist": ("femnist", "Femnist"),
    "shakespeare": ("shakespeare", "Shakespeare"),
    "leaf-shakespeare": ("leaf_text", "LeafShakespeare"),
    "sent140": ("leaf_text", "Sent140"),
    "synthetic": ("synthetic", "Synthetic"),
    "synthetic-iid": ("synthetic", "SyntheticIid"),
    "fedpd-synthetic": ("fedpd_synthetic", "FedPDSynthetic"),
    "leaf": ("leaf", "Leaf"),
    "folder": ("folder", "Folder"),
    "none": ("no_data", "NoData"),
}
_named = NamedClasses(__name__, "DATA", _CLASSES)
names, find, name_of, __getattr__ = _named.names, _named.find, _named.name_of, _named.attribute
