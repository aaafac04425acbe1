"""FedBuff: asynchronous clients send pseudo-gradients; the server takes a step along the mean of every K of them.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, arXiv 2106.06639, Algorithm 1.
The AREA paper (arXiv 2405.10123) uses one alpha for both steps: `server_step: null` and `step_weights: samples`.
With a timed trigger the mean is over the updates in the buffer, whatever their number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining
from mpifl.algorithms.common.robust import Aggregation, Mean, aggregate_vectors
from mpifl.algorithms.participation import Reply, Trigger
from mpifl.config.types import PositiveFloat
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class FedBuff(LocalTraining):
    """x <- x - eta_g (1/K) sum_buffer s(tau) (base_i - y_i)"""

    server_step: PositiveFloat | None = 1.0
    """server step eta_g; null: the same number as step_size"""
    staleness: Literal["none", "inverse-sqrt"] = "none"
    """weight s(tau) of an update: none 1, or inverse-sqrt 1/sqrt(1 + tau)"""
    trigger: Trigger = field(default_factory=lambda: Trigger(every=10))
    """when the server aggregates (every: K)"""
    reply: Reply = "after"
    """reply to a sender before or after the aggregation that it triggers, or deferred to the next one"""
    aggregation: Aggregation = Mean()
    """how the buffered updates are combined: mean; robust: median, trimmed-mean, clip, krum (needs trigger.every)"""

    def validate(self, clients: int) -> None:
        super().validate(clients)
        self.aggregation.check_members(self.trigger.every)

    def update_weights(self, clients: Clients) -> float | None:
        if self.trigger.every is None or self.aggregation.needs_all_vectors:
            return None
        return (self.step_size if self.server_step is None else self.server_step) / self.trigger.every

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), buffer=0 * x0, count=0, received={})

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        (v,) = update.vectors
        weighted = v if self.staleness == "none" else (1 + staleness) ** -0.5 * v
        if self.aggregation.needs_all_vectors:
            server.received[server.count] = weighted.copy()
        else:
            server.buffer += weighted
        server.count += 1

    def aggregate(self, server: State) -> None:
        eta_g = self.step_size if self.server_step is None else self.server_step
        if server.count and self.aggregation.needs_all_vectors:
            equal = dict.fromkeys(server.received, 1 / server.count)
            server.x = server.x - eta_g * aggregate_vectors(self.aggregation, server.received, equal, 0 * server.x)
        elif server.count:
            server.x = server.x - (eta_g / server.count) * server.buffer
        server.buffer[:] = 0
        server.count, server.received = 0, {}

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,) = message.vectors
        y, steps, _ = self.solve(objective, base, message.round)
        return Update((base - y,), steps)
