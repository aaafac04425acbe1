"""Distributions of the initial model; its d entries are independent and identically distributed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifl.config.types import PositiveFloat
from mpifl.problems.problem import Init


@dataclass(frozen=True)
class Zero(Init):
    """All zeros."""

    name: str = "zero"

    def draw(self, generator: np.random.Generator, d: int) -> np.ndarray:
        return np.zeros(d)


@dataclass(frozen=True)
class Constant(Init):
    """All entries the same."""

    name: str = "constant"
    value: float = 1.0
    """Every entry."""

    def draw(self, generator: np.random.Generator, d: int) -> np.ndarray:
        return np.full(d, self.value)


@dataclass(frozen=True)
class Uniform(Init):
    """Uniform on (-half_width, half_width)."""

    name: str = "uniform"
    half_width: PositiveFloat = 0.5
    """Half the width of the interval; variance half_width^2 / 3."""

    def draw(self, generator: np.random.Generator, d: int) -> np.ndarray:
        return generator.uniform(-self.half_width, self.half_width, d)


@dataclass(frozen=True)
class Normal(Init):
    """Normal with mean 0."""

    name: str = "normal"
    std: PositiveFloat = 0.1
    """Standard deviation."""

    def draw(self, generator: np.random.Generator, d: int) -> np.ndarray:
        return self.std * generator.standard_normal(d)


INITS: dict[str, type[Init]] = {"zero": Zero, "constant": Constant, "uniform": Uniform, "normal": Normal}
