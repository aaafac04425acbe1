"""Data sets by name. A rank that hosts clients imports none of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

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


def names() -> list[str]:
    """The names that a job can give."""
    return list(_CLASSES)


def find(name: str) -> type[Data]:
    """The class of one of `names()`; imports its module alone."""
    module, cls = _CLASSES[name]
    return cast("type[Data]", getattr(import_module(f"{__name__}.{module}"), cls))


def name_of(cls: type) -> str | None:
    """The name of a class of this package; None for another one."""
    for name, (module, own) in _CLASSES.items():
        if (cls.__module__, cls.__qualname__) == (f"{__name__}.{module}", own):
            return name
    return None


def __getattr__(name: str) -> Any:
    """Imports a class on first use, and all of them for `DATA`: the class of each name."""
    if name == "DATA":
        return {key: find(key) for key in _CLASSES}
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
