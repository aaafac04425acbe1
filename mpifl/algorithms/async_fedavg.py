"""AS-FedAvg: asynchronous clients send their models, the server replaces its own by the mean of every Delta of them.

The asynchronous FedAvg that AREA is compared with (arXiv 2405.10123, section 5), which leaves open how the buffered
models enter the global one. `replace` is the reading that gives the paper's tables; the others are named variants.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local import Local
from mpifl.algorithms.common.participation import Trigger
from mpifl.errors import choice
from mpifl.objective import Objective, Vector

RULES = ("replace", "delta-over-n", "delta-over-buffer", "mix-over-n", "server-memory")


@dataclass(frozen=True)
class AsyncFedAvg(Local):
    """Biased to fast clients, each of which counts as often as it arrives; `server-memory` alone is not."""

    step_weights: str = "samples"
    """factor on client i's step: samples s_i/S, uniform 1/n, relative n s_i/S, one 1"""
    rule: str = "replace"
    """replace: x = mean of the buffer; delta-over-n, delta-over-buffer: x += sum (x_i - base_i) over n or Delta;
    mix-over-n: x += sum (x_i - x)/n; server-memory: x = mean of every client's last model"""
    trigger: Trigger = field(default_factory=lambda: Trigger(every=4))
    """when the server aggregates (every: Delta)"""
    reply: str = "before"
    """before, after or deferred; with every: 1 and `after`, clients get their own models back and nothing is mixed"""

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("rule", self.rule, RULES)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        last = dict.fromkeys(range(clients.n), x0) if self.rule == "server-memory" else {}
        return State(x=x0.copy(), sum=0 * x0, count=0, n=clients.n, last=last)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        (sent,) = update.vectors
        server.sum += sent
        server.count += 1
        if self.rule == "server-memory":  # the sum of changes of the clients' last models
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
