"""Regularisers g of composite objectives f + g, closed and convex, each with its value and its proximal map

prox(v, eta) = argmin_x g(x) + ||x - v||^2 / (2 eta),    a new array of v's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from mpifl.config.types import Config, NonNegativeFloat
from mpifl.errors import ConfigError
from mpifl.objective import Vector


@dataclass(frozen=True)
class NoRegulariser(Config):
    """g = 0; prox: v."""

    name: str = "none"

    def prox(self, v: Vector, eta: float) -> Vector:
        return v.copy()

    def value(self, x: Vector) -> float:
        return 0.0


@dataclass(frozen=True)
class SingleWeight(Config):
    """Base of the regularisers with one weight."""

    tau: NonNegativeFloat = 0.01
    """weight tau"""


@dataclass(frozen=True)
class L1(SingleWeight):
    """g = tau ||x||_1; prox: soft(v, eta tau) = sign(v) max(|v| - eta tau, 0)."""

    name: str = "l1"

    def prox(self, v: Vector, eta: float) -> Vector:
        return v - v.clip(-eta * self.tau, eta * self.tau)

    def value(self, x: Vector) -> float:
        return self.tau * norm1(x)


@dataclass(frozen=True)
class L2(SingleWeight):
    """g = tau ||x||, the norm itself; prox: v max(0, 1 - eta tau / ||v||)."""

    name: str = "l2"

    def prox(self, v: Vector, eta: float) -> Vector:
        length = norm(v)
        return v * (1 - eta * self.tau / length) if length > eta * self.tau else 0 * v

    def value(self, x: Vector) -> float:
        return self.tau * norm(x)


@dataclass(frozen=True)
class L2Squared(SingleWeight):
    """g = tau ||x||^2, without a factor 1/2; prox: v / (1 + 2 eta tau)."""

    name: str = "l2sq"

    def prox(self, v: Vector, eta: float) -> Vector:
        return v / (1 + 2 * eta * self.tau)

    def value(self, x: Vector) -> float:
        return self.tau * norm(x) ** 2


@dataclass(frozen=True)
class Box(Config):
    """g = 0 where low <= x <= high in every entry, else infinite; prox: clip(v, low, high)."""

    name: str = "box"
    low: float | None = -1.0
    """smallest allowed entry; null: no bound"""
    high: float | None = 1.0
    """largest allowed entry; null: no bound"""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.bounds
        if not low <= high:
            raise ConfigError("high", self.high, "below low", f"at least {self.low}")

    @property
    def bounds(self) -> tuple[float, float]:
        """Low and high, infinite where null."""
        return -inf if self.low is None else self.low, inf if self.high is None else self.high

    def prox(self, v: Vector, eta: float) -> Vector:
        return v.clip(*self.bounds)

    def value(self, x: Vector) -> float:
        low, high = self.bounds
        return 0.0 if ((x >= low) & (x <= high)).all() else inf


@dataclass(frozen=True)
class ElasticNet(Config):
    """g = tau_1 ||x||_1 + tau_2 ||x||^2; prox: soft(v, eta tau_1) / (1 + 2 eta tau_2)."""

    name: str = "elastic-net"
    tau_1: NonNegativeFloat = 0.01
    """weight tau_1 of ||x||_1"""
    tau_2: NonNegativeFloat = 0.01
    """weight tau_2 of ||x||^2"""

    def prox(self, v: Vector, eta: float) -> Vector:
        return (v - v.clip(-eta * self.tau_1, eta * self.tau_1)) / (1 + 2 * eta * self.tau_2)

    def value(self, x: Vector) -> float:
        return self.tau_1 * norm1(x) + self.tau_2 * norm(x) ** 2


Regulariser = NoRegulariser | L1 | L2 | L2Squared | Box | ElasticNet


def norm(x: Vector) -> float:
    """||x||, Euclidean."""
    return sqrt(x @ x)


def norm1(x: Vector) -> float:
    """||x||_1, summed in float64."""
    return float(np.abs(x).sum(dtype=np.float64))
