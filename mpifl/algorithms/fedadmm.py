"""FedADMM: every client keeps a model and a dual variable of its own; the server adds the changes of their sums.

Gong, Li, Freris, "FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System Heterogeneity", ICDE
2022, arXiv 2204.03529, Algorithm 1: a server step `eta`, the paper's experiments have 1.
Wang, Marella, Anderson, "FedADMM: A Federated Primal-Dual Algorithm Allowing Partial Participation", CDC 2022, arXiv
2203.15104: x is the mean of all z_i, `eta: null`. That is FedDR with alpha = 1 and eta = 1/rho, iterate for iterate;
for the composite objective of that paper take FedDR, under the name `fedadmm-wang`.
Any other eta than |S|/n conserves x - (n eta/|S|) mean z_i: the limit depends on x_0, and has
grad f(x) = rho (r - 1)/r (x - x_0), r = n eta/|S|. The local solver starts at the old w_i. All clients take the same
number of steps or epochs; the released code draws it. Its first version resets w_i to x before z_i changes: a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.algorithms.base import Clients, Message, State, Update, client_weights
from mpifl.algorithms.common.rounds import SampledRounds
from mpifl.config.types import PositiveFloat
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class FedADMM(SampledRounds):
    """lam_i <- lam_i + rho (w_i - x);  z_i = w_i + lam_i/rho;  x <- x + (eta/|S|) sum_S (new z_i - old z_i)"""

    rho: PositiveFloat = 0.01
    """weight of the proximal term and step of the dual variables (rho)"""
    eta: PositiveFloat | None = 1.0
    """server step; null: |S|/n, with which x is the mean of all z_i and the limit the optimum"""

    increment_of = ("z",)
    needs = {"a proximal term": ""}

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), sum=0 * x0, p=client_weights(clients, self.weights), samples=clients.samples)

    def begin_round(self, server: State, members: list[int]) -> None:
        super().begin_round(server, members)
        if self.eta is None:
            server.weights = {i: float(server.p[i]) for i in server.weights}

    def on_client_lost(self, server: State, i: int) -> None:
        if self.eta is not None:
            super().on_client_lost(server, i)

    def aggregate(self, server: State) -> None:
        server.x = server.x + (1.0 if self.eta is None else self.eta) * server.sum
        server.sum[:] = 0

    def init_client(self, x0: Vector, i: int) -> State:
        return State(w=x0, lam=0 * x0, z=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,), rho, z = message.vectors, self.rho, client.z
        client.w, steps, _ = self.solve(objective, client.w, message.round, shift=client.lam, weight=rho, centre=x)
        client.lam = client.lam + rho * (client.w - x)
        client.z = client.w + client.lam / rho
        return Update((client.z - z,), steps)

    def on_rollback(self, client: State) -> None:
        """Restores z_i = w_i + lam_i/rho with the w_i of the checkpoint: z_i is the client's part of x."""
        client.lam = self.rho * (client.z - client.w)
