"""FedNova: each client's update is divided by its number of local steps, so that clients that take more count no more.

Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS 2020, arXiv 2007.07481, (4) and (9).
a_i = ||a||_1 is the weight of the client's gradients in x - y_i, in local steps: tau_i for plain steps; with momentum
rho the sum of (1 - rho^j)/(1 - rho), j = 1 .. tau_i; with a proximal term mu (1 - (1 - eta mu)^tau_i)/(eta mu), where
tau_eff is the mean of the tau_i, not of the a_i, as in the released code. Momentum starts at 0 in each contact.
`normalise: false` is FedAvg with unequal numbers of steps, for comparison. A client sends a_i with x - y_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import Gd, Sgd, Solver
from mpifl.algorithms.common.rounds import SampledRounds
from mpifl.config.types import NonNegativeFloat, PositiveFloat, PositiveInt, check_length
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class FedNova(SampledRounds):
    """x <- x - tau_eff sum p_i (x - y_i)/a_i,  tau_eff = sum p_i a_i, over the round's members"""

    solver: Solver = Sgd()
    """local solver: sgd, or gd (full gradients)"""
    steps: list[PositiveInt] | None = None
    """local steps of each client, instead of local_steps (tau_i)"""
    mu: NonNegativeFloat = 0.0
    """weight of a proximal term mu/2 ||y - x||^2 in the local problems (mu)"""
    normalise: bool = True
    """whether updates are divided by a_i; false: FedAvg"""
    tau_eff: Literal["mean"] | PositiveFloat = "mean"
    """factor of the normalised mean: mean sum p_i a_i (with mu sum p_i tau_i), or a number"""

    sums = ("sum", "tau")
    needs = {"a proximal term": "mu"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.solver, Sgd | Gd):
            raise ConfigError("solver", self.solver.name, self.needs_plain_steps(), "sgd or gd")
        if self.mu and self.solver.momentum:
            raise ConfigError("mu", self.mu, "a_i is known for mu alone or momentum alone", "0")
        if self.steps and self.local_epochs:
            raise ConfigError("local_epochs", self.local_epochs, "steps are given", "null")
        if self.tau_eff != "mean" and not self.normalise:
            raise ConfigError("tau_eff", self.tau_eff, "normalise: false has no such factor", "mean")

    def needs_plain_steps(self) -> str:
        """With the default solver a client's own training may take other steps: a_i is their number."""
        return "" if self.solver == Sgd() else "a_i is the weight of gradients in plain steps"

    def validate(self, clients: int) -> None:
        super().validate(clients)
        check_length("steps", self.steps, clients, "a number for each client")

    def update_weights(self, clients: Clients) -> np.ndarray | float | None:
        equal = self.tau_eff == "mean" and not (self.steps or self.local_epochs or self.mu)  # tau_eff/a_i is 1
        return self.member_weights(clients) if equal or not self.normalise else None

    # -- server --------------------------------------------------------------------------------------------------------
    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), sum=0 * x0, tau=0.0, samples=clients.samples)

    def message(self, server: State, i: int) -> Message:
        tau_i = self.steps[i] if self.steps else None
        return Message((server.x,), (tau_i,), work=tau_i) if tau_i else Message((server.x,))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        (a_i,) = update.numbers
        p_i, tau_i = server.weights[i], update.local_steps
        server.sum += (p_i / a_i if self.normalise else p_i) * update.vectors[0]
        server.tau += p_i * (tau_i if self.mu else a_i)

    def aggregate(self, server: State) -> None:
        tau_eff = server.tau if self.tau_eff == "mean" else self.tau_eff
        server.x = server.x - (tau_eff if self.normalise else 1.0) * server.sum
        server.sum, server.tau = 0 * server.sum, 0.0

    # -- client --------------------------------------------------------------------------------------------------------
    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,) = message.vectors
        steps = int(message.numbers[0]) if message.numbers else None
        y, tau_i, _ = self.solve(objective, x, message.round, steps=steps, weight=self.mu, centre=x)
        eta = self.client_step(objective)
        a_i = self.cumulative_step(objective, tau_i) / eta
        if self.mu:
            if self.normalise and eta * self.mu >= 2:
                raise ValueError(f"the local step {eta:g} times mu is {eta * self.mu:g}: a_i is known below 2 alone")
            a_i = (1 - (1 - eta * self.mu) ** tau_i) / (eta * self.mu)
        return Update((x - y,), tau_i, (a_i,))
