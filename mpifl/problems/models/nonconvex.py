"""Binary logistic regression with a non-convex penalty (FedPD, Zhang, Hong, Dhople, Yin, Liu, arXiv 2005.11418):
f_i(w) = mean of log(1 + exp(-b a'w)) + sum_j lam al w_j^2 / (1 + al w_j^2), b = +-1. The penalty's curvature is between
-lam al / 2 and 2 lam al."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifl.config.types import NonNegativeFloat
from mpifl.errors import ConfigError
from mpifl.problems.inits import Zero
from mpifl.problems.problem import Data, Init, Layout
from mpifl.problems.rows import RowModel, RowObjective, take_rows


@dataclass(frozen=True)
class NonconvexLogistic(RowModel):
    """Binary logistic regression with the penalty lam al w^2 / (1 + al w^2) on every entry; for two classes."""

    init: Init = Zero()
    """Law of the initial model's entries."""
    name: str = "nonconvex-logistic"
    lam: NonNegativeFloat = 0.1
    """Weight of the penalty (lambda)."""
    al: NonNegativeFloat = 1.0
    """Sharpness of the penalty (alpha)."""

    def data(self) -> Data:
        from mpifl.problems.data.fedpd_synthetic import FedPDSynthetic

        return FedPDSynthetic()

    def layout(self, features: int, classes: int) -> Layout:
        return [("w", (features,))]

    def targets(self, y: np.ndarray, classes: int) -> np.ndarray:
        if classes > 2:
            raise ConfigError(
                "problem.model.name", self.name, f"it is for two classes, and there are {classes}", "another model"
            )
        return np.where(y > 0, 1, -1)

    def losses(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray, layout: Layout) -> tuple[np.ndarray, int]:
        margins = (rows @ x) * y.astype(x.dtype)
        return np.logaddexp(0, -margins), int((margins > 0).sum())

    def scores(self, x: np.ndarray, rows: np.ndarray, layout: Layout) -> np.ndarray:
        margins = rows @ x  # scores of class 1; those of class 0 are 0
        return np.stack([np.zeros_like(margins), margins], 1)

    def labels(self, targets: np.ndarray) -> np.ndarray:
        return (targets > 0).astype(np.int64)

    def regulariser(self, x: np.ndarray, l2: float, layout: Layout) -> float:
        square = np.square(x, dtype=np.float64)
        return float((self.lam * self.al * square / (1 + self.al * square) + l2 / 2 * square).sum())

    def slope(self, x: np.ndarray) -> np.ndarray:
        """(d,) the penalty's derivative 2 lam al w / (1 + al w^2)^2"""
        return 2 * self.lam * self.al * x / np.square(1 + self.al * np.square(x))

    def objective(self, *arguments: Any) -> NonconvexObjective:
        return NonconvexObjective(self, *arguments)


def _slopes(x: np.ndarray, rows: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(rows,) -2 b / (1 + exp(b a'w))"""
    weights: np.ndarray = np.tanh((rows @ x) * b / 2)  # 1/(1 + exp(m)) = (1 - tanh(m/2)) / 2 does not overflow
    weights -= 1
    weights *= b
    return weights


class NonconvexObjective(RowObjective):
    """One client's penalised logistic regression."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.b = self.y.astype(self.x.dtype)  # +-1

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        """(d,) mean of -b a / (1 + exp(b a'w)), plus the penalty's slope and nu w"""
        batch, b = take_rows(self.x, rows), take_rows(self.b, rows)
        result = _slopes(x, batch, b) @ batch
        result *= 0.5 / len(batch)
        result += self.model.slope(x)
        if self.l2:
            result += self.l2 * x
        return result

    def fisher(self, x: np.ndarray) -> np.ndarray:
        """(d,) mean over the rows of (b a / (1 + exp(b a'w)))^2, entry by entry"""
        squares: np.ndarray = (_slopes(x, self.x, self.b) ** 2) @ self.x**2
        return squares * squares.dtype.type(0.25 / self.samples)
