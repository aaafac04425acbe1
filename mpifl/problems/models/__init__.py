"""Models by name."""

from __future__ import annotations

from mpifl.problems.base import Model
from mpifl.problems.models.logistic import Logistic
from mpifl.problems.models.mlp import Mlp
from mpifl.problems.models.networks import CharLstm, Cnn, Lstm, Resnet, TorchLogistic, TorchMlp, Vgg11
from mpifl.problems.models.nonconvex import NonconvexLogistic
from mpifl.problems.models.quadratic import Quadratic

MODELS: dict[str, type[Model]] = {
    "logistic": Logistic,
    "mlp": Mlp,
    "nonconvex-logistic": NonconvexLogistic,
    "quadratic": Quadratic,
    "torch-logistic": TorchLogistic,
    "torch-mlp": TorchMlp,
    "cnn": Cnn,
    "char-lstm": CharLstm,
    "lstm": Lstm,
    "resnet": Resnet,
    "vgg11": Vgg11,
}
