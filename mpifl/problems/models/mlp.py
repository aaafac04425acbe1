"""A network with one hidden ReLU layer: f_i = mean of -log softmax(max(x W1 + b1, 0) W2 + b2)[y] + nu/2 (||W1||^2 +
||W2||^2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifl.config.types import Size
from mpifl.problems.inits import Uniform
from mpifl.problems.problem import Data, Init, Layout, Partition, Problem
from mpifl.problems.rows import (
    ClassObjective,
    RowModel,
    RowProblem,
    cross_entropy,
    softmax_residual,
    take_rows,
)
from mpifl.problems.settings import ProblemSettings

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Mlp(RowModel):
    """One hidden ReLU layer, then softmax; the flat vector is W1 (features, hidden), b1, W2 (hidden, classes), b2."""

    init: Init = Uniform(half_width=1.0)
    """Law of the initial entries times the root of the inputs to their layer, biases included: `uniform` with
    half_width 1 is PyTorch's default, `normal` with std 1.414 He's."""
    name: str = "mlp"
    hidden: Size = 32
    """Units of the hidden layer."""

    def layout(self, features: int, classes: int) -> Layout:
        m = self.hidden
        return [("W1", (features, m)), ("b1", (m,)), ("W2", (m, classes)), ("b2", (classes,))]

    def losses(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray, layout: Layout) -> tuple[np.ndarray, int]:
        return cross_entropy(self.scores(x, rows, layout), y)

    def scores(self, x: np.ndarray, rows: np.ndarray, layout: Layout) -> np.ndarray:
        return _forward(_parts(x, layout), rows)[1]

    def regulariser(self, x: np.ndarray, l2: float, layout: Layout) -> float:
        w1, _, w2, _ = _parts(x.astype(np.float64), layout)
        return l2 / 2 * float((w1**2).sum() + (w2**2).sum())

    def problem(self, data: Data, partition: Partition, settings: ProblemSettings) -> Problem:
        return MlpProblem(data, partition, settings, self)

    def objective(self, *arguments: Any) -> MlpObjective:
        return MlpObjective(self, *arguments)


class MlpProblem(RowProblem):
    """Rows of data, and an initial model scaled layer by layer."""

    def initial(self, seed: int) -> np.ndarray:
        x = super().initial(seed)
        w1, b1, w2, b2 = _parts(x, self.layout)
        for weights, biases in ((w1, b1), (w2, b2)):
            weights /= len(weights) ** 0.5
            biases /= len(weights) ** 0.5
        return x


def _parts(x: np.ndarray, layout: Layout) -> Parts:
    """W1, b1, W2, b2 as views of the flat vector x."""
    (_, (features, hidden)), _, (_, (_, classes)), _ = layout
    a = features * hidden
    b = a + hidden
    c = b + hidden * classes
    return x[:a].reshape(features, hidden), x[a:b], x[b:c].reshape(hidden, classes), x[c:]


def _forward(parts: Parts, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, hidden) activations and (rows, classes) scores"""
    w1, b1, w2, b2 = parts
    active = rows.dot(w1)
    active += b1
    np.maximum(active, 0, out=active)
    scores = active.dot(w2)
    scores += b2
    return active, scores


class MlpObjective(ClassObjective):
    """One client's network."""

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        """(d,) backpropagated mean over the rows, + nu times the weights"""
        batch, hot = take_rows(self.x, rows), self.one_hot(rows)
        parts = w1, _, w2, _ = _parts(x, self.layout)
        active, residual, back = self._backward(parts, batch, hot)
        scale = 1 / len(batch)
        residual *= scale
        back *= scale
        result = np.empty_like(x)
        g1, c1, g2, c2 = _parts(result, self.layout)
        batch.T.dot(back, g1)
        np.add.reduce(back, 0, out=c1)
        active.T.dot(residual, g2)
        np.add.reduce(residual, 0, out=c2)
        if self.l2:
            g1 += self.l2 * w1
            g2 += self.l2 * w2
        return result

    def _backward(self, parts: Parts, batch: np.ndarray, hot: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Activations (rows, hidden); each row's loss differentiated by its scores (rows, classes) and by x W1 + b1."""
        active, scores = _forward(parts, batch)
        residual = softmax_residual(scores, hot)
        back = residual.dot(parts[2].T)
        np.putmask(back, active == 0, 0)
        return active, residual, back

    def fisher(self, x: np.ndarray) -> np.ndarray:
        """(d,) mean over the rows of each row's squared gradient, entry by entry, without the regulariser"""
        active, residual, back = (
            part**2 for part in self._backward(_parts(x, self.layout), self.x, self.one_hot(None))
        )
        parts = [(self.x**2).T @ back, back.sum(0), active.T @ residual, residual.sum(0)]
        return np.concatenate([part.ravel() for part in parts]) / self.x.dtype.type(self.samples)
