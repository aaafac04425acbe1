"""FedBuff: asynchronous clients send pseudo-gradients, the server steps along the mean of every K of them.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, arXiv 2106.06639, Algorithm 1.
The AREA paper (arXiv 2405.10123) uses one alpha for both steps: `server_step: null` and `step_weights: samples`.
With a trigger by time the mean is over however many updates the buffer holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local import Local
from mpifl.algorithms.common.participation import Trigger
from mpifl.algorithms.common.robust import Aggregation, Mean, combined
from mpifl.errors import at_least, choice
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class FedBuff(Local):
    """x <- x - eta_g (1/K) sum_buffer s(tau) (base_i - y_i)"""

    server_step: float | None = 1.0
    """server step eta_g; null: the same number as step_size"""
    staleness: str = "none"
    """weight s(tau) of an update: none 1, or inverse-sqrt 1/sqrt(1 + tau)"""
    trigger: Trigger = field(default_factory=lambda: Trigger(every=10))
    """when the server aggregates (every: K)"""
    reply: str = "after"
    """a sender is answered before or after the aggregation that it triggers, or deferred to the next one"""
    aggregation: Aggregation = Mean()
    """what the buffer becomes: mean; robust to bad clients: median, trimmed-mean, clip, krum (wants trigger.every)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("server_step", self.server_step, 0, strict=True)
        choice("staleness", self.staleness, ("none", "inverse-sqrt"))

    def validate(self, clients: int) -> None:
        super().validate(clients)
        self.aggregation.check(self.trigger.every)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), buffer=0 * x0, count=0, held={})

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        (v,) = update.vectors
        weighted = v if self.staleness == "none" else (1 + staleness) ** -0.5 * v
        if self.aggregation.whole:
            server.held[server.count] = weighted.copy()
        else:
            server.buffer += weighted
        server.count += 1

    def aggregate(self, server: State) -> None:
        eta_g = self.step_size if self.server_step is None else self.server_step
        if server.count and self.aggregation.whole:
            alike = dict.fromkeys(server.held, 1 / server.count)
            server.x = server.x - eta_g * combined(self.aggregation, server.held, alike, 0 * server.x)
        elif server.count:
            server.x = server.x - (eta_g / server.count) * server.buffer
        server.buffer[:] = 0
        server.count, server.held = 0, {}

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,) = message.vectors
        y, steps, _ = self.solve(objective, base, message.round)
        return Update((base - y,), steps)
