"""AS-FedAvg: asynchronous clients send their models; the server replaces its model by the mean of every Delta of them.

The asynchronous FedAvg that AREA is compared with (arXiv 2405.10123, section 5). The paper does not specify how the
buffered models enter the global one. `rule: replace` reproduces the paper's tables; the other rules are variants.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining, StepWeights
from mpifl.algorithms.participation import Reply, Trigger
from mpifl.objective import Objective, Vector

Rule = Literal["replace", "delta-over-n", "delta-over-buffer", "mix-over-n", "server-memory"]


@dataclass(frozen=True)
class AsyncFedAvg(LocalTraining):
    """x <- mean of the buffered y_i; biased towards clients of high contact rate, except with `server-memory`."""

    step_weights: StepWeights = "samples"
    """factor on client i's step: samples s_i/S, uniform 1/n, relative n s_i/S, one 1"""
    rule: Rule = "replace"
    """replace: x = mean of the buffer; delta-over-n, delta-over-buffer: x += sum (x_i - base_i) over n or Delta;
    mix-over-n: x += sum (x_i - x)/n; server-memory: x = mean of the last models of all clients"""
    trigger: Trigger = field(default_factory=lambda: Trigger(every=4))
    """when the server aggregates (every: Delta)"""
    reply: Reply = "before"
    """reply to a sender before or after the aggregation that it triggers, or deferred to the next one; with every: 1,
    after returns each client its own model, unmixed"""

    def update_weights(self, clients: Clients) -> float | None:
        if self.rule in ("replace", "delta-over-buffer"):
            return 1 / self.trigger.every if self.trigger.every else None
        return 1 / clients.n

    def server_vectors(self, clients: int) -> float:
        return clients if self.rule == "server-memory" else 0

    def init_server(self, x0: Vector, clients: Clients) -> State:
        last = dict.fromkeys(range(clients.n), x0) if self.rule == "server-memory" else {}
        return State(x=x0.copy(), sum=0 * x0, count=0, n=clients.n, last=last)

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        (sent,) = update.vectors
        server.sum += sent
        server.count += 1
        if self.rule == "server-memory":  # the sum has the changes of the clients' last models
            server.sum -= server.last[i]
            server.last[i] = sent.copy()

    def aggregate(self, server: State) -> None:
        x, sum, count, n = server.x, server.sum, server.count, server.n
        if count:
            if self.rule == "replace":
                server.x = sum / count
            elif self.rule == "delta-over-buffer":
                server.x = x + sum / count
            elif self.rule == "mix-over-n":
                server.x = x + (sum - count * x) / n
            else:
                server.x = x + sum / n
        server.sum[:] = 0
        server.count = 0

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,) = message.vectors
        y, steps, _ = self.solve(objective, base, message.round)
        return Update((y - base if self.rule.startswith("delta") else y,), steps)
