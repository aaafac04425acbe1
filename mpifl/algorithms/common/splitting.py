"""Douglas-Rachford splitting over clients: what FedDR and asyncFedDR share, the client rule and the server's vectors.

They minimise F = sum_i p_i f_i + g. x_i is an inexact proximal point of f_i, solved within a budget of local work or to
an accuracy. With an accuracy the local solver is gd, which can tell how far it is: with convex f_i the function
phi(y) = f_i(y) + ||y - y_i||^2/(2 eta) is 1/eta-strongly convex, so

    ||y - prox(y_i)|| <= eta ||grad phi(y)||.

An error within rounding counts as none. Where f_i is L-smooth but not convex, and eta L < 1, the factor is
eta/(1 - eta L) in place of eta: to be sure of an accuracy give theta times (1 - eta L), or M times (1 - eta L)^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local import Gd, Local, Solved
from mpifl.algorithms.common.proximal import NoRegulariser, Regulariser, norm
from mpifl.errors import ConfigError, at_least, choice
from mpifl.objective import Objective, Vector


def eps(v: Vector) -> float:
    """The distance from 1 to the next number of v's dtype."""
    return float(np.finfo(str(v.dtype).removeprefix("torch.")).eps)


@dataclass(frozen=True)
class Absolute:
    """The k-th global model is made of x_i with ||x_i - prox|| <= eps_k, eps_k^2 = M / (2 (k+1)^2)."""

    name: str = "absolute"
    M: float = 1.0
    """M of eps_k^2"""
    at_most: int = 1_000
    """steps of a contact, should the accuracy not be reached"""

    def __post_init__(self) -> None:
        at_least("M", self.M, 0, strict=True)
        at_least("at_most", self.at_most, 1)

    def reached(self, error: float, moved: float, k: int) -> bool:
        return not error > sqrt(self.M / 2) / (k + 1)  # true of nan: a run that diverged


@dataclass(frozen=True)
class Relative:
    """||x_i - prox|| <= theta ||x_i - old x_i||."""

    name: str = "relative"
    theta: float = 0.1
    """error over the distance that x_i has moved"""
    at_most: int = 1_000
    """steps of a contact, should the accuracy not be reached"""

    def __post_init__(self) -> None:
        at_least("theta", self.theta, 0, strict=True)
        at_least("at_most", self.at_most, 1)

    def reached(self, error: float, moved: float, k: int) -> bool:
        return not error > self.theta * moved


@dataclass(frozen=True)
class Splitting(Local):
    """y_i <- y_i + alpha (xbar - x_i), x_i ~ prox_{eta f_i}(y_i), xhat_i <- 2 x_i - y_i; xtilde = sum_i p_i xhat_i."""

    alpha: float = 1.95
    """relaxation alpha, above 0 and up to 2"""
    eta: float = 1.0
    """proximal step eta, of the f_i and of g"""
    regulariser: Regulariser = NoRegulariser()
    """g: none, l1, l2, l2sq, box or elastic-net, and its weights"""
    weights: str = "uniform"
    """p_i of the objective: uniform 1/n, or samples s_i/S"""
    accuracy: Absolute | Relative | None = None
    """how well the local prox is solved, by gd, whatever local_steps is: absolute or relative; null: local_steps or
    local_epochs"""

    increment_of = ("xhat",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha <= 2:
            raise ConfigError("alpha", self.alpha, "a number above 0 and up to 2")
        at_least("eta", self.eta, 0, strict=True)
        choice("weights", self.weights, ("uniform", "samples"))
        if self.accuracy and not isinstance(self.solver, Gd):
            raise ConfigError("solver", self.solver.name, "gd, with an accuracy: the others cannot tell theirs")

    def init_server(self, x0: Vector, clients: Clients) -> State:
        p = clients.shares if self.weights == "samples" else np.full(clients.n, 1 / clients.n)
        return State(x=x0.copy(), xtilde=x0.copy(), p=p)  # x is xbar

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.xtilde += float(server.p[i]) * update.vectors[0]

    def aggregate(self, server: State) -> None:
        server.x = self.regulariser.prox(server.xtilde, self.eta)

    def penalty(self, x: Vector) -> float:
        return self.regulariser.value(x)

    def init_client(self, x0: Vector, i: int) -> State:
        return State(y=x0, x=x0, xhat=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (xbar,) = message.vectors
        y = client.y + self.alpha * (xbar - client.x)
        x, steps, _ = self._prox(objective, y, client.x, message)
        new = 2 * x - y
        increment = new - client.xhat
        client.y, client.x, client.xhat = y, x, new
        return Update((increment,), steps)

    def on_rollback(self, client: State) -> None:
        """xhat_i = 2 x_i - y_i again, with the old x_i: y_i - x_i is the step x_i - xhat_i that xtilde counts on."""
        client.y = 2 * client.x - client.xhat

    def _prox(self, objective: Objective, y: Vector, old: Vector, message: Message) -> Solved:
        """x_i ~ prox_{eta f_i}(y), from the old x_i."""
        accuracy, k = self.accuracy, message.version + 1  # x_i is for the k-th global model
        if accuracy is None:
            return self.solve(objective, old, message.round, weight=1 / self.eta, centre=y)

        def done(z: Vector, gradient: Vector) -> bool:
            error, rounding = self.eta * norm(gradient), eps(z) * (norm(z) + norm(y))
            return error <= rounding or accuracy.reached(error, norm(z - old), k)

        return self.solve(
            objective, old, message.round, weight=1 / self.eta, centre=y, steps=accuracy.at_most, done=done
        )
