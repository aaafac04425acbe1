"""Asynchronous SGD: a client sends one gradient at the model that it was sent; the server takes a step with each.

Koloskova, Stich, Jaggi, "Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated Learning",
NeurIPS 2022, arXiv 2206.08307, Algorithm 1 with all clients active (tau_C = n) and the steps (11) of Theorem 8.
Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays", NeurIPS 2022,
arXiv 2206.07638: `inverse`, as in its published code, where the delay is tau + 1.
The theorem allows any step below the bound (11) for a late gradient; `adaptive` uses the bound, `drop` 0. With
`step_weights` a client sends w_i g_i.
Maranjyan, Tyurin, Richtarik, "Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity", ICML 2025,
arXiv 2501.16168, the form without stops: `ringmaster` discards a gradient of delay R or more, and delays count the
gradients that were applied; with `drop` they count all, as in Algorithm 1 above.
Mahran, Maranjyan, Richtarik, "Rescaled Asynchronous SGD: Optimal Distributed Optimization under Data and System
Heterogeneity", 2026, arXiv 2605.13434: `rescale`, steps in proportion to a client's contact times. Its normalisation is
not known here: gamma_i = gamma/(n q_i), q_i the client's share of all contacts, has the mean gamma.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining, Sgd
from mpifl.algorithms.participation import Trigger
from mpifl.config.types import PositiveFloat, PositiveInt
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class AsyncSgd(LocalTraining):
    """x <- x - eta_t g_i(base), eta_t depending on the delay tau of the gradient and on its client's rate"""

    step_rule: Literal["constant", "adaptive", "drop", "inverse", "ringmaster"] = "constant"
    """eta_t: constant eta; where tau > n, adaptive min(eta, 1/(4 L tau)) or drop 0; inverse eta n/max(n, tau + 1);
    ringmaster eta where tau < threshold, others are discarded and count no version"""
    threshold: PositiveInt | None = None
    """delay from which ringmaster discards gradients (R)"""
    rescale: Literal["none", "rates", "times", "counts"] = "none"
    """eta_t times 1/(n q_i), q_i client i's share of all contacts: rates, of the delay model; times, from the mean
    seconds of its contacts so far; counts, from its updates so far, from 1 each"""
    L: PositiveFloat | None = None
    """Lipschitz constant of the gradient, for adaptive; null: 1/(4 eta), which makes late steps eta/tau"""
    reply: Literal["before", "after"] = "after"
    """reply to a sender before or after the step with its gradient"""
    local_steps: PositiveInt = field(default=1, init=False)
    local_epochs: PositiveInt | None = field(default=None, init=False)
    solver: Sgd = field(default=Sgd(), init=False)

    needs = {"a gradient": ""}

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.step_rule == "ringmaster") != (self.threshold is not None):
            wrong = "required with" if self.threshold is None else "given without"
            expected = "the delay R" if self.threshold is None else "null"
            raise ConfigError("threshold", self.threshold, f"{wrong} step_rule: ringmaster", expected)

    def aggregation_trigger(self) -> Trigger | None:
        return None if self.step_rule == "ringmaster" else Trigger(every=1)

    def ready(self, server: State) -> bool | None:
        return bool(server.applies) if self.step_rule == "ringmaster" else None

    def update_weights(self, clients: Clients) -> float | None:
        return 1.0 if self.rescale == "none" else None

    def eta(self, tau: int, n: int) -> float:
        """The step eta_t for a gradient of delay tau; n is the concurrency, the number of clients."""
        eta = self.step_size
        if self.step_rule == "inverse":
            return eta * n / max(n, tau + 1)
        if self.step_rule in ("constant", "ringmaster") or tau <= n:
            return eta
        return 0.0 if self.step_rule == "drop" else min(eta, 1 / (4 * self.L * tau) if self.L else eta / tau)

    def scale(self, server: State, i: int, update: Update) -> float:
        """1/(n q_i) after this update of client i; changes what is counted."""
        if self.rescale == "counts":
            server.contacts[i] += 1.0
            return float(server.contacts.sum() / (server.n * server.contacts[i]))
        if self.rescale == "times":
            server.contacts[i] += 1.0
            seconds = update.time - server.last[i]
            server.last[i] = update.time
            server.seconds[i] += (seconds - server.seconds[i]) / server.contacts[i]
            heard = server.contacts > 0
            rates = 1 / (server.seconds[heard] + 1e-9)  # 1e-9: contacts may take no time
            return float(rates.sum() / rates.size * (server.seconds[i] + 1e-9))
        return float(server.rates.sum() / (server.n * server.rates[i]))

    def init_server(self, x0: Vector, clients: Clients) -> State:
        server = State(x=x0.copy(), step=0 * x0, n=clients.n)
        if self.step_rule == "ringmaster":
            server.applies = True
        if self.rescale == "rates":
            if clients.rates is None:
                wrong = "clock.delay and clock.availability give no rates"
                raise ConfigError("rescale", self.rescale, wrong, "times or counts")
            server.rates = clients.rates.copy()
        elif self.rescale != "none":
            zeros = np.zeros(clients.n)
            server.contacts = zeros + (self.rescale == "counts")
            server.last, server.seconds = zeros.copy(), zeros.copy()
        return server

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        eta = self.eta(staleness, server.n)
        if self.step_rule == "ringmaster":
            server.applies = staleness < (self.threshold or 1)
        if self.rescale != "none":
            eta *= self.scale(server, i, update)
        server.step = eta * update.vectors[0]

    def aggregate(self, server: State) -> None:
        server.x = server.x - server.step

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,) = message.vectors
        (rows,) = objective.batches(message.round, 1)
        return Update((self.client_step(objective, 1.0) * objective.gradient(base, rows),), 1)
