"""Multinomial logistic regression: f_i(w) = mean of -log softmax(x W + b)[y] + nu/2 ||W||^2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifl.problems.problem import Layout
from mpifl.problems.rows import ClassObjective, RowModel, cross_entropy, softmax_residual, take_rows


@dataclass(frozen=True)
class Logistic(RowModel):
    """Multinomial logistic regression; the flat vector is W (features, classes) row by row, then b (classes,)."""

    name: str = "logistic"
    bias: bool = False
    """Whether there is a bias b; it is not regularised."""

    def layout(self, features: int, classes: int) -> Layout:
        return [("W", (features, classes)), *([("b", (classes,))] if self.bias else [])]

    def losses(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray, layout: Layout) -> tuple[np.ndarray, int]:
        return cross_entropy(_scores(x, rows, *layout[0][1]), y)

    def scores(self, x: np.ndarray, rows: np.ndarray, layout: Layout) -> np.ndarray:
        return _scores(x, rows, *layout[0][1])

    def regulariser(self, x: np.ndarray, l2: float, layout: Layout) -> float:
        weights = x[: int(np.prod(layout[0][1]))].astype(np.float64)
        return l2 / 2 * float(weights @ weights)

    def objective(self, *arguments: Any) -> LogisticObjective:
        return LogisticObjective(self, *arguments)


def _scores(x: np.ndarray, rows: np.ndarray, features: int, classes: int) -> np.ndarray:
    """(rows, classes) rows @ W + b"""
    size = features * classes
    scores = rows.dot(x[:size].reshape(features, classes))
    if len(x) > size:
        scores += x[size:]
    return scores


class LogisticObjective(ClassObjective):
    """One client's multinomial logistic regression."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.shape: tuple[int, int] = tuple(self._meta["layout"][0][1])  # shape of W
        self.size = self.shape[0] * self.shape[1]  # entries of W

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        """(d,) x_rows' (softmax - one_hot) / b + nu W"""
        batch, hot = take_rows(self.x, rows), self.one_hot(rows)
        residual = softmax_residual(_scores(x, batch, *self.shape), hot)
        residual *= 1 / len(batch)
        result, size = np.empty_like(x), self.size
        batch.T.dot(residual, result[:size].reshape(self.shape))
        if len(x) > size:
            np.add.reduce(residual, 0, out=result[size:])
        if self.l2:
            result[:size] += self.l2 * x[:size]
        return result

    def fisher(self, x: np.ndarray) -> np.ndarray:
        """(d,) mean over the rows of (x_row' (softmax - one_hot))^2, entry by entry"""
        square = softmax_residual(_scores(x, self.x, *self.shape), self.one_hot(None)) ** 2
        parts = [(self.x**2).T @ square, *([square.sum(0)] if len(x) > self.size else [])]
        return np.concatenate([part.ravel() for part in parts]) / self.x.dtype.type(self.samples)
