"""Reduces many vectors to one: the mean, or a robust aggregation rule, which bounds the influence of bad vectors.

Coordinate-wise median and trimmed mean: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", ICML 2018, arXiv 1803.01498.
Clipping of norms: Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019, arXiv 1911.07963.
Krum and Multi-Krum: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent", NIPS 2017, arXiv 1703.02757.

A robust rule needs all vectors at once: the server keeps them until it aggregates, and takes those of a round in the
order of the client numbers, so that the result does not depend on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from mpifl.config.types import Bounds, Config, NonNegativeInt, PositiveFloat, PositiveInt
from mpifl.errors import ConfigError
from mpifl.objective import Vector


class AggregationRule(Config):
    """Base of all aggregation rules."""

    needs_all_vectors: ClassVar[bool] = True  # false for the mean, which adds vectors as they arrive
    needs_count: ClassVar[bool] = False  # whether the number of vectors must be known when the job is checked

    def check_members(self, members: int | None) -> None:
        """Raises ConfigError if the rule cannot reduce so many vectors. None: their number is not known."""

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        """Reduces the vectors v, (m, d), to one, (d,); v may be overwritten.

        weights: (m,), of sum 1. base: (d,) the vector that the senders started from, the origin for `clip`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(AggregationRule):
    """The weighted mean."""

    name: str = "mean"

    needs_all_vectors = False


@dataclass(frozen=True)
class Median(AggregationRule):
    """The median of each coordinate, unweighted."""

    name: str = "median"

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        return np.median(v, axis=0, overwrite_input=True)


@dataclass(frozen=True)
class TrimmedMean(AggregationRule):
    """The mean of each coordinate without its largest and smallest values, unweighted."""

    name: str = "trimmed-mean"
    trim: Annotated[float, Bounds(at_least=0, below=0.5)] = 0.1
    """fraction of the values trimmed at each end; their number is rounded down (beta)"""

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        cut = min(int(self.trim * len(v) + 1e-9), (len(v) - 1) // 2)  # 1e-9: 0.29 * 100 is 29 less a rounding error
        v.sort(axis=0)
        return v[cut : len(v) - cut].mean(axis=0)


@dataclass(frozen=True)
class Clip(AggregationRule):
    """The weighted mean of the vectors, each clipped to a largest distance from the model that the client was sent."""

    norm: PositiveFloat
    """largest distance of a model from the one that its client was sent (C)"""
    name: str = "clip"

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        v -= base
        lengths = np.sqrt([float(np.square(row, dtype=np.float64).sum()) for row in v])
        factors = self.norm / np.maximum(lengths, self.norm)
        return base + (weights * factors).astype(v.dtype) @ v


@dataclass(frozen=True)
class Krum(AggregationRule):
    """The weighted mean of the `keep` vectors of lowest score: squared distances to the m - bad - 2 nearest others."""

    name: str = "krum"
    bad: NonNegativeInt = 1
    """assumed largest number of bad vectors (f); needs at least f + 3 members, the theory 2 f + 3"""
    keep: PositiveInt = 1
    """number of vectors that are kept; above 1: Multi-Krum (m)"""

    needs_count = True

    def check_members(self, members: int | None) -> None:
        if members is None or members < self.bad + 3:
            count = f"there are {members}" if members else "their number is not fixed"
            remedy = "give a smaller number, or more members" if members else "give trigger.every, which fixes it"
            raise ConfigError("aggregation.bad", self.bad, f"krum needs bad + 3 members, and {count}", remedy=remedy)
        if self.keep > members - self.bad:
            raise ConfigError("aggregation.keep", self.keep, "more than members - bad", f"at most {members - self.bad}")

    def scores(self, v: np.ndarray) -> np.ndarray:
        """(m,) sums of squared distances to the m - bad - 2 nearest others, or to the nearest one if m < bad + 3."""
        squares = np.zeros((len(v), len(v)))
        for a in range(len(v)):
            for b in range(a):
                gap = np.subtract(v[a], v[b], dtype=np.float64)
                squares[a, b] = squares[b, a] = gap @ gap
        squares.sort(axis=1)  # the first of each row is the distance of a vector to itself
        return squares[:, 1 : max(len(v) - self.bad - 1, 2)].sum(axis=1)

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        most = max(1, min(self.keep, len(v) - self.bad))  # `bad` are excluded also where members are missing
        kept = np.sort(np.argsort(self.scores(v), kind="stable")[:most])
        share = weights[kept] / weights[kept].sum()
        return share.astype(v.dtype) @ v[kept]


Aggregation = Mean | Median | TrimmedMean | Clip | Krum


def aggregate_vectors(
    rule: Aggregation, vectors: Mapping[int, Vector], weights: Mapping[int, float], base: Vector
) -> Vector:
    """(d,) the vectors, in the order of their keys, reduced by the rule; weights by the same keys; base's dtype."""
    order = sorted(vectors)
    v, shares = np.stack([vectors[k] for k in order]), np.array([weights[k] for k in order])
    return rule.combine(v, shares, base).astype(base.dtype, copy=False)
