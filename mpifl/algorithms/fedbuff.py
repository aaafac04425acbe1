"""FedBuff: asynchronous clients send pseudo-gradients; the server takes a step along the mean of every K of them.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, arXiv 2106.06639, Algorithm 1.
The AREA paper (arXiv 2405.10123) uses one alpha for both steps: `server_step: null` and `step_weights: samples`.
With a timed trigger the mean is over the updates in the buffer, whatever their number.
With `optimizer: amsgrad` it is FADAS (arXiv 2407.18365), `delay_threshold` its delay-adaptive step: printed as
min(eta, 1/tau_max), which changes nothing below eta = 1/tau_max; the released code has eta/tau_max (`delay_rule`).
With `calibrate` it is CA2FL: Wang, Cao, Wu, Chen, Chen, "Tackling the Data Heterogeneity in Asynchronous Federated
Learning with Cached Update Calibration", ICLR 2024; s(tau) then multiplies the change of h_i, as in one public code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common import update_table
from mpifl.algorithms.common.local_solver import LocalTraining
from mpifl.algorithms.common.robust import Aggregation, Mean, aggregate_vectors
from mpifl.algorithms.common.server_optimizers import Momentum, Optimizer, Plain
from mpifl.algorithms.common.vectors import axpy, step, zeros
from mpifl.algorithms.participation import Reply, Trigger
from mpifl.config.types import NonNegativeInt, PositiveFloat
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class FedBuff(LocalTraining):
    """x <- x - eta_g (1/K) sum_buffer s(tau) (base_i - y_i); or a step of the server optimiser along that mean"""

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
    optimizer: Optimizer | None = None
    """server optimiser: plain, momentum, adagrad, adam, yogi, amsgrad (FADAS); null: plain"""
    delay_threshold: NonNegativeInt | None = None
    """the step is smaller if the largest staleness in the buffer, tau_max, exceeds this (tau_c); null: never"""
    delay_rule: Literal["cap", "scale"] = "cap"
    """the smaller step: cap min(eta_g, 1/tau_max), scale eta_g/tau_max"""
    calibrate: bool = False
    """CA2FL: the server keeps each client's last update h_i; the buffer has the changes of these, and x moves by their
    mean h as of the last step as well"""
    lost: update_table.Lost = "keep"
    """calibrated, h_i of a client that is lost: keep, it stays in h for ever; drop, h is the mean over the living from
    the next step on"""

    def validate(self, clients: int) -> None:
        super().validate(clients)
        if self.lost == "drop" and not self.calibrate:
            raise ConfigError("lost", self.lost, "without calibrate the server keeps nothing of single clients", "keep")
        self.aggregation.check_members(self.trigger.every)
        if self.calibrate and self.aggregation.needs_all_vectors:
            wrong = "a change that a robust rule leaves out would bias all later steps of calibrate"
            raise ConfigError("aggregation", self.aggregation.name, wrong, "mean")

    def update_weights(self, clients: Clients) -> float | None:
        if self.trigger.every is None or self.aggregation.needs_all_vectors:
            return None
        if self.calibrate:
            return None  # an update moves x until the client's next one
        plain = type(self.optimizer) in (type(None), Plain, Momentum)  # momentum changes only later steps
        return self.eta_g(0) / self.trigger.every if plain else None

    def eta_g(self, tau_max: int) -> float:
        """The server step for a buffer whose largest staleness is tau_max."""
        eta = self.step_size if self.server_step is None else self.server_step
        if self.delay_threshold is None or tau_max <= self.delay_threshold:
            return eta
        return min(eta, 1 / tau_max) if self.delay_rule == "cap" else eta / tau_max

    def server_vectors(self, clients: int) -> float:
        buffered = self.trigger.every if self.aggregation.needs_all_vectors else 0
        return (clients if self.calibrate else 0) + (buffered or 0)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        server = State(x=x0.copy(), buffer=zeros(x0), count=0, received={}, tau_max=0)
        if self.optimizer:
            self.optimizer.init(server)
        if self.calibrate:
            server.h = 0 * x0
            update_table.init(server, clients.n)
        return server

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        (v,) = update.vectors
        if self.calibrate:
            v = update_table.replace(server, i, v)
        weight = 1.0 if self.staleness == "none" else (1 + staleness) ** -0.5
        if self.aggregation.needs_all_vectors:
            server.received[server.count] = weight * v
        else:
            server.buffer = axpy(server.buffer, weight, v)
        server.count += 1
        server.tau_max = max(server.tau_max, staleness)

    def aggregate(self, server: State) -> None:
        eta_g = self.eta_g(server.tau_max)
        if server.count and (self.optimizer or self.calibrate or self.aggregation.needs_all_vectors):
            server.x = (self.optimizer or Plain()).step(server, -self.mean(server), eta_g)
        elif server.count:
            server.x = step(server.x, -eta_g / server.count, server.buffer)
        if self.calibrate:
            server.h = server.total / server.n
        server.buffer = zeros(server.buffer)
        server.count, server.received, server.tau_max = 0, {}, 0

    def mean(self, server: State) -> Vector:
        """(d,) the buffered updates, reduced to one; calibrated, h and the mean of the changes."""
        if self.calibrate:
            return server.h + server.buffer / server.count
        if not self.aggregation.needs_all_vectors:
            return server.buffer / server.count
        equal = dict.fromkeys(server.received, 1 / server.count)
        return aggregate_vectors(self.aggregation, server.received, equal, 0 * server.x)

    def forget_client(self, server: State, i: int) -> None:
        if self.lost == "drop":
            update_table.drop(server, i)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,) = message.vectors
        y, steps, _ = self.solve(objective, base, message.round)
        return Update((base - y,), steps)
