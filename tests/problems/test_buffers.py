"""Buffers of a user's module: they keep their type and values, and only running statistics change."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from mpifl import problems
from mpifl.errors import ConfigError
from mpifl.problems import ComputeResources, ProblemConfig

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

HERE = __name__


class Rotation(nn.Module):
    """Multiplies pairs of a row, as complex numbers, by w and by a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.register_buffer("turn", torch.tensor([1j, 0.6 + 0.8j]))

    def forward(self, x: Any) -> Any:
        return torch.view_as_real(torch.view_as_complex(x.view(-1, 2, 2)) * self.w * self.turn).flatten(1)


class Third(nn.Module):
    """Adds 1/3, in float64, and counts in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.register_buffer("third", torch.tensor(1 / 3, dtype=torch.float64))
        self.register_buffer("two", torch.tensor(2))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x: Any) -> Any:
        return (x * self.w).double() * self.mask + self.third * self.two


def entry(module: str) -> Any:
    x = {"Rotation": torch.tensor([[1.0, 0, 1, 0], [0, 1, 2, 0]]), "Third": torch.ones(2, 2)}[module]
    data = TensorDataset(x, torch.zeros_like(x))
    return {"Rotation": Rotation, "Third": Third}[module](), mse_loss, [data], data


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        ("Rotation", (1 + 1 + 1 + 4) / 8),  # a turn keeps squares: |i|^2 = |0.6 + 0.8 i|^2 = 1
        ("Third", ((1 + 2 / 3) ** 2 + (2 / 3) ** 2) / 2),
    ],
)
def test_buffers_keep_their_type(module: str, loss: float) -> None:
    config = ProblemConfig(entry=f"{HERE}:entry", options={"module": module})
    problem = problems.load(config)
    x = problem.initial(0)
    hosted = problems.host(config.model, config.settings, problem.meta, {0: []}, 0, ComputeResources()).objectives[0]
    tolerance = 1e-7 if module == "Rotation" else 1e-15  # of float32 and float64
    for found in (problem.evaluate(x)["test_loss"], hosted.loss(x)):
        assert found == pytest.approx(loss, rel=tolerance)
    assert x.dtype == np.float32


def statistics() -> Any:
    module = nn.Sequential(nn.BatchNorm1d(2, affine=False).double(), nn.Linear(2, 1))
    return module, mse_loss, [TensorDataset(torch.ones(2, 2), torch.zeros(2, 1))]


def test_running_statistics_of_another_type_are_refused() -> None:
    says = "problem.dtype=float32: the module's buffer 0.running_mean is float64; expected float64"
    with pytest.raises(ConfigError, match=re.escape(says)):
        problems.load(ProblemConfig(entry=f"{HERE}:statistics"))
