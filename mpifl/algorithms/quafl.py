"""QuAFL: polled clients send the models that they have reached, and go on from a mix with the server's.

Zakerinia, Talaei, Nadiradze, Alistarh, "QuAFL: Federated Averaging Can Be Both Asynchronous and
Communication-Efficient", arXiv 2206.10032, as in the released code. Departures: vectors are sent as they are, not
quantised; the local step is `step_size`, where the code's is (s + 1)/s times that. A client keeps Y_i and x_old, and
mixes them when it is polled again: by then s is known, without members that were lost. So the server's model plus the
sum of all X_i changes by local steps alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.polled_rounds import PolledRounds
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class QuAFL(PolledRounds):
    """x <- (x + sum over the s polled clients of Y_i)/(s + 1);  X_i <- (x_old + s Y_i)/(s + 1)"""

    message_fields = ("x_old",)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        server = self.init_polls(x0, clients.n)
        server.mixed = dict.fromkeys(range(clients.n), 0)  # s of the client's last round
        return server

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (server.steps[i], server.mixed[i]))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        super().receive(server, i, update, staleness)
        server.sum = server.sum + update.vectors[0]

    def aggregate(self, server: State) -> None:
        super().aggregate(server)
        server.mixed.update(dict.fromkeys(server.answered, server.size))

    def init_client(self, x0: Vector, i: int) -> State:
        return State(x_old=x0, y=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,), (steps, s) = message.vectors, message.numbers
        x_i = (client.x_old + s * client.y) / (s + 1)
        client.y = self.solve(objective, x_i, message.round, steps=int(steps)).x
        client.x_old = x
        return Update((client.y,), int(steps))
