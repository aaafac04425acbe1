"""Models by name. A rank that hosts clients imports its own alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from mpifl.problems.base import Model

    MODELS: dict[str, type[Model]]

_CLASSES = {  # by name in a job: the module, and the class in it
    "logistic": ("logistic", "Logistic"),
    "mlp": ("mlp", "Mlp"),
    "nonconvex-logistic": ("nonconvex", "NonconvexLogistic"),
    "quadratic": ("quadratic", "Quadratic"),
    "torch-logistic": ("networks", "TorchLogistic"),
    "torch-mlp": ("networks", "TorchMlp"),
    "cnn": ("networks", "Cnn"),
    "char-lstm": ("networks", "CharLstm"),
    "lstm": ("networks", "Lstm"),
    "resnet": ("networks", "Resnet"),
    "vgg11": ("networks", "Vgg11"),
}
_MODULES = {cls: module for module, cls in _CLASSES.values()}


def names() -> list[str]:
    """The names that a job can give."""
    return list(_CLASSES)


def find(name: str) -> type[Model]:
    """The class of one of `names()`; imports its module alone."""
    module, cls = _CLASSES[name]
    return cast("type[Model]", getattr(import_module(f"{__name__}.{module}"), cls))


def name_of(cls: type) -> str | None:
    """The name of a class of this package; None for another one."""
    for name, (module, own) in _CLASSES.items():
        if (cls.__module__, cls.__qualname__) == (f"{__name__}.{module}", own):
            return name
    return None


def __getattr__(name: str) -> Any:
    """Imports a class on first use, and all of them for `MODELS`: the class of each name."""
    if name == "MODELS":
        return {key: find(key) for key in _CLASSES}
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
