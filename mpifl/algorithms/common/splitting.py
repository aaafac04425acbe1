"""Douglas-Rachford splitting over clients: the client side and the server's vectors of FedDR and asyncFedDR.

They minimise F = sum_i p_i f_i + g. x_i is an inexact proximal point of f_i, from a fixed number of steps or to a given
accuracy. An accuracy needs the local solver gd, whose gradient bounds the error: with convex f_i the function
phi(y) = f_i(y) + ||y - y_i||^2/(2 eta) is 1/eta-strongly convex, so

    ||y - prox(y_i)|| <= eta ||grad phi(y)||.

An error within rounding counts as 0. If f_i is L-smooth but not convex, and eta L < 1, the factor is eta/(1 - eta L) in
place of eta: to guarantee an accuracy give theta times (1 - eta L), or M times (1 - eta L)^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Literal

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update, client_weights
from mpifl.algorithms.common.local_solver import Gd, LocalSolution, LocalTraining
from mpifl.algorithms.common.proximal import NoRegulariser, Regulariser, norm
from mpifl.algorithms.common.vectors import axpy
from mpifl.config.types import Bounds, Config, PositiveFloat, PositiveInt
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector


def machine_epsilon(v: Vector) -> float:
    """The distance from 1 to the next larger number of v's dtype."""
    return float(np.finfo(str(v.dtype).removeprefix("torch.")).eps)


@dataclass(frozen=True)
class AbsoluteAccuracy(Config):
    """||x_i - prox|| <= eps_k, eps_k^2 = M / (2 (k+1)^2), for the x_i of the k-th global model."""

    name: str = "absolute"
    M: PositiveFloat = 1.0
    """M of eps_k^2"""
    at_most: PositiveInt = 1_000
    """largest number of steps per contact, if the accuracy is not reached"""

    def is_reached(self, error: float, moved: float, k: int) -> bool:
        """Whether the error is small enough. moved: ||x_i - old x_i||. k: number of the global model."""
        return not error > sqrt(self.M / 2) / (k + 1)  # true for NaN, so that a run that diverged stops


@dataclass(frozen=True)
class RelativeAccuracy(Config):
    """||x_i - prox|| <= theta ||x_i - old x_i||."""

    name: str = "relative"
    theta: PositiveFloat = 0.1
    """error relative to the distance that x_i has moved"""
    at_most: PositiveInt = 1_000
    """largest number of steps per contact, if the accuracy is not reached"""

    def is_reached(self, error: float, moved: float, k: int) -> bool:
        """Whether the error is small enough. moved: ||x_i - old x_i||. k: number of the global model."""
        return not error > self.theta * moved


Relaxation = Annotated[float, Bounds(above=0, at_most=2)]


@dataclass(frozen=True)
class DouglasRachford(LocalTraining):
    """y_i <- y_i + alpha (xbar - x_i), x_i ~ prox_{eta f_i}(y_i), xhat_i <- 2 x_i - y_i; xtilde = sum_i p_i xhat_i."""

    alpha: Relaxation = 1.95
    """relaxation alpha"""
    eta: PositiveFloat = 1.0
    """proximal step eta, of the f_i and of g"""
    regulariser: Regulariser = NoRegulariser()
    """g: none, l1, l2, l2sq, box or elastic-net, and its weights"""
    weights: Literal["uniform", "samples"] = "uniform"
    """p_i of the objective: uniform 1/n, or samples s_i/S"""
    accuracy: AbsoluteAccuracy | RelativeAccuracy | None = None
    """accuracy of the local prox, absolute or relative; needs solver gd, and replaces local_steps; null: a fixed number
    of local_steps or local_epochs"""

    increment_of = ("xhat",)
    needs = {"a proximal term": "", "a gradient": "accuracy"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accuracy and not isinstance(self.solver, Gd):
            raise ConfigError(
                "solver", self.solver.name, "accuracy is given, and the error of other solvers is unknown", "gd"
            )

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), xtilde=x0.copy(), p=client_weights(clients, self.weights))  # x is xbar

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.xtilde = axpy(server.xtilde, float(server.p[i]), update.vectors[0])

    def aggregate(self, server: State) -> None:
        server.x = self.regulariser.prox(server.xtilde, self.eta)

    def penalty(self, x: Vector) -> float:
        return self.regulariser.value(x)

    def gradient_mapping(self, x: np.ndarray, gradient: np.ndarray) -> np.ndarray | None:
        """(x - prox_{eta g}(x - eta grad f(x))) / eta with the method's own eta, as in the theorems of the paper."""
        if isinstance(self.regulariser, NoRegulariser):
            return None
        x = x.astype(np.float64)
        return np.asarray((x - self.regulariser.prox(x - self.eta * gradient, self.eta)) / self.eta)

    def init_client(self, x0: Vector, i: int) -> State:
        return State(y=x0, x=x0, xhat=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (xbar,) = message.vectors
        y = client.y + self.alpha * (xbar - client.x)
        x, steps, _ = self._local_prox(objective, y, client.x, message)
        new = 2 * x - y
        increment = new - client.xhat
        client.y, client.x, client.xhat = y, x, new
        return Update((increment,), steps)

    def on_rollback(self, client: State) -> None:
        """Restores xhat_i = 2 x_i - y_i with the x_i of the checkpoint: xhat_i is the client's part of xtilde."""
        client.y = 2 * client.x - client.xhat

    def _local_prox(self, objective: Objective, y: Vector, old: Vector, message: Message) -> LocalSolution:
        """x_i ~ prox_{eta f_i}(y), the local solver started at the old x_i."""
        accuracy, k = self.accuracy, message.version + 1  # x_i is for the k-th global model
        if accuracy is None:
            return self.solve(objective, old, message.round, weight=1 / self.eta, centre=y)

        def accurate(z: Vector, gradient: Vector) -> bool:
            error, rounding = self.eta * norm(gradient), machine_epsilon(z) * (norm(z) + norm(y))
            return error <= rounding or accuracy.is_reached(error, norm(z - old), k)

        return self.solve(
            objective, old, message.round, weight=1 / self.eta, centre=y, steps=accuracy.at_most, stop=accurate
        )
