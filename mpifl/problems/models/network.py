"""Base of the models that are torch modules. torch is imported when a module is built, not earlier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.problems.problem import (
    Data,
    HostedClients,
    Init,
    Layout,
    Partition,
    Problem,
    ProblemSize,
)
from mpifl.problems.rows import RowModel
from mpifl.problems.settings import ProblemSettings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Network(RowModel):
    """A torch module on rows, with cross entropy; l2 is on weights, not on biases and the parameters of norms."""

    init: Init | None = None  # type: ignore[assignment]
    """Law of the initial entries of all parameters; null: the module's own initial values."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> torch.nn.Module:
        """The module; scores of shape (rows, classes).

        shape: of a row: (features,) or (channels, height, width); of text (window,), with a vocabulary above 0. Raises
        ConfigError where such rows do not fit.
        """
        raise NotImplementedError

    def layout(self, features: int, classes: int) -> Layout:
        raise NotImplementedError  # the module has the layout

    def size(self, data: Data, settings: ProblemSettings) -> ProblemSize | None:
        return None  # the module tells, once the data are loaded

    def losses(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray, layout: Layout) -> tuple[np.ndarray, int]:
        raise NotImplementedError  # `TorchProblem` measures

    def regulariser(self, x: np.ndarray, l2: float, layout: Layout) -> float:
        """l2/2 ||w||^2 over the parts with two axes or more."""
        total, at = 0.0, 0
        for _, shape in layout:
            part = x[at : (at := at + int(np.prod(shape)))]
            if len(shape) > 1:
                total += float(np.sum(part.astype(np.float64) ** 2))
        return l2 / 2 * total

    def problem(self, data: Data, partition: Partition, settings: ProblemSettings) -> Problem:
        from mpifl.problems.torch.module_problem import TorchProblem

        return TorchProblem(data, partition, settings, self)

    def host(self, *arguments: Any) -> HostedClients:
        from mpifl.problems.torch.module_problem import host_rows

        return host_rows(self, *arguments)
