"""Asynchronous SGD: a client sends one gradient, at the model that it was sent; the server steps along it at once.

Koloskova, Stich, Jaggi, "Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated Learning",
NeurIPS 2022, arXiv 2206.08307, Algorithm 1 with all clients active (tau_C = n) and the steps (11) of Theorem 8.
Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays", NeurIPS 2022,
arXiv 2206.07638: `inverse`, as in its published code, where the delay is tau + 1.
The theorem takes any step below the bound (11) for a late gradient; `adaptive` takes the bound, `drop` 0. With
`step_weights` a client sends w_i g_i.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local import Local, Sgd
from mpifl.algorithms.common.participation import Trigger
from mpifl.errors import at_least, choice
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class AsyncSgd(Local):
    """x <- x - eta_t g_i(base), eta_t as the delay tau of the gradient allows"""

    step_rule: str = "constant"
    """eta_t: constant eta; where tau > n, adaptive min(eta, 1/(4 L tau)) or drop 0; inverse eta n/max(n, tau + 1)"""
    L: float | None = None
    """Lipschitz constant of the gradient, for adaptive alone; null: 1/(4 eta), which makes late steps eta/tau"""
    reply: str = "after"
    """a sender is answered before or after its own gradient's step"""
    local_steps: int = field(default=1, init=False)
    local_epochs: int | None = field(default=None, init=False)
    solver: Sgd = field(default=Sgd(), init=False)

    reply_policies = ("before", "after")

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("step_rule", self.step_rule, ("constant", "adaptive", "drop", "inverse"))
        at_least("L", self.L, 0, strict=True)

    def aggregation_trigger(self) -> Trigger:
        return Trigger(every=1)

    def eta(self, tau: int, n: int) -> float:
        """The step eta_t for a gradient of this delay, n being the concurrency."""
        eta = self.step_size
        if self.step_rule == "inverse":
            return eta * n / max(n, tau + 1)
        if self.step_rule == "constant" or tau <= n:
            return eta
        return 0.0 if self.step_rule == "drop" else min(eta, 1 / (4 * self.L * tau) if self.L else eta / tau)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), step=0 * x0, n=clients.n)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.step = self.eta(staleness, server.n) * update.vectors[0]

    def aggregate(self, server: State) -> None:
        server.x = server.x - server.step

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,) = message.vectors
        (rows,) = objective.batches(message.round, 1)
        return Update((self.step(objective, 1.0) * objective.gradient(base, rows),), 1)
