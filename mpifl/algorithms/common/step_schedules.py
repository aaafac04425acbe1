"""The step sizes of AREA's theorems (arXiv 2405.10123): alpha_k = a / (b k + 1), k counts uploads and aggregations."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from mpifl.algorithms.base import Clients
from mpifl.algorithms.common.strong_convexity import StrongConvexity
from mpifl.algorithms.participation import Trigger
from mpifl.config.types import Config, NonNegativeFloat, PositiveFloat, PositiveInt
from mpifl.errors import ConfigError


def event_probabilities(trigger: Trigger, clients: Clients) -> tuple[np.ndarray, float]:
    """(n,) p_i and p_s: the probabilities that an event of the server is an upload of client i, or an aggregation.

    Contacts have rates lambda_i, equal ones if the delay model has none. Aggregations are by count, p_s = 1/(1+Delta),
    by coin, p_s = p/(1+p), or by time with rate lambda_s, 1/period if they are periodic.
    Raises ConfigError if aggregations are timed and the delay model has no rates, and for a user's own trigger.
    """
    if type(trigger) is not Trigger:
        raise ConfigError(
            "step_schedule", type(trigger).__qualname__, "the counts of a trigger of your own are not known", "constant"
        )
    rates = clients.rates if clients.rates is not None else np.ones(clients.n)
    if trigger.timed:
        if clients.rates is None:
            raise ConfigError(
                "step_schedule",
                "timed trigger",
                "the delay model has no rates",
                "one with rates, or a trigger by updates",
            )
        server = trigger.poisson or 1 / (trigger.period or inf)
        return rates / (server + rates.sum()), server / (server + rates.sum())
    a = trigger.bernoulli or 1 / (trigger.every or 1)  # aggregations per upload
    return rates / rates.sum() / (1 + a), a / (1 + a)


@dataclass(frozen=True)
class Constant(Config):
    """alpha_k = step_size."""

    name: str = "constant"

    def coefficients(
        self, step_size: float, local_steps: int, trigger: Trigger, clients: Clients
    ) -> tuple[float, float]:
        """a and b of alpha_k = a / (b k + 1)."""
        return step_size, 0.0


@dataclass(frozen=True)
class StronglyConvex(StrongConvexity):
    """Theorem 7: alpha_k = 1 / (p_min M gamma k / 48 + 1/D), for mu-strongly convex, L-smooth objectives.

    Replaces `step_size`. The theorem is for the mean of the f_i with equal steps: `step_weights: one`.
    """

    name: str = "strongly-convex"

    def coefficients(
        self, step_size: float, local_steps: int, trigger: Trigger, clients: Clients
    ) -> tuple[float, float]:
        p, p_s = event_probabilities(trigger, clients)
        first = largest_step(self.mu, self.L, local_steps)
        gamma = 2 * self.mu * self.L / (self.mu + self.L)
        return first, first * min(float(p.min()), p_s) * local_steps * gamma / 48


def largest_step(mu: float, L: float, M: int) -> float:
    """D of Theorem 7, also alpha_0."""
    gamma, q = 2 * mu * L / (mu + L), M - 1
    first = 2 / (M * (mu + L))
    if not q:
        return first
    cube = 32 * L**4 * q**3
    return min(first, gamma / (L**2 * q), sqrt(M * gamma**2 / (2 * cube)), (gamma / cube) ** (1 / 3))


@dataclass(frozen=True)
class Convex(Config):
    """Theorem 8: one constant step for convex, B-Lipschitz objectives; the output is the average of x_s.

    alpha = sqrt((1/p_s + 2 qbar) R^2 / ((sigma^2 + (M+1) B^2 / 2) M K)), qbar the mean of 1/p_i. Replaces `step_size`.
    """

    name: str = "convex"
    B: PositiveFloat = 0.0
    """Lipschitz constant of every f_i, required"""
    sigma: NonNegativeFloat = 0.0
    """standard deviation of a stochastic subgradient"""
    radius: PositiveFloat = 0.0
    """distance from x_0 to an optimum (R), required"""
    events: PositiveInt = 0
    """server events of the whole run, uploads and aggregations together (K), required"""

    def coefficients(
        self, step_size: float, local_steps: int, trigger: Trigger, clients: Clients
    ) -> tuple[float, float]:
        p, p_s = event_probabilities(trigger, clients)
        spread = 1 / p_s + 2 * float(np.mean(1 / p))
        noise = self.sigma**2 + (local_steps + 1) * self.B**2 / 2
        return sqrt(spread * self.radius**2 / (noise * local_steps * self.events)), 0.0
