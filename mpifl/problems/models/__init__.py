"""Models by name. A rank that hosts clients imports its own alone."""

from __future__ import annotations

from mpifl.problems import LazyClasses

# Name in a job -> module, and class in it.
MODELS = LazyClasses(
    __name__,
    {
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
    },
)
__getattr__ = MODELS.attribute
