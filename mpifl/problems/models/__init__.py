"""Models by name. A rank that hosts clients imports its own alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpifl.problems import NamedClasses

if TYPE_CHECKING:
    from mpifl.problems.problem import Model

    MODELS: dict[str, type[Model]]

_CLASSES = {  # name in a job -> module, and class in it
    "logistic": ("logistic", "Logistic"),
    "linear": ("linear", "Linear"),
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
_named = NamedClasses(__name__, "MODELS", _CLASSES)
names, find, name_of, __getattr__ = _named.names, _named.find, _named.name_of, _named.attribute
