"""Asynchronous SGD: a client sends one gradient at the model that it was sent; the server takes a step with each.

Koloskova, Stich, Jaggi, "Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated Learning",
NeurIPS 2022, arXiv 2206.08307, Algorithm 1 with all clients active (tau_C = n) and the steps (11) of Theorem 8.
Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays", NeurIPS 2022,
arXiv 2206.07638: `inverse`, as in its published code, where the delay is tau + 1.
The theorem allows any step below the bound (11) for a late gradient; `adaptive` uses the bound, `drop` 0. With
`step_weights` a client sends w_i g_i.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining, Sgd
from mpifl.algorithms.participation import Trigger
from mpifl.config.types import PositiveFloat, PositiveInt
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class AsyncSgd(LocalTraining):
    """x <- x - eta_t g_i(base), eta_t depending on the delay tau of the gradient"""

    step_rule: Literal["constant", "adaptive", "drop", "inverse"] = "constant"
    """eta_t: constant eta; where tau > n, adaptive min(eta, 1/(4 L tau)) or drop 0; inverse eta n/max(n, tau + 1)"""
    L: PositiveFloat | None = None
    """Lipschitz constant of the gradient, for adaptive; null: 1/(4 eta), which makes late steps eta/tau"""
    reply: Literal["before", "after"] = "after"
    """reply to a sender before or after the step with its gradient"""
    local_steps: PositiveInt = field(default=1, init=False)
    local_epochs: PositiveInt | None = field(default=None, init=False)
    solver: Sgd = field(default=Sgd(), init=False)

    def aggregation_trigger(self) -> Trigger:
        return Trigger(every=1)

    def update_weights(self, clients: Clients) -> float:
        return 1.0

    def eta(self, tau: int, n: int) -> float:
        """The step eta_t for a gradient of delay tau; n is the concurrency, the number of clients."""
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
        return Update((self.client_step(objective, 1.0) * objective.gradient(base, rows),), 1)
