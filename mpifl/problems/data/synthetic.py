"""Synthetic(alpha, beta) of FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, arXiv 1812.06127), as its released
generator has it: alpha and beta are standard deviations, weights and biases of a device share one mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from mpifl.config.types import NonNegativeFloat, NonNegativeInt
from mpifl.problems.problem import Data, RowCounts, Rows
from mpifl.rng import stream

FEATURES, CLASSES = 60, 10
SCALE = np.arange(1, FEATURES + 1) ** -0.6  # standard deviations: the covariance is diag(j^-1.2)


def sizes(generator: np.random.Generator, devices: int) -> np.ndarray:
    """(devices,) n_k = floor(LogNormal(mean 4, sigma 2)) + 50"""
    return generator.lognormal(4, 2, devices).astype(np.int64) + 50


def counts(devices: int, seed: int) -> RowCounts:
    """The size of the data of so many devices."""
    rows = sizes(stream(seed, "data sizes"), devices)
    train = int((0.9 * rows).astype(np.int64).sum())
    return RowCounts(train, int(rows.sum()) - train, FEATURES, CLASSES, raw=2 * 8 * FEATURES)


@dataclass(frozen=True)
class Synthetic(Data):
    """FedProx's synthetic data: 60 features, 10 classes, one model and feature mean a device; 90 % to train on."""

    default_clients: ClassVar[int | None] = 30
    natural: ClassVar[bool] = True
    name: str = "synthetic"
    alpha: NonNegativeFloat = 0.0
    """How much the devices' models differ: standard deviation of u_k."""
    beta: NonNegativeFloat = 0.0
    """How much the devices' features differ: standard deviation of B_k."""
    seed: NonNegativeInt = 0
    """Seed of the data; the run's own seed does not change it."""

    def counts(self, clients: int) -> RowCounts:
        return counts(clients, self.seed)

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        devices = clients or self.default_clients or 1
        models = [self._device(stream(self.seed, "data model", k)) for k in range(devices)]
        return generate(models, self.seed)

    def _device(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """W_k (features, classes), b_k (classes,), v_k (features,)"""
        u, b = self.alpha * generator.standard_normal(), self.beta * generator.standard_normal()
        weights = generator.normal(u, 1, (FEATURES, CLASSES))
        return weights, generator.normal(u, 1, CLASSES), generator.normal(b, 1, FEATURES)


@dataclass(frozen=True)
class SyntheticIid(Data):
    """FedProx's synthetic-iid data: sizes as in `synthetic`, one model and zero feature means for all devices."""

    default_clients: ClassVar[int | None] = 30
    natural: ClassVar[bool] = True
    name: str = "synthetic-iid"
    seed: NonNegativeInt = 0
    """Seed of the data; the run's own seed does not change it."""

    def counts(self, clients: int) -> RowCounts:
        return counts(clients, self.seed)

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        generator = stream(self.seed, "data model")
        weights, bias = generator.standard_normal((FEATURES, CLASSES)), generator.standard_normal(CLASSES)
        return generate([(weights, bias, np.zeros(FEATURES))] * (clients or self.default_clients or 1), self.seed)


def generate(models: list[tuple[np.ndarray, np.ndarray, np.ndarray]], seed: int) -> Rows:
    """Rows x ~ N(v_k, diag(j^-1.2)) labelled argmax(x W_k + b_k); floor(0.9 n_k) of each device are for training."""
    train, test, owner, owner_test = [], [], [], []
    for k, (count, (weights, bias, means)) in enumerate(
        zip(sizes(stream(seed, "data sizes"), len(models)), models, strict=True)
    ):
        x = means + SCALE * stream(seed, "data", k).standard_normal((count, FEATURES))
        y = (x @ weights + bias).argmax(1)
        cut = int(0.9 * count)  # the rows are independent draws: no shuffle is needed before the cut
        train.append((x[:cut], y[:cut]))
        test.append((x[cut:], y[cut:]))
        owner.append(np.full(cut, k))
        owner_test.append(np.full(count - cut, k))
    (x, y), (x_test, y_test) = ([np.concatenate(part) for part in zip(*half, strict=True)] for half in (train, test))
    return Rows(
        x, y, x_test, y_test, CLASSES, owner=np.concatenate(owner), owner_test=np.concatenate(owner_test)
    )  # fmt: skip
