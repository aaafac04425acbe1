"""VRL-SGD: local SGD whose clients correct the difference of their gradient from the mean gradient; sends only models.

Liang, Shen, Liu, Pan, Chen, Cheng, "Variance Reduced Local SGD with Lower Communication Complexity", 2019,
arXiv 1912.12844, Algorithm 1; with `warm_up` VRL-SGD-W, whose first period has one step.
A client updates delta_i when it receives xhat with the next message. `step_weights` and `local_epochs` are fixed, see
`GradientTracking`. With momentum, eta Q is `LocalTraining.cumulative_step`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.rounds import GradientTracking
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class VrlSgd(GradientTracking):
    """x_i <- x_i - eta (g_i(x_i) - delta_i);  xhat <- mean x_i;  delta_i <- delta_i + (xhat - x_i)/(eta Q)"""

    warm_up: bool = False
    """whether the first period has a single local step (VRL-SGD-W)"""

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), sum=0 * x0, samples=clients.samples, resets=0, reset_pending=0, first=True)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (server.resets, 1 if self.warm_up and server.first else self.local_steps))

    def aggregate(self, server: State) -> None:
        super().aggregate(server)
        server.first = False

    def init_client(self, x0: Vector, i: int) -> State:
        return State(x=x0, delta=0 * x0, steps=self.local_steps, resets=0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (xhat,), (resets, steps) = message.vectors, message.numbers
        self.track(client, resets, (xhat - client.x) / self.cumulative_step(objective, client.steps))
        client.x, client.steps, _ = self.solve(objective, xhat, message.round, steps=int(steps), shift=-client.delta)
        return Update((client.x,), client.steps)
