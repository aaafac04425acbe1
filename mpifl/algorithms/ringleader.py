"""Ringleader ASGD: asynchronous SGD in rounds of n steps, to each of which every client's gradients contribute.

Maranjyan, Richtarik, "Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under Data
Heterogeneity", 2025, arXiv 2509.22860, Algorithm 1.
Phase 1 collects gradients in a table, without a step, until it has one of every client; a sender goes on with the model
that it has. In phase 2 the last arrival of phase 1, and then each other client's first arrival, is added to the table,
makes a step, and is answered with the new model; further arrivals of clients that have it go into the table of the next
round. So every client gets one new model a round; the released code answers every upload with the present model. The
server keeps 2 n vectors. A client that is lost is left out of both tables and of n.
A message without a vector tells a client to go on; its version is that of the message, and its model is older.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining, Sgd
from mpifl.config.types import PositiveInt
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Ringleader(LocalTraining):
    """G_i <- G_i + g_i, b_i <- b_i + 1;  at a client's first arrival in phase 2 x <- x - gamma (1/n) sum_j G_j/b_j"""

    reply: Literal["after"] = "after"
    """reply to a sender after the step with its gradient"""
    local_steps: PositiveInt = field(default=1, init=False)
    local_epochs: PositiveInt | None = field(default=None, init=False)
    solver: Sgd = field(default=Sgd(), init=False)

    needs = {"a gradient": ""}

    def server_vectors(self, clients: int) -> float:
        return 2 * clients  # the sums of this round and of the next

    def init_server(self, x0: Vector, clients: Clients) -> State:
        server = State(x=x0.copy(), u=0 * x0, served={}, keeps={}, steps=False, n=clients.n)
        server.G, server.b, server.next_G, server.next_b = {}, {}, {}, {}  # sums and counts of this round and the next
        return server

    def message(self, server: State, i: int) -> Message:
        """x, or no vector: the client goes on with the model that it has."""
        return Message(() if i in server.keeps else (server.x,))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        (g,) = update.vectors
        later = i in server.served  # the client's gradient belongs to the next round
        G, b = (server.next_G, server.next_b) if later else (server.G, server.b)
        old = G[i] / b[i] if i in G else 0
        G[i] = G[i] + g if i in G else g.copy()
        b[i] = b.get(i, 0) + 1
        server.steps = not later and len(server.G) == server.n  # phase 1 is over
        if not server.steps:
            server.keeps[i] = True
            return
        server.u = server.u + (G[i] / b[i] - old) if server.served else self._sum(server)
        server.served[i] = True
        server.keeps.pop(i, None)

    def ready(self, server: State) -> bool:
        """Each client's first arrival of phase 2 steps."""
        return bool(server.steps)

    def aggregate(self, server: State) -> None:
        if server.served:
            server.x = server.x - (self.step_size / server.n) * server.u
            self._end_round(server)

    def _sum(self, server: State) -> Vector:
        """(d,) sum_j G_j/b_j."""
        return sum(G / b for G, b in zip(server.G.values(), server.b.values(), strict=True))

    def _end_round(self, server: State) -> None:
        """Begins the next round if every client has its new model."""
        if len(server.served) == server.n:
            server.G, server.b, server.next_G, server.next_b, server.served = server.next_G, server.next_b, {}, {}, {}

    def on_client_lost(self, server: State, i: int) -> None:
        for table in (server.G, server.b, server.next_G, server.next_b, server.served, server.keeps):
            table.pop(i, None)
        server.n -= 1
        if server.served:
            server.u = self._sum(server)
            self._end_round(server)

    def on_client_rollback(self, server: State, i: int) -> None:
        """The client's model is lost: it is sent the present one."""
        server.keeps.pop(i, None)

    def init_client(self, x0: Vector, i: int) -> State:
        return State(base=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        if message.vectors:
            (client.base,) = message.vectors
        (rows,) = objective.batches(message.round, 1)
        return Update((self.client_step(objective, 1.0) * objective.gradient(client.base, rows),), 1)
