"""Data sets by name. A rank that hosts clients imports none of them."""

from __future__ import annotations

from mpifl.problems import LazyClasses

# Name in a job -> module, and class in it.
DATA = LazyClasses(
    __name__,
    {
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
    },
)
__getattr__ = DATA.attribute
