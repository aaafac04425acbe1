"""VRL-SGD: local SGD whose clients take out the difference of their gradient to the mean one, sending models alone.

Liang, Shen, Liu, Pan, Chen, Cheng, "Variance Reduced Local SGD with Lower Communication Complexity", 2019,
arXiv 1912.12844, Algorithm 1; with `warm_up` VRL-SGD-W, whose first period has one step.
The client updates delta_i when the next message brings xhat. There are no `step_weights` and `local_epochs`, see
`Tracking`. With momentum eta Q is what `Local.reach` says.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.rounds import Tracking
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class VrlSgd(Tracking):
    """x_i <- x_i - eta (g_i(x_i) - delta_i);  xhat <- mean x_i;  delta_i <- delta_i + (xhat - x_i)/(eta Q)"""

    warm_up: bool = False
    """whether the first period has a single local step (VRL-SGD-W)"""

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), sum=0 * x0, samples=clients.samples, start=0, restart=0, first=True)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (server.start, 1 if self.warm_up and server.first else self.local_steps))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.sum += server.weights[i] * update.vectors[0]

    def aggregate(self, server: State) -> None:
        server.x, server.sum, server.first = server.sum, 0 * server.sum, False

    def init_client(self, x0: Vector, i: int) -> State:
        return State(x=x0, delta=0 * x0, steps=self.local_steps, start=0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (xhat,), (start, steps) = message.vectors, message.numbers
        self.track(client, start, (xhat - client.x) / self.reach(objective, client.steps))
        client.x, client.steps, _ = self.solve(objective, xhat, message.round, steps=int(steps), shift=-client.delta)
        return Update((client.x,), client.steps)
