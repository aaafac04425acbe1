"""ACE: a server step at every arrival, along the mean of the last updates of all clients; no bias to fast clients.

Chang, Yao, Krishnamurthy, Shelton, Chakraborty, Swami, Oymak, Roy-Chowdhury, "Mitigating Participation Imbalance Bias
in Asynchronous Federated Learning", 2025, arXiv 2511.19066; with `delay_threshold` ACED.
The paper's clients compute one gradient a contact; here they may take `local_steps`. The age of D_j is k - v_j, k the
server's steps and v_j those when D_j was computed; the paper counts from a client's dispatch. With `fill: wait` the
server takes no step until every client has sent an update from x_0; an arrival is answered, and its client may come
again. A client that is lost before its first update is then not in the mean. D_i of one that is lost later, or with
`fill: zero`, stays, or goes (`lost`). The server keeps n vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common import update_table
from mpifl.algorithms.common.local_solver import LocalTraining
from mpifl.config.types import NonNegativeInt
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Ace(LocalTraining):
    """D_i <- base_i - y_i;  x <- x - mean over all clients j of D_j; with a threshold over i and those of age <= it"""

    delay_threshold: NonNegativeInt | None = None
    """largest age of the updates of other clients in the mean (tau_algo of ACED); null: all (ACE)"""
    fill: Literal["wait", "zero"] = "wait"
    """wait: no step before every client has sent an update; zero: steps from the first update on, with D_j = 0 for
    clients that have sent none, so that first steps are small; with a threshold they are not in the mean"""
    lost: update_table.Lost = "keep"
    """last update of a client that is lost: keep, it stays in the mean for ever; drop, the mean is over the living"""
    reply: Literal["before", "after"] = "after"
    """reply to a sender before or after the step with its update"""

    def server_vectors(self, clients: int) -> float:
        return clients

    def init_server(self, x0: Vector, clients: Clients) -> State:
        unheard = dict.fromkeys(range(clients.n), True) if self.fill == "wait" else {}
        server = State(x=x0.copy(), k=0, last=0, computed={}, unheard=unheard, filled=not unheard)
        update_table.init(server, clients.n)
        return server

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.filled = not server.unheard
        server.unheard.pop(i, None)
        update_table.replace(server, i, update.vectors[0])
        server.last, server.computed[i] = i, server.k - staleness

    def ready(self, server: State) -> bool:
        """Every arrival makes a step, once all clients have sent an update."""
        return bool(server.filled)

    def aggregate(self, server: State) -> None:
        if self.delay_threshold is None:
            u = server.total / (server.n if self.fill == "zero" else max(1, len(server.table)))
        else:
            oldest = server.k - self.delay_threshold
            near = [j for j, v in server.computed.items() if j == server.last or v >= oldest]
            u = sum(server.table[j] for j in near) / max(1, len(near))
        server.x = server.x - u
        server.k += 1

    def on_client_lost(self, server: State, i: int) -> None:
        server.unheard.pop(i, None)

    def forget_client(self, server: State, i: int) -> None:
        if self.lost == "drop":
            update_table.drop(server, i)
            server.computed.pop(i, None)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,) = message.vectors
        y, steps, _ = self.solve(objective, base, message.round)
        return Update((base - y,), steps)
