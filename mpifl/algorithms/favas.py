"""FAVAS (also FAVANO): polled clients go on from the server's model; what they add is divided by their steps.

Leconte, Nguyen, Moulines, "FAVANO: Federated AVeraging with Asynchronous NOdes", arXiv 2305.16099. P(E_i > 0) and
E[E_i] are those of the client's polls so far, this one included. X_i, the model after the client's last poll, reaches
it with the next one, to the same result: the server keeps it, and a client keeps nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.polled_rounds import PolledRounds
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Favas(PolledRounds):
    """x <- (x + sum over the s polled clients of X_i + (Y_i - X_i)/alpha_i)/(s + 1);  X_i <- x"""

    alpha: Literal["stochastic", "deterministic"] = "stochastic"
    """divisor of a client's change: stochastic, P(E_i > 0) E_i; deterministic, E[E_i]"""

    def server_vectors(self, clients: int) -> float:
        return clients if self.cohort else 0  # X_i, which the members of a round share

    def init_server(self, x0: Vector, clients: Clients) -> State:
        server = self.init_polls(x0, clients.n)
        server.models = dict.fromkeys(range(clients.n), server.x)  # X_i
        server.polls, server.active, server.taken = ({} for _ in range(3))  # client -> count; active: where E_i > 0
        return server

    def message(self, server: State, i: int) -> Message:
        return Message((server.models[i],), (server.steps[i],))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        super().receive(server, i, update, staleness)
        steps, x = update.local_steps, server.models[i]
        for counts, more in ((server.polls, 1), (server.active, int(steps > 0)), (server.taken, steps)):
            counts[i] = counts.get(i, 0) + more
        if steps:
            total = steps * server.active[i] if self.alpha == "stochastic" else server.taken[i]
            x = x + update.vectors[0] * (server.polls[i] / total)
        server.sum = server.sum + x

    def aggregate(self, server: State) -> None:
        super().aggregate(server)
        server.models.update(dict.fromkeys(server.answered, server.x))

    def forget_client(self, server: State, i: int) -> None:
        server.models.pop(i, None)
        server.answered.pop(i, None)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,), (steps,) = message.vectors, message.numbers
        return Update((self.solve(objective, x, message.round, steps=int(steps)).x - x,), int(steps))
