"""Linear regression by least squares: f_i(w, b) = mean of (x'w + b - y)^2 / 2 + nu/2 ||w||^2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mpifl.problems.problem import Layout
from mpifl.problems.rows import RowModel, RowObjective, take_rows


@dataclass(frozen=True)
class Linear(RowModel):
    """Linear regression by least squares, for numeric targets, which have no accuracy. The flat vector is w
    (features,), then b."""

    classifies: ClassVar[bool] = False
    name: str = "linear"
    bias: bool = False
    """Whether there is a bias b; it is not regularised."""

    def layout(self, features: int, classes: int) -> Layout:
        return [("w", (features,)), *([("b", ())] if self.bias else [])]

    def targets(self, y: np.ndarray, classes: int) -> np.ndarray:
        return y.astype(np.float64)

    def losses(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray, layout: Layout) -> tuple[np.ndarray, int]:
        return np.square(residuals(x, rows, y)) / 2, 0

    def regulariser(self, x: np.ndarray, l2: float, layout: Layout) -> float:
        weights = x[: layout[0][1][0]].astype(np.float64)
        return l2 / 2 * float(weights @ weights)

    def objective(self, *arguments: Any) -> LinearObjective:
        return LinearObjective(self, *arguments)


def residuals(x: np.ndarray, rows: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(rows,) x_row'w + b - y"""
    features = rows.shape[1]
    result: np.ndarray = rows.dot(x[:features])
    if len(x) > features:
        result += x[features]
    result -= y
    return result


class LinearObjective(RowObjective):
    """One client's least squares."""

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        """(d,) mean of (x_row'w + b - y) (x_row, 1), plus nu w"""
        batch, y = take_rows(self.x, rows), take_rows(self.y, rows)
        residual, features = residuals(x, batch, y), batch.shape[1]
        residual *= 1 / len(batch)
        result = np.empty_like(x)
        batch.T.dot(residual, result[:features])
        result[features:] = residual.sum()
        if self.l2:
            result[:features] += self.l2 * x[:features]
        return result

    def fisher(self, x: np.ndarray) -> np.ndarray:
        """(d,) mean over the rows of ((x_row'w + b - y) (x_row, 1))^2, entry by entry"""
        square = np.square(residuals(x, self.x, self.y))
        parts = [square @ self.x**2, *([square.sum(keepdims=True)] if len(x) > self.x.shape[1] else [])]
        return np.concatenate(parts) / self.x.dtype.type(self.samples)
