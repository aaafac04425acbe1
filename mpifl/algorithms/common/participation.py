"""Who works and when the server aggregates: small policies that all algorithms share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from mpifl.errors import ConfigError
from mpifl.rng import stream


@dataclass(frozen=True)
class Trigger:
    """When the server aggregates; exactly one of the four is given."""

    every: int | None = None
    """aggregate after this many updates (Delta; K_buf in FedBuff)"""
    period: float | None = None
    """aggregate every so many seconds of the run's clock (T)"""
    poisson: float | None = None
    """aggregate at the events of a Poisson process with this rate, per second (lambda_s)"""
    bernoulli: float | None = None
    """aggregate after an update with this probability"""

    def __post_init__(self) -> None:
        given = {k: v for k, v in vars(self).items() if v is not None}
        if len(given) != 1:
            raise ConfigError("trigger", given or None, "give one of every, period, poisson, bernoulli")
        ((key, value),) = given.items()
        if not value > 0 or (key == "bernoulli" and value > 1):
            raise ConfigError(f"trigger.{key}", value, "a positive number" + (" up to 1" if key == "bernoulli" else ""))

    @property
    def timed(self) -> bool:
        """True where a clock, and not an update, makes the server aggregate."""
        return self.period is not None or self.poisson is not None

    def due(self, pending: int, updates: int, seed: int) -> bool:
        """Whether the update that was just consumed brings an aggregation: the `pending`-th since the last one."""
        if self.bernoulli is not None:
            return bool(stream(seed, "trigger", round=updates).random() < self.bernoulli)
        return self.every is not None and pending >= self.every

    def next_time(self, last: float, aggregations: int, seed: int) -> float:
        """The time (s) of the next timed aggregation, after so many with the last one then; infinity: none is timed."""
        if self.period is not None:
            return (aggregations + 1) * self.period  # not a sum, whose rounding would grow
        if self.poisson is not None:
            return last + stream(seed, "trigger", round=aggregations).exponential(1 / self.poisson)
        return np.inf


@dataclass(frozen=True)
class CohortSampler:
    """The clients of each synchronous round, drawn anew for each or each few: a function of (seed, round) alone."""

    size: int
    clients: int
    seed: int
    probabilities: np.ndarray | None = None  # (n,) None: uniform without replacement; else with replacement
    repeat: int = 1  # consecutive rounds with the same members

    def sample(self, round: int, lost: Collection[int] = frozenset()) -> list[int]:
        """The members of a round, ascending; a client drawn twice (with replacement) is there twice.

        Those lost are not among them: others are drawn in their places, as long as there are so many. Who is drawn
        anyway stays, so that rounds which repeat a draw have the same members but for the lost.
        """
        living = np.setdiff1d(np.arange(self.clients), list(lost))
        size = min(self.size, living.size)
        if size == living.size and self.probabilities is None:
            return living.tolist()
        rng = stream(self.seed, "cohort", round=round // self.repeat)
        replace = self.probabilities is not None
        drawn = rng.choice(self.clients, self.size, replace=replace, p=self.probabilities)
        there = drawn[np.isin(drawn, living)]
        if there.size < size:
            there = np.append(there, self._more(rng, np.setdiff1d(living, there), living, size - there.size))
        return sorted(there[:size].tolist())

    def _more(self, rng: np.random.Generator, rest: np.ndarray, living: np.ndarray, count: int) -> np.ndarray:
        """So many in the places of lost ones: from the rest, or with replacement from all the living."""
        if self.probabilities is None:
            return rng.permutation(rest)[:count]
        p = self.probabilities[living]
        return rng.choice(living, count, p=p / p.sum())
