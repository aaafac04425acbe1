"""Data sets by name. A rank that hosts clients imports none of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpifl.problems.base import Data

    DATA: dict[str, type[Data]]

_CLASSES = {  # by name in a job: the module, and the class in it
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
    "fedpd-synthetic": ("fedpd", "FedPDSynthetic"),
    "leaf": ("leaf", "Leaf"),
    "folder": ("folder", "Folder"),
    "none": ("no_data", "NoData"),
}
_MODULES = {cls: module for module, cls in _CLASSES.values()}


def __getattr__(name: str) -> Any:
    """Imports a class on first use, and all of them for `DATA`: the class of each name."""
    if name == "DATA":
        return {key: __getattr__(cls) for key, (_, cls) in _CLASSES.items()}
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
