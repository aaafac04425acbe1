"""FedDyn: a linear term makes each client's local optimum agree with the global one; corrected by the server's sum h.

Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic Regularization", ICLR 2021,
arXiv 2111.04263, Algorithm 1, with partial participation.
Client i minimises f_i(th) - <g_i, th> + alpha/2 ||th - x||^2, started at x, and then has g_i <- g_i - alpha (th - x).
It keeps q_i = -g_i/alpha (lambda_i of the released code), whose increment is the upload th - x. With `weights: samples`
h is the mean of the g_i weighted by s_i/S, and the limit minimises that mean of the f_i, for any sampling; the released
code has an alpha_i for each client instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update, client_weights
from mpifl.algorithms.common.rounds import SampledRounds
from mpifl.config.types import PositiveFloat
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class FedDyn(SampledRounds):
    """h <- h - alpha (1/n) sum_S (th_i - x);  x <- mean_S th_i - h/alpha"""

    alpha: PositiveFloat = 0.1
    """weight of the proximal term (alpha)"""
    output: Literal["server", "members", "all"] = "server"
    """the model that is evaluated and stored: server x; members, mean_S th_i of the last round; all, the mean of the
    last th_i of all clients (n vectors on the server)"""

    sums = ("dx",)  # the weights of dh stay when a member is lost
    increment_of = ("q",)
    needs = {"a proximal term": ""}

    def server_vectors(self, clients: int) -> float:
        return clients if self.output == "all" else 0

    def init_server(self, x0: Vector, clients: Clients) -> State:
        last = dict.fromkeys(range(clients.n), x0) if self.output == "all" else {}
        p = client_weights(clients, self.weights)
        return State(x=x0.copy(), h=0 * x0, dx=0 * x0, dh=0 * x0, mean=x0, last=last, p=p, samples=clients.samples)

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        (change,) = update.vectors
        server.dx += server.weights[i] * change
        server.dh += float(server.p[i]) * change
        if self.output == "all":
            server.last[i] = server.x + change

    def aggregate(self, server: State) -> None:
        server.h = server.h - self.alpha * server.dh
        server.mean = server.x + server.dx
        server.x = server.mean - server.h / self.alpha
        server.dx[:] = 0
        server.dh[:] = 0

    def model(self, server: State) -> Vector:
        if self.output == "all":
            return sum(float(server.p[i]) * th for i, th in server.last.items())
        return server.x if self.output == "server" else server.mean

    def init_client(self, x0: Vector, i: int) -> State:
        return State(q=0 * x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,), alpha = message.vectors, self.alpha
        th, steps, _ = self.solve(objective, x, message.round, shift=alpha * client.q, weight=alpha, centre=x)
        client.q = client.q + (th - x)
        return Update((th - x,), steps)
