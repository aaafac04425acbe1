"""The constants of strongly convex, smooth objectives, which the step sizes of several theorems depend on."""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.config.types import Config, PositiveFloat
from mpifl.errors import ConfigError


@dataclass(frozen=True)
class StrongConvexity(Config):
    """Base of options with the constants mu and L of the clients' objectives."""

    mu: PositiveFloat = 0.0
    """strong convexity of every client's objective (mu), required"""
    L: PositiveFloat = 0.0
    """Lipschitz constant of the gradient of every client's objective (L), at least mu, required"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu > self.L:
            raise ConfigError("L", self.L, "below mu", f"at least {self.mu:g}")
