"""The two synthetic data sets of FedPD (Zhang, Hong, Dhople, Yin, Liu, arXiv 2005.11418): features N(0, I) with the
last one constant, and labels that are noise (weak) or come from a model of each agent's own (strong). The strong
labels of the text and of the released code have different distributions; both are here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from mpifl.config.types import LARGEST, Bounds, NonNegativeInt, PositiveInt
from mpifl.problems.problem import Data, RowCounts, Rows
from mpifl.rng import stream


@dataclass(frozen=True)
class FedPDSynthetic(Data):
    """FedPD's binary data: 100 agents with 400 samples of 20 features each; nothing to test on."""

    default_clients: ClassVar[int | None] = 100
    natural: ClassVar[bool] = True
    name: str = "fedpd-synthetic"
    kind: Literal["weak", "strong", "strong-code"] = "weak"
    """weak: labels are random; strong: label = sign(a'x_i + noise) with x_i uniform on [-10, 10]^d, noise N(0, 1);
    strong-code: the released code's labels, with x_i in [-10, 50]^d; 53 % of them have the sign of a'x_i."""
    dim: Annotated[int, Bounds(at_least=2, at_most=LARGEST)] = 20
    """Number of features d; the last feature is always 1."""
    samples: PositiveInt = 400
    """Number of samples of each agent."""
    seed: NonNegativeInt = 0
    """Seed of the data; the run's own seed does not change it."""

    def counts(self, clients: int) -> RowCounts:
        return RowCounts(clients * self.samples, 0, self.dim, 2, raw=8 * self.dim)

    def read(self, root: Path, download: bool, clients: int | None) -> Rows:
        agents = clients or self.default_clients or 1
        x = np.ones((agents, self.samples, self.dim))
        y = np.empty((agents, self.samples), np.int64)
        scores, noise = np.empty(y.shape), np.empty(y.shape)
        for i in range(agents):
            generator = stream(self.seed, "data", i)
            x[i, :, :-1] = generator.standard_normal((self.samples, self.dim - 1))
            if self.kind == "weak":
                y[i] = generator.integers(0, 2, self.samples)
            elif self.kind == "strong":
                local = generator.uniform(-10, 10, self.dim)
                y[i] = x[i] @ local + generator.standard_normal(self.samples) > 0
            else:
                local = 40 * generator.random(self.dim) + generator.integers(-10, 11, self.dim)
                scores[i], noise[i] = x[i] @ local, generator.standard_normal(self.samples)
        if self.kind == "strong-code":
            y[:] = released_labels(scores, noise)
        owner = np.repeat(np.arange(agents), self.samples)
        nobody = np.empty((0, self.dim))
        return Rows(x.reshape(-1, self.dim), y.ravel(), nobody, np.empty(0, np.int64), classes=2, owner=owner)


def released_labels(scores: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Whether each label is +1, as after the five statements in main.m of the released code.

    A score smaller in size than the threshold t = noise * max(scores) changes its sign. But a positive score above t is
    first overwritten by its label 1, and then compared with t again: it ends as -1 if t > 1.
    """
    t = noise * scores.max()
    return np.where(scores > 0, t < np.minimum(scores, 1), t > -scores)
