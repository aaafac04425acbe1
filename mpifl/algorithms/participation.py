"""Participation (which clients take part in a round), the aggregation trigger, and the reply policy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import fmod
from typing import Literal

import numpy as np

from mpifl.config.types import Config, PositiveFloat, PositiveFraction, PositiveInt
from mpifl.errors import ConfigError
from mpifl.rng import stream

Reply = Literal["before", "after", "deferred"]  # when the sender of an update gets its next message


@dataclass(frozen=True)
class Trigger(Config):
    """When the server aggregates; exactly one of the four options is given.

    A trigger of your own is a subclass that overrides `due`, or `timed` and `next_time`; it needs none of the four.
    """

    every: PositiveInt | None = None
    """aggregate after this many updates (Delta; K_buf in FedBuff)"""
    period: PositiveFloat | None = None
    """aggregate at multiples of this time, in seconds of the run's clock (T)"""
    poisson: PositiveFloat | None = None
    """aggregate at the events of a Poisson process with this rate, per second (lambda_s)"""
    bernoulli: PositiveFraction | None = None
    """aggregate after an update with this probability"""

    def __post_init__(self) -> None:
        super().__post_init__()
        options = ("every", "period", "poisson", "bernoulli")
        given = {key: getattr(self, key) for key in options if getattr(self, key) is not None}
        if len(given) > 1 or (not given and type(self) is Trigger):
            wrong = "more than one is given" if given else "none is given"
            raise ConfigError("trigger", given or None, wrong, f"one of {', '.join(options)}")

    @property
    def timed(self) -> bool:
        """Whether the clock triggers aggregations, rather than updates."""
        return self.period is not None or self.poisson is not None

    def due(self, pending: int, updates: int, seed: int) -> bool:
        """Whether the update just consumed triggers an aggregation.

        Args:
            pending: Updates since the last aggregation, this one included.
            updates: Updates since the start of the run.
            seed: The run's seed.
        """
        if self.bernoulli is not None:
            return bool(stream(seed, "trigger", round=updates).random() < self.bernoulli)
        return self.every is not None and pending >= self.every

    def next_time(self, last: float, aggregations: int, seed: int) -> float:
        """The time (s) of the next timed aggregation; infinity if the trigger is not timed.

        An aggregation may be late, and then stands for all that were due by `last`: the result is after `last`.

        Args:
            last: The time (s) of the last timed aggregation.
            aggregations: The number of timed aggregations so far.
            seed: The run's seed.
        """
        if self.period is not None:
            due = (aggregations + 1) * self.period  # a product: the rounding errors of a sum would accumulate
            return due if due > last else last - fmod(last, self.period) + self.period
        if self.poisson is not None:
            return last + stream(seed, "trigger", round=aggregations).exponential(1 / self.poisson)
        return np.inf


@dataclass(frozen=True)
class CohortSampler:
    """Draws the cohort of each synchronous round; a function of (seed, round, clients lost or off) alone.

    Attributes:
        size: Clients in a cohort.
        clients: The number of clients n.
        seed: The run's seed.
        probabilities: (n,) to sample with replacement; None: uniformly without replacement.
        repeat: Consecutive rounds that share one cohort.
        all_first: Whether the first round has all clients, also those that are off.
    """

    size: int
    clients: int
    seed: int
    probabilities: np.ndarray | None = None
    repeat: int = 1
    all_first: bool = False

    def sample(
        self, round: int, lost: Collection[int] = frozenset(), off: Collection[int] = frozenset()
    ) -> list[int]:  # fmt: skip
        """The members of a round, in ascending order; a client drawn twice (with replacement) is listed twice.

        Clients that are lost or off are excluded, and replaced while there are enough others. The other members of the
        draw stay, so rounds that share a cohort differ only in the clients excluded and their replacements.
        """
        if self.all_first and round == 0:
            return [i for i in range(self.clients) if i not in lost]
        alive = np.arange(self.clients)
        if lost or off:
            alive = np.setdiff1d(alive, [*lost, *off])
        size = min(self.size, alive.size)
        if size == alive.size and self.probabilities is None:
            return alive.tolist()
        rng = stream(self.seed, "cohort", round=round // self.repeat)
        replace = self.probabilities is not None
        drawn = rng.choice(self.clients, self.size, replace=replace, p=self.probabilities)
        members = drawn[np.isin(drawn, alive)]
        if members.size < size:
            unused = np.setdiff1d(alive, members)
            members = np.append(members, self._replacements(rng, unused, alive, size - members.size))
        return sorted(members[:size].tolist())

    def _replacements(self, rng: np.random.Generator, unused: np.ndarray, alive: np.ndarray, count: int) -> np.ndarray:
        """(count,) replacements for clients excluded: from the unused ones, or with replacement from all others."""
        if self.probabilities is None:
            return rng.permutation(unused)[:count]
        p = self.probabilities[alive]
        return rng.choice(alive, count, p=p / p.sum())


def check_cohort(cohort: int | None, clients: int) -> None:
    """Raises ConfigError for a cohort of more than all clients."""
    if cohort is not None and cohort > clients:
        raise ConfigError("cohort", cohort, f"there are {clients} clients", f"at most {clients}")
