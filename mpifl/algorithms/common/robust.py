"""How many vectors become one: the mean, or one of its robust forms, which some wrong vectors move only so far.

Coordinate-wise median and trimmed mean: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", ICML 2018, arXiv 1803.01498.
Clipping of norms: Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019, arXiv 1911.07963.
Krum and Multi-Krum: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent", NIPS 2017, arXiv 1703.02757.

The server holds the whole set until it aggregates. A round's set is taken in the order of the clients' numbers, so that
nothing depends on the order of arrivals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpifl.errors import ConfigError, at_least
from mpifl.objective import Vector


class Rule:
    """How a set of vectors becomes one."""

    whole: ClassVar[bool] = True  # whether it takes the whole set: a mean is summed up as the vectors come
    counts: ClassVar[bool] = False  # whether the number of vectors must be known before

    def check(self, members: int | None) -> None:
        """Raises ConfigError where the rule does not fit so many vectors; None: their number is not known."""

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        """(d,) of the vectors v (m, d), which may be changed, with weights (m,) of sum 1; base (d,): their origin."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Rule):
    """The weighted mean."""

    name: str = "mean"

    whole = False

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        return weights @ v


@dataclass(frozen=True)
class Median(Rule):
    """The median of each coordinate; all vectors count alike."""

    name: str = "median"

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        return np.median(v, axis=0, overwrite_input=True)


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """The mean of what is left of each coordinate without its largest and smallest values; all vectors count alike."""

    name: str = "trimmed-mean"
    trim: float = 0.1
    """share of the values cut off at each end, rounded down to a number of them, below 0.5 (beta)"""

    def __post_init__(self) -> None:
        if not 0 <= self.trim < 0.5:
            raise ConfigError("trim", self.trim, "a share of at least 0 and below 0.5")

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        cut = min(int(self.trim * len(v) + 1e-9), (len(v) - 1) // 2)  # 1e-9: 0.29 * 100 is 29 less a rounding error
        v.sort(axis=0)
        return v[cut : len(v) - cut].mean(axis=0)


@dataclass(frozen=True)
class Clip(Rule):
    """The weighted mean, each vector drawn to the base until it is within a distance of it."""

    norm: float
    """largest distance of a model from the one that its client was sent (C)"""
    name: str = "clip"

    def __post_init__(self) -> None:
        at_least("norm", self.norm, 0, strict=True)

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        v -= base
        lengths = np.sqrt([float(np.square(row, dtype=np.float64).sum()) for row in v])
        factors = self.norm / np.maximum(lengths, self.norm)
        return base + (weights * factors).astype(v.dtype) @ v


@dataclass(frozen=True)
class Krum(Rule):
    """The weighted mean of those vectors whose nearest others, all but `bad` + 2 of them, are nearest."""

    name: str = "krum"
    bad: int = 1
    """largest number of wrong vectors that is assumed (f); at least f + 3 members, and the theory wants 2 f + 3"""
    keep: int = 1
    """number of vectors that are kept; above 1: Multi-Krum (m)"""

    counts = True

    def __post_init__(self) -> None:
        at_least("bad", self.bad, 0)
        at_least("keep", self.keep, 1)

    def check(self, members: int | None) -> None:
        if members is None or members < self.bad + 3:
            there = f"there are {members}" if members else "a trigger by every says how many there are"
            raise ConfigError("aggregation.bad", self.bad, f"krum needs bad + 3 members, and {there}")
        if self.keep > members - self.bad:
            raise ConfigError("aggregation.keep", self.keep, f"at most {members - self.bad}: those that are not bad")

    def scores(self, v: np.ndarray) -> np.ndarray:
        """(m,) each vector's sum of squared distances to its m - bad - 2 nearest others; to one, where m is less."""
        squares = np.zeros((len(v), len(v)))
        for a in range(len(v)):
            for b in range(a):
                gap = np.subtract(v[a], v[b], dtype=np.float64)
                squares[a, b] = squares[b, a] = gap @ gap
        squares.sort(axis=1)  # the first is the distance to itself
        return squares[:, 1 : max(len(v) - self.bad - 1, 2)].sum(axis=1)

    def combine(self, v: np.ndarray, weights: np.ndarray, base: Vector) -> Vector:
        most = max(1, min(self.keep, len(v) - self.bad))  # of fewer than there should be, the bad ones still go
        kept = np.sort(np.argsort(self.scores(v), kind="stable")[:most])
        share = weights[kept] / weights[kept].sum()
        return share.astype(v.dtype) @ v[kept]


Aggregation = Mean | Median | TrimmedMean | Clip | Krum


def combined(rule: Aggregation, held: Mapping[int, Vector], weights: Mapping[int, float], base: Vector) -> Vector:
    """(d,) of the held vectors, by number, and their weights under the same numbers; in base's dtype."""
    order = sorted(held)
    v, shares = np.stack([held[k] for k in order]), np.array([weights[k] for k in order])
    return rule.combine(v, shares, base).astype(base.dtype, copy=False)
