"""AsyPFL's staleness indicators pi_k (E_k = pi_k E local epochs a contact) and its decaying rates.

Ma, Lu, Li, Cui, AsyPFL: Algorithm 1, Theorems 2, 3 and 4. For the loss to come within eps, a run takes

    T_min = A + B E^2 sum_k p^k pi_k^2 local steps,
    A = (2L/(mu^2 eps)) (sum_k p_k^2 sigma_k^2 + 6 L Gamma) + (4L^2/(mu eps)) r^2,   B = 16 L chi^2/(mu^2 eps).

Theorem 3 is the E that minimises T_min/E, and Theorem 4 the pi_k that minimises T_min times the time
dT_k^g + dT_k^c/(pi_k E) of a step, to leading order for large pi_k. The print of Theorem 4 has one factor mu too many,
and that of A has r where the units of T_min ask for r^2: both are put right here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from mpifl.errors import ConfigError, at_least

LONGEST = 2**31  # an indicator without a bound of its own: more is no number of epochs


@dataclass(frozen=True)
class Equal:
    """pi_k = 1: all clients work E epochs a contact."""

    name: str = "equal"

    timed: ClassVar[bool] = False  # whether measured times are read

    def first(self, n: int) -> np.ndarray:
        """(n,) the indicators before anything is measured. Raises ConfigError where they are not for n clients."""
        return np.ones(n)

    def after(self, pi: np.ndarray, p: np.ndarray, g: np.ndarray, c: np.ndarray, E: int) -> np.ndarray:
        """(n,) the indicators that follow `pi`, from p^k and the seconds dT_k^g and dT_k^c, each (n,), nan: unknown."""
        return pi


@dataclass(frozen=True)
class Given(Equal):
    """pi_k as listed."""

    name: str = "given"
    values: list[int] | None = None
    """a whole number of at least 1 for each client"""

    def __post_init__(self) -> None:
        if any(v < 1 for v in self.values or [0]):
            raise ConfigError("values", self.values, "a whole number of at least 1 for each client")

    def first(self, n: int) -> np.ndarray:
        if len(self.values or []) != n:
            raise ConfigError("indicators.values", self.values, f"{n} numbers: one for each client")
        return np.array(self.values, float)


@dataclass(frozen=True)
class Measured(Equal):
    """q_k = dT_k^c/(dT_k^g p^k), pi_k = floor(q_k / min_j q_j), as Algorithm 1 recomputes them after every upload."""

    name: str = "measured"
    most: int | None = 10
    """largest pi_k; null: no bound, as printed (one slow exchange then buys any number of epochs)"""

    timed = True

    def __post_init__(self) -> None:
        at_least("most", self.most, 1)

    def after(self, pi: np.ndarray, p: np.ndarray, g: np.ndarray, c: np.ndarray, E: int) -> np.ndarray:
        known = (g > 0) & (c > 0)
        if known.any():
            q = c[known] / (g[known] * p[known])
            pi = pi.copy()
            pi[known] = np.minimum(np.floor(q / q.min() + 1e-9), self.most or LONGEST)  # 1e-9: 3 - 1 ulp is 3
        return pi


@dataclass(frozen=True)
class Theorem4(Measured):
    """pi_k^3 = Z_k eps mu^2/(32 L E^3 chi^2 p^k) dT_k^c/dT_k^g, rounded down; Z_k is T_min without the term of pi_k."""

    name: str = "theorem-4"
    mu: float = 0.0
    """strong convexity of every F_k"""
    L: float = 0.0
    """Lipschitz constant of every F_k's gradient"""
    epsilon: float = 0.0
    """distance of the loss from its optimum to reach (eps)"""
    chi: float = 0.0
    """bound of a stochastic gradient's norm"""
    sigma: float = 0.0
    """standard deviation of a stochastic gradient (sigma_k of all clients)"""
    gap: float = 0.0
    """F* - sum_k p^k F_k*, how unlike the clients are (Gamma)"""
    radius: float = 0.0
    """||omega_0 - omega*|| (r)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("mu", "epsilon", "chi", "radius"):
            at_least(key, getattr(self, key), 0, strict=True)
        at_least("L", self.L, self.mu)
        for key in ("sigma", "gap"):
            at_least(key, getattr(self, key), 0)

    def terms(self, p: np.ndarray) -> tuple[float, float]:
        """A and B of T_min."""
        mu, L, eps = self.mu, self.L, self.epsilon
        V = 2 * L / (mu * eps) * (float(p @ p) * self.sigma**2 + 6 * L * self.gap) / mu
        return V + 4 * L**2 / (mu * eps) * self.radius**2, 16 * L * self.chi**2 / (mu**2 * eps)

    def epochs(self, p: np.ndarray, pi: np.ndarray) -> float:
        """Theorem 3: E = sqrt(A / (B sum p^k pi_k^2))."""
        A, B = self.terms(p)
        return sqrt(A / (B * float(p @ pi**2)))

    def best(self, pi: np.ndarray, p: np.ndarray, g: np.ndarray, c: np.ndarray, E: int) -> np.ndarray:
        """Theorem 4, (n,) not rounded: each pi_k with the others' as they are."""
        A, B = self.terms(p)
        Z = A + B * E**2 * (p @ pi**2 - p * pi**2)
        return np.cbrt(Z * self.epsilon * self.mu**2 / (32 * self.L * E**3 * self.chi**2 * p) * c / g)

    def after(self, pi: np.ndarray, p: np.ndarray, g: np.ndarray, c: np.ndarray, E: int) -> np.ndarray:
        known = (g > 0) & (c > 0)
        best = self.best(pi, p, np.where(known, g, 1.0), np.where(known, c, 1.0), E)
        return np.where(known, np.clip(np.floor(best + 1e-9), 1, self.most or LONGEST), pi)


Indicators = Measured | Theorem4 | Equal | Given


@dataclass(frozen=True)
class Decayed:
    """eta/(1 + gamma tau), as in Algorithm 1; tau is the server's version."""

    name: str = "decayed"
    gamma: float = 0.0
    """gamma, a version; 0: constant rates, as in Theorem 1 (which wants eta <= 1/(4L))"""

    def __post_init__(self) -> None:
        at_least("gamma", self.gamma, 0)

    def bind(self, eta: float, longest: float) -> tuple[float, float]:
        """eta_0 and gamma of eta_0/(1 + gamma tau), where the longest contact takes max_k pi_k E epochs."""
        return eta, self.gamma


@dataclass(frozen=True)
class Theorem2:
    """2/(mu (gamma + tau)) with gamma = max(8L/mu, max_k pi_k E), whatever `step_size` is."""

    name: str = "theorem-2"
    mu: float = 0.0
    """strong convexity of every F_k"""
    L: float = 0.0
    """Lipschitz constant of every F_k's gradient"""

    def __post_init__(self) -> None:
        at_least("mu", self.mu, 0, strict=True)
        at_least("L", self.L, self.mu)

    def bind(self, eta: float, longest: float) -> tuple[float, float]:
        gamma = max(8 * self.L / self.mu, longest)
        return 2 / (self.mu * gamma), 1 / gamma
