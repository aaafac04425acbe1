"""Server optimisers: the server takes the mean update of a round or buffer for a gradient step, and runs SGD on it.

d is the mean of y_i - base_i, the negative of a pseudo-gradient; all operations are by coordinate:

    plain     x <- x + eta_g d
    momentum  m <- beta m + d;                                       x <- x + eta_g m
    adagrad   m <- beta1 m + (1 - beta1) d;  v <- v + d^2;           x <- x + eta_g m/(sqrt(v) + tau)
    adam      m as adagrad;  v <- beta2 v + (1 - beta2) d^2;         x as adagrad
    yogi      m as adagrad;  v <- v - (1 - beta2) d^2 sign(v - d^2); x as adagrad
    amsgrad   m as adagrad;  v as adam;  vh <- max(vh, v);           x <- x + eta_g m/(sqrt(vh) + tau)

momentum: FedAvgM; Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019, arXiv 1909.06335. adagrad, adam, yogi: Reddi et al., "Adaptive Federated Optimization", ICLR
2021, arXiv 2003.00295, Algorithm 2. amsgrad: Wang, Wang, Lu, Chen, "FADAS: Towards Federated Adaptive Asynchronous
Optimization", ICML 2024, arXiv 2407.18365, where tau is epsilon. None corrects the bias of m and v, as printed; the
released code of FADAS does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mpifl.algorithms.base import State
from mpifl.config.types import Bounds, Config, NonNegativeFloat, PositiveFloat
from mpifl.objective import Vector

Decay = Annotated[float, Bounds(at_least=0, below=1)]
SecondDecay = Annotated[float, Bounds(at_least=0, at_most=1)]


@dataclass(frozen=True)
class Plain(Config):
    """x <- x + eta_g d"""

    name: str = "plain"

    def init(self, server: State) -> None:
        """Adds the optimiser's vectors to the server's state."""

    def step(self, server: State, d: Vector, eta_g: float) -> Vector:
        """(d,) the new x, from server.x and the mean update d; changes the optimiser's vectors."""
        return server.x + eta_g * d


@dataclass(frozen=True)
class Momentum(Plain):
    """FedAvgM: m <- beta m + d, the heavy ball without a factor 1 - beta;  x <- x + eta_g m"""

    name: str = "momentum"
    beta: Decay = 0.9
    """decay of m; along a constant d the step grows to 1/(1 - beta) times eta_g d"""

    def init(self, server: State) -> None:
        server.m = 0 * server.x

    def step(self, server: State, d: Vector, eta_g: float) -> Vector:
        server.m = self.beta * server.m + d
        return server.x + eta_g * server.m


@dataclass(frozen=True)
class Adagrad(Plain):
    """FedAdagrad: v <- v + d^2;  x <- x + eta_g m/(sqrt(v) + tau)"""

    name: str = "adagrad"
    beta1: Decay = 0.0
    """decay of m"""
    tau: PositiveFloat = 1e-3
    """added to the root of v"""
    v0: NonNegativeFloat | None = None
    """v before the first step; null: tau^2"""

    def init(self, server: State) -> None:
        server.m = 0 * server.x
        server.v = 0 * server.x + (self.tau**2 if self.v0 is None else self.v0)

    def second_moment(self, server: State, d: Vector) -> Vector:
        """(d,) the vector whose root divides the step, after d; changes server.v."""
        server.v = server.v + d * d
        return server.v

    def step(self, server: State, d: Vector, eta_g: float) -> Vector:
        server.m = self.beta1 * server.m + (1 - self.beta1) * d
        return server.x + eta_g * server.m / (self.second_moment(server, d) ** 0.5 + self.tau)


@dataclass(frozen=True)
class Adam(Adagrad):
    """FedAdam: v <- beta2 v + (1 - beta2) d^2, without bias correction;  x <- x + eta_g m/(sqrt(v) + tau)"""

    name: str = "adam"
    beta1: Decay = 0.9
    """decay of m"""
    beta2: SecondDecay = 0.99
    """decay of v; 1: v stays v0"""

    def second_moment(self, server: State, d: Vector) -> Vector:
        server.v = self.beta2 * server.v + (1 - self.beta2) * d * d
        return server.v


@dataclass(frozen=True)
class Yogi(Adam):
    """FedYogi: v <- v - (1 - beta2) d^2 sign(v - d^2);  x <- x + eta_g m/(sqrt(v) + tau)"""

    name: str = "yogi"

    def second_moment(self, server: State, d: Vector) -> Vector:
        square = d * d
        server.v = server.v - (1 - self.beta2) * square * np.sign(server.v - square)
        return server.v


@dataclass(frozen=True)
class AmsGrad(Adam):
    """FADAS: v as adam, vh <- max(vh, v);  x <- x + eta_g m/(sqrt(vh) + tau)"""

    name: str = "amsgrad"
    tau: PositiveFloat = 1e-8
    """added to the root of vh (epsilon)"""
    v0: NonNegativeFloat | None = 0.0
    """v and vh before the first step; null: tau^2"""

    def init(self, server: State) -> None:
        super().init(server)
        server.vh = server.v.copy()

    def second_moment(self, server: State, d: Vector) -> Vector:
        server.vh = np.maximum(server.vh, super().second_moment(server, d))
        return server.vh


Optimizer = Plain | Momentum | Adagrad | Adam | Yogi | AmsGrad
