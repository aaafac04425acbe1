"""A user's own class of every family that a job can name."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from pathlib import Path

import numpy as np

from mpifl.algorithms.area import Area
from mpifl.algorithms.participation import Trigger
from mpifl.config.types import PositiveFloat, PositiveInt
from mpifl.problems import Data, Init, Partition, Rows
from mpifl.problems.models.logistic import Logistic
from mpifl.scheduling.availability import Availability, NextOn
from mpifl.scheduling.delays import ContactTimes, Delay


@dataclass(frozen=True)
class Slow(Area):
    """AREA with half the step."""

    factor: PositiveFloat = 0.5


@dataclass(frozen=True)
class Blobs(Data):
    """Two clouds of points."""

    rows: PositiveInt = 60
    distance: PositiveFloat = 2.0

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        generator = np.random.default_rng(0)
        y = np.arange(self.rows + 20) % 2
        x = generator.standard_normal((len(y), 3)) + self.distance * y[:, None]
        return Rows(x[: self.rows], y[: self.rows], x[self.rows :], y[self.rows :], classes=2)


@dataclass(frozen=True)
class Stripes(Partition):
    """Blocks of consecutive rows."""

    width: PositiveInt = 2

    def owners(self, y: np.ndarray, classes: int, clients: int, batch: int) -> np.ndarray:
        return np.arange(len(y)) // self.width % clients


@dataclass(frozen=True)
class Scaled(Logistic):
    """Logistic regression under a name of its own."""

    scale: PositiveFloat = 1.0


@dataclass(frozen=True)
class Ones(Init):
    """All entries the same."""

    height: PositiveFloat = 0.25

    def draw(self, generator: np.random.Generator, d: int) -> np.ndarray:
        return np.full(d, self.height)


@dataclass(frozen=True)
class Steps(Delay):
    """Client i takes i + 1 steps of equal length."""

    step: PositiveFloat = 0.1

    def contact_times(self, clients: int, seed: int) -> ContactTimes:
        return lambda client, round: (client + 1) * self.step


@dataclass(frozen=True)
class Shifts(Availability):
    """Every client is on for the first part of each second."""

    share: PositiveFloat = 0.5

    def on_periods(self, clients: int, seed: int) -> NextOn:
        def next_on(client: int, time: float) -> tuple[float, float]:
            start = floor(time) + (time >= floor(time) + self.share)
            return start, start + self.share

        return next_on


@dataclass(frozen=True)
class Fibonacci(Trigger):
    """Aggregates at the updates 1, 2, 3, 5, 8, ..."""

    start: PositiveInt = 1

    def due(self, pending: int, updates: int, seed: int) -> bool:
        a, b = self.start, self.start + 1
        while a < updates:
            a, b = b, a + b
        return a == updates


@dataclass(frozen=True)
class Hourly(Trigger):
    """Aggregates at 1, 2, 3, ... units of time."""

    unit: PositiveFloat = 0.5

    @property
    def timed(self) -> bool:
        return True

    def next_time(self, last: float, aggregations: int, seed: int) -> float:
        return (aggregations + 1) * self.unit


class Plain:
    """A class of no family."""
