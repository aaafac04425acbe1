"""SCAFFOLD: control variates c_i and c correct the difference between a client's gradient and the mean gradient.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, arXiv 1910.06378, Algorithm 1.
Option I computes a full gradient at x besides the local steps. With momentum, Q eta_l in option II is
`LocalTraining.cumulative_step`: so (x - y)/(Q eta_l) is a mean of gradients. With `weights: samples` c is the mean of
the c_i weighted by s_i/S, and the limit minimises that mean of the f_i, for any sampling. A client that is drawn twice
counts twice in the mean of dy and once in c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update, client_weights
from mpifl.algorithms.common.rounds import SampledRounds
from mpifl.algorithms.common.vectors import axpy, step
from mpifl.config.types import PositiveFloat
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Scaffold(SampledRounds):
    """y <- y - eta_l (g_i(y) - c_i + c);  x <- x + eta_g mean_S dy;  c <- c + (|S|/n) mean_S dc"""

    server_step: PositiveFloat = 1.0
    """server step eta_g"""
    option: Literal["I", "II"] = "II"
    """c_i+: I, the gradient of f_i at x; II, c_i - c + (x - y)/(Q eta_l), which is the mean of the local gradients"""

    vectors_up = 2
    vectors_down = 2
    sums = ("dx",)  # the weights of dc stay when a member is lost
    increment_of = ("", "c")
    needs = {"a control variate": ""}

    def needs_plain_steps(self) -> str:
        return "c_i of option II is the mean gradient of plain steps" if self.option == "II" else ""

    def update_weights(self, clients: Clients) -> np.ndarray | float | None:
        return self.member_weights(clients, self.server_step)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        p = client_weights(clients, self.weights)
        return State(x=x0.copy(), c=0 * x0, dx=0 * x0, dc=0 * x0, p=p, samples=clients.samples)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x, server.c))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        dy, dc = update.vectors
        server.dx = axpy(server.dx, server.weights[i], dy)
        server.dc = axpy(server.dc, float(server.p[i]), dc)

    def aggregate(self, server: State) -> None:
        server.x = step(server.x, self.server_step, server.dx)
        server.c = server.c + server.dc
        server.dx[:] = 0
        server.dc[:] = 0

    def init_client(self, x0: Vector, i: int) -> State:
        return State(c=0 * x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        x, c = message.vectors
        y, steps, _ = self.solve(objective, x, message.round, shift=c - client.c)
        if self.option == "I":
            new = objective.gradient(x)
        else:
            new = client.c - c + (x - y) / self.cumulative_step(objective, steps)
        dc, client.c = new - client.c, new
        return Update((y - x, dc), steps)
