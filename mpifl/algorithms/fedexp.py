"""FedExP: FedAvg whose server step grows with how much the clients' updates disagree.

Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023, arXiv 2301.09604,
Algorithm 1. As in the paper, the model that is evaluated is the mean of the last two x (`output: pair`).
With `weights: samples` both means are weighted by s_i over the members' sum; the paper's are 1/|S|.
For a small epsilon there is no fixed point: near FedAvg's, eta_g is about the mean of ||D_i||^2 over 2 epsilon. The
released code also decays eta_l and epsilon by 0.998 and 0.998^2 a round, and clips gradients at 10; here nothing does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.rounds import SampledRounds
from mpifl.algorithms.common.vectors import axpy
from mpifl.config.types import NonNegativeFloat
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class FedExP(SampledRounds):
    """x <- x - eta_g Dbar, eta_g = max(1, mean_S ||D_i||^2/(2 (||Dbar||^2 + eps))), D_i = x - y_i, Dbar = mean_S D_i"""

    epsilon: NonNegativeFloat = 1e-3
    """epsilon, which keeps eta_g bounded where the mean update vanishes"""
    output: Literal["last", "pair"] = "pair"
    """the model that is evaluated and stored: last, x; pair, the mean of the last two x"""

    sums = ("sum", "squares")

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), old=x0, sum=0 * x0, squares=0.0, eta_g=1.0, samples=clients.samples)

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        (D,) = update.vectors
        server.sum = axpy(server.sum, server.weights[i], D)
        server.squares += server.weights[i] * float(np.square(D, dtype=np.float64).sum())

    def aggregate(self, server: State) -> None:
        length = float(np.square(server.sum, dtype=np.float64).sum()) + self.epsilon
        server.eta_g = max(1.0, server.squares / (2 * length)) if length else 1.0
        server.old, server.x = server.x, server.x - server.eta_g * server.sum
        server.sum, server.squares = 0 * server.sum, 0.0

    def model(self, server: State) -> Vector:
        return server.x if self.output == "last" else (server.old + server.x) / 2

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,) = message.vectors
        y, steps, _ = self.solve(objective, x, message.round)
        return Update((x - y,), steps)
