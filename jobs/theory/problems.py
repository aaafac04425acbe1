"""Problems for statements that diagonal quadratics cannot test, and metrics of the entries of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mpifl.problems import Data, Partition, Problem, Rows
from mpifl.problems.data.no_data import NoData
from mpifl.problems.models.quadratic import Quadratic, QuadraticObjective, QuadraticProblem
from mpifl.problems.settings import ProblemSettings


def reached(labels: np.ndarray, entries: np.ndarray) -> int:
    """The number of the model's entries that are not zero."""
    return int(np.count_nonzero(entries))


def length(labels: np.ndarray, entries: np.ndarray) -> float:
    """The model's Euclidean norm."""
    return float(np.linalg.norm(entries))


@dataclass(frozen=True)
class Coordinates(Data):
    """No data set; metrics are computed from the entries of the model in place of rows."""

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        raise NotImplementedError("the problem is made without data")


class EntriesProblem(QuadraticProblem):
    """The problem of `Entries`."""

    def __init__(self, settings: ProblemSettings, model: Entries) -> None:
        super().__init__(settings, model)
        self._c = self._c * model.spread

    def test_scores(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(x), np.int64), np.array(x, np.float64)[:, None]


@dataclass(frozen=True)
class Entries(Quadratic):
    """Quadratics, with metrics computed from the entries of the model, and optima multiplied by a factor."""

    problem_class: ClassVar[type[EntriesProblem]] = EntriesProblem
    objective_class: ClassVar[type[QuadraticObjective]] = QuadraticObjective
    spread: float = 1.0
    """factor on the optima: the clients' heterogeneity G is proportional to it"""

    def data(self) -> Data:
        return Coordinates()

    def check(self, data: Data, settings: ProblemSettings) -> None:
        super().check(NoData(), settings)

    def problem(self, data: Data, partition: Partition, settings: ProblemSettings) -> Problem:
        return self.problem_class(settings, self)

    def objective(
        self, settings: ProblemSettings, meta: dict[str, Any], shard: Sequence[np.ndarray], i: int, seed: int
    ) -> QuadraticObjective:
        return self.objective_class(self.sigma, meta["clients"], shard, i, seed)


class Separable(EntriesProblem):
    """f(x) = (1/n) sum_i sum_j phi(x_j - c_ij); `train_loss` is f - f*."""

    def __init__(self, settings: ProblemSettings, model: Entries) -> None:
        super().__init__(settings, model)
        grid = np.linspace(self._c.min(), self._c.max(), 10_001)
        places = np.concatenate([grid, self._c.ravel()])[:, None]  # the optimum of |t| is one of the c_ij
        self.best = sum(float(self.phi(places - column).mean(1).min()) for column in self._c.T)

    @staticmethod
    def phi(t: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    @staticmethod
    def slope(t: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def evaluate(self, x: np.ndarray, training: bool = True) -> dict[str, float]:
        loss = float(self.phi(x - self._c).sum(1).mean()) - self.best
        return {"train_loss": loss, "test_loss": float("nan"), "test_accuracy": float("nan")}

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.slope(x - self._c).mean(0))


class SeparableObjective(QuadraticObjective):
    """A client's sum_j phi(x_j - c_ij), with the noise of `sigma`."""

    kind: type[Separable]

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        result = self.kind.slope(x - self.c)
        return result + rows if isinstance(rows, np.ndarray) else result

    def loss(self, x: np.ndarray, rows: Any = None) -> float:
        return float(self.kind.phi(x - self.c).sum())


class AbsoluteProblem(Separable):
    """phi(t) = |t|: convex, with subgradients of at most sqrt(d)."""

    phi = staticmethod(np.abs)
    slope = staticmethod(np.sign)


class AbsoluteObjective(SeparableObjective):
    """A client's ||x - c_i||_1."""

    kind = AbsoluteProblem


@dataclass(frozen=True)
class Absolute(Entries):
    """f_i(x) = ||x - c_i||_1."""

    problem_class, objective_class = AbsoluteProblem, AbsoluteObjective


class WavesProblem(Separable):
    """phi(t) = t^2/(1 + t^2): non-convex, with a curvature between -1/2 and 2."""

    @staticmethod
    def phi(t: np.ndarray) -> np.ndarray:
        return t**2 / (1 + t**2)

    @staticmethod
    def slope(t: np.ndarray) -> np.ndarray:
        return 2 * t / (1 + t**2) ** 2


class WavesObjective(SeparableObjective):
    """A client's sum_j phi(x_j - c_ij) with the phi of `WavesProblem`."""

    kind = WavesProblem


@dataclass(frozen=True)
class Waves(Entries):
    """f_i(x) = sum_j (x_j - c_ij)^2/(1 + (x_j - c_ij)^2), with L = 2."""

    problem_class, objective_class = WavesProblem, WavesObjective


def links(i: int, d: int) -> np.ndarray:
    """(d, d) the matrix of client i's links of the chain (x_1 - 1)^2 + sum_j (x_j - x_{j+1})^2: every second one."""
    matrix = np.zeros((d, d))
    if i == 0:
        matrix[0, 0] = 1.0
    for j in range(1 - i, d - 1, 2):
        matrix[j : j + 2, j : j + 2] += [[1.0, -1.0], [-1.0, 1.0]]
    return matrix


class ChainProblem(EntriesProblem):
    """The chain, whose optimum is 1 in every coordinate."""

    def evaluate(self, x: np.ndarray, training: bool = True) -> dict[str, float]:
        loss = float((x[0] - 1) ** 2 + (np.diff(x) ** 2).sum()) / 4
        return {"train_loss": loss, "test_loss": float("nan"), "test_accuracy": float("nan")}

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return np.asarray((links(0, self.d) + links(1, self.d)) @ (x - 1) / 2)


class ChainObjective(QuadraticObjective):
    """A client's half of the chain."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.matrix = links(self.i, len(self.c))

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        result: np.ndarray = self.matrix @ x  # not of x - 1, which would lose entries below the rounding error of 1
        if self.i == 0:
            result[0] -= 1
        return result

    def loss(self, x: np.ndarray, rows: Any = None) -> float:
        return float((x - 1) @ self.matrix @ (x - 1)) / 2


@dataclass(frozen=True)
class Chain(Entries):
    """A chain of `dim` coordinates split over two clients: f_0 + f_1 = 1/2 ((x_1 - 1)^2 + sum_j (x_j - x_{j+1})^2)."""

    problem_class, objective_class = ChainProblem, ChainObjective
