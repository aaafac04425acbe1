"""AsyPFL's staleness indicators pi_k (E_k = pi_k E local epochs per contact) and its step schedules.

Ma, Lu, Li, Cui, AsyPFL: Algorithm 1, Theorems 2, 3 and 4. To bring the loss within eps of the optimum, a run takes

    T_min = A + B E^2 sum_k p^k pi_k^2 local steps,
    A = (2L/(mu^2 eps)) (sum_k p_k^2 sigma_k^2 + 6 L Gamma) + (4L^2/(mu eps)) r^2,   B = 16 L chi^2/(mu^2 eps).

Theorem 3 is the E that minimises T_min/E, and Theorem 4 the pi_k that minimises T_min times the time
dT_k^g + dT_k^c/(pi_k E) of a step, to leading order for large pi_k. Departures: Theorem 4 is printed with one factor mu
too many, and A with r where the units of T_min require r^2; both are corrected here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from mpifl.algorithms.common.strong_convexity import StrongConvexity
from mpifl.config.types import Config, NonNegativeFloat, PositiveFloat, PositiveInt
from mpifl.errors import ConfigError

MAX_INDICATOR = 2**31  # bound of pi_k where the job sets none: more is not a number of epochs


@dataclass(frozen=True)
class Equal(Config):
    """pi_k = 1: all clients train for E epochs per contact."""

    name: str = "equal"

    uses_timings: ClassVar[bool] = False  # whether `updated` reads measured times

    def initial(self, n: int) -> np.ndarray:
        """(n,) the indicators before the first measurement. Raises ConfigError if they are not for n clients."""
        return np.ones(n)

    def updated(self, pi: np.ndarray, p: np.ndarray, g: np.ndarray, c: np.ndarray, E: int) -> np.ndarray:
        """(n,) the new indicators, from the old ones, p^k, and dT_k^g and dT_k^c (s), all (n,); nan: not measured."""
        return pi


@dataclass(frozen=True)
class Given(Equal):
    """pi_k as listed."""

    name: str = "given"
    values: list[PositiveInt] | None = None
    """pi_k of each client, required"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.values:
            raise ConfigError("values", self.values, "no values", "an integer of at least 1 for each client")

    def initial(self, n: int) -> np.ndarray:
        if len(self.values or []) != n:
            raise ConfigError("indicators.values", self.values, f"there are {n} clients", "an integer for each client")
        return np.array(self.values, float)


@dataclass(frozen=True)
class Measured(Equal):
    """q_k = dT_k^c/(dT_k^g p^k), pi_k = floor(q_k / min_j q_j), as Algorithm 1 recomputes them after every upload."""

    name: str = "measured"
    most: PositiveInt | None = 10
    """largest pi_k; null: no bound, as printed (one slow exchange can then lead to any number of epochs)"""

    uses_timings = True

    def updated(self, pi: np.ndarray, p: np.ndarray, g: np.ndarray, c: np.ndarray, E: int) -> np.ndarray:
        known = (g > 0) & (c > 0)
        if known.any():
            q = c[known] / (g[known] * p[known])
            pi = pi.copy()
            pi[known] = np.minimum(np.floor(q / q.min() + 1e-9), self.most or MAX_INDICATOR)  # 1e-9: 3 - 1 ulp is 3
        return pi


@dataclass(frozen=True)
class Theorem4(StrongConvexity, Measured):
    """pi_k^3 = Z_k eps mu^2/(32 L E^3 chi^2 p^k) dT_k^c/dT_k^g, rounded down; Z_k is T_min without the term of pi_k."""

    name: str = "theorem-4"
    epsilon: PositiveFloat = 0.0
    """distance of the loss from its optimum to reach (eps), required"""
    chi: PositiveFloat = 0.0
    """bound of a stochastic gradient's norm, required"""
    sigma: NonNegativeFloat = 0.0
    """standard deviation of a stochastic gradient (sigma_k of all clients)"""
    gap: NonNegativeFloat = 0.0
    """F* - sum_k p^k F_k*, the heterogeneity of the clients (Gamma)"""
    radius: PositiveFloat = 0.0
    """||omega_0 - omega*|| (r), required"""

    def t_min_terms(self, p: np.ndarray) -> tuple[float, float]:
        """A and B of T_min."""
        mu, L, eps = self.mu, self.L, self.epsilon
        V = 2 * L / (mu * eps) * (float(p @ p) * self.sigma**2 + 6 * L * self.gap) / mu
        return V + 4 * L**2 / (mu * eps) * self.radius**2, 16 * L * self.chi**2 / (mu**2 * eps)

    def epochs(self, p: np.ndarray, pi: np.ndarray) -> float:
        """Theorem 3: E = sqrt(A / (B sum p^k pi_k^2))."""
        A, B = self.t_min_terms(p)
        return sqrt(A / (B * float(p @ pi**2)))

    def optimal(self, pi: np.ndarray, p: np.ndarray, g: np.ndarray, c: np.ndarray, E: int) -> np.ndarray:
        """Theorem 4, (n,) before rounding: each pi_k with the other ones fixed."""
        A, B = self.t_min_terms(p)
        Z = A + B * E**2 * (p @ pi**2 - p * pi**2)
        return np.cbrt(Z * self.epsilon * self.mu**2 / (32 * self.L * E**3 * self.chi**2 * p) * c / g)

    def updated(self, pi: np.ndarray, p: np.ndarray, g: np.ndarray, c: np.ndarray, E: int) -> np.ndarray:
        known = (g > 0) & (c > 0)
        best = self.optimal(pi, p, np.where(known, g, 1.0), np.where(known, c, 1.0), E)
        return np.where(known, np.clip(np.floor(best + 1e-9), 1, self.most or MAX_INDICATOR), pi)


Indicators = Measured | Theorem4 | Equal | Given


@dataclass(frozen=True)
class Decayed(Config):
    """eta/(1 + gamma tau), as in Algorithm 1; tau is the server's version when the message is sent."""

    name: str = "decayed"
    by_steps: ClassVar[bool] = False
    gamma: NonNegativeFloat = 0.0
    """gamma, per version; 0: constant steps, as in Theorem 1 (which requires eta <= 1/(4L))"""

    def coefficients(self, eta: float, longest: float) -> tuple[float, float]:
        """eta_0 and gamma of eta_0/(1 + gamma tau). longest: max_k pi_k E, epochs of the longest contact."""
        return eta, self.gamma


@dataclass(frozen=True)
class Theorem2(StrongConvexity):
    """2/(mu (gamma + tau)), gamma = max(8L/mu, max_k pi_k E); tau counts a client's own local steps.

    Replaces `step_size`.
    """

    name: str = "theorem-2"
    by_steps: ClassVar[bool] = True  # eq. (3), Pi_k = {l pi_k E}: the iterations of the theorem are local steps

    def coefficients(self, eta: float, longest: float) -> tuple[float, float]:
        gamma = max(8 * self.L / self.mu, longest)
        return 2 / (self.mu * gamma), 1 / gamma
