"""Synchronous rounds: their cohorts, and the weights of the members' updates; bases of all synchronous algorithms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from mpifl.algorithms.base import Clients, State, Update, client_weights
from mpifl.algorithms.common.local_solver import LocalTraining, StepWeights
from mpifl.algorithms.common.robust import Aggregation, Mean, aggregate_vectors
from mpifl.algorithms.common.server_optimizers import Momentum, Optimizer, Plain
from mpifl.algorithms.common.vectors import axpy
from mpifl.algorithms.participation import CohortSampler, check_cohort
from mpifl.config.types import PositiveFloat, PositiveInt
from mpifl.errors import ConfigError
from mpifl.objective import Vector

Sampling = Literal["uniform", "samples"]

GRADIENT, SOLVE, BOTH = 1, 2, 3  # phases: clients send gradients, local solutions, or both


@dataclass(frozen=True)
class SynchronousRounds(LocalTraining):
    """Base of algorithms with synchronous rounds of all clients. Their server state has `samples`, (n,) int."""

    weights: Literal["uniform", "samples"] = "uniform"
    """weight of a member's update in a round's mean: uniform, or samples: s_i over the members' sum"""
    reply: Literal["deferred"] = "deferred"
    """rounds are synchronous: replies are deferred to the next round"""

    pace = "synchronous"
    sums: ClassVar[tuple[str, ...]] = ("sum",)  # server vectors that accumulate the weighted means of a round

    def participation(self, clients: Clients, seed: int) -> CohortSampler:
        return CohortSampler(clients.n, clients.n, seed)

    def member_weights(self, clients: Clients, factor: float = 1.0) -> np.ndarray | float | None:
        """(n,) or one number: `factor` times the weight of client i's update in a round's mean.

        None: the weight depends on who the other members are.
        """
        return factor * client_weights(clients, self.weights)

    def begin_round(self, server: State, members: list[int]) -> None:
        """Sets `server.weights`, {i: weight}, of sum 1 over the round's members; a client drawn twice counts twice."""
        raw = dict.fromkeys(members, 0)
        for i in members:
            raw[i] += int(server.samples[i]) if self.weights == "samples" else 1
        total = sum(raw.values())
        server.weights = {i: w / total for i, w in raw.items()}

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        """Adds the update's vector to the weighted mean of the round, `server.sum`."""
        server.sum = axpy(server.sum, server.weights[i], update.vectors[0])

    def aggregate(self, server: State) -> None:
        """The mean becomes the global model."""
        server.x, server.sum = server.sum, 0 * server.sum

    def on_client_lost(self, server: State, i: int) -> None:
        """Rescales the other members' weights to sum 1, and what was already accumulated with them."""
        others = {j: w for j, w in server.weights.items() if j != i}
        total = sum(others.values())
        server.weights = {j: w / total for j, w in others.items()}
        for name in self.sums if others else ():
            setattr(server, name, getattr(server, name) / total)


@dataclass(frozen=True)
class SampledRounds(SynchronousRounds):
    """Base of algorithms with synchronous rounds of a cohort, which is sampled anew for each round."""

    draws_cohorts = True

    cohort: PositiveInt | None = None
    """members of a round (K); null: all clients"""
    sampling: Sampling = "uniform"
    """how members are drawn: uniform without replacement, or samples: with probability s_i/S, with replacement"""

    def validate(self, clients: int) -> None:
        super().validate(clients)
        check_cohort(self.cohort, clients)

    def participation(self, clients: Clients, seed: int) -> CohortSampler:
        shares = clients.shares if self.sampling == "samples" else None
        return CohortSampler(self.cohort or clients.n, clients.n, seed, shares)

    def member_weights(self, clients: Clients, factor: float = 1.0) -> np.ndarray | float | None:
        size = self.cohort or clients.n
        if self.weights == "uniform":
            return factor / size
        return factor * clients.shares if self.sampling == "uniform" and size == clients.n else None


@dataclass(frozen=True)
class ModelAveraging(SampledRounds):
    """Base of algorithms whose members start from the server's model, which becomes the mean of their models."""

    aggregation: Aggregation = Mean()
    """how the models are combined: mean; robust: median, trimmed-mean (both unweighted), clip, krum"""

    def validate(self, clients: int) -> None:
        super().validate(clients)
        if self.aggregation.needs_count and self.sampling != "uniform":
            wrong = f"a client drawn twice is one member, so {self.aggregation.name} does not know their number"
            raise ConfigError("sampling", self.sampling, wrong, "uniform")
        self.aggregation.check_members(self.cohort or clients)

    def update_weights(self, clients: Clients) -> np.ndarray | float | None:
        return None if self.aggregation.needs_all_vectors else self.member_weights(clients)

    def server_vectors(self, clients: int) -> float:
        return (self.cohort or clients) if self.aggregation.needs_all_vectors else 0

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), sum=0 * x0, samples=clients.samples, received={})

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        if self.aggregation.needs_all_vectors:
            server.received[i] = update.vectors[0].copy()
        else:
            super().receive(server, i, update, staleness)

    def aggregate(self, server: State) -> None:
        if self.aggregation.needs_all_vectors:
            server.x = aggregate_vectors(self.aggregation, server.received, server.weights, server.x)
            server.received = {}
        else:
            super().aggregate(server)


@dataclass(frozen=True)
class OptimizedAveraging(ModelAveraging):
    """Base of algorithms that take the change of the mean for a gradient step, which a server optimiser replaces."""

    server_step: PositiveFloat = 1.0
    """server step eta_g, along the change of the mean"""
    optimizer: Optimizer | None = None
    """server optimiser: plain, momentum (FedAvgM), adagrad, adam, yogi, amsgrad; null: plain, the mean itself at 1"""

    def update_weights(self, clients: Clients) -> np.ndarray | float | None:
        weights = super().update_weights(clients)
        fixed = type(self.optimizer) in (type(None), Plain, Momentum)  # momentum changes only later steps
        return self.server_step * weights if fixed and weights is not None else None

    def init_server(self, x0: Vector, clients: Clients) -> State:
        server = super().init_server(x0, clients)
        if self.optimizer:
            self.optimizer.init(server)
        return server

    def aggregate(self, server: State) -> None:
        x = server.x
        super().aggregate(server)
        if self.optimizer or self.server_step != 1:
            mean, server.x = server.x, x
            server.x = (self.optimizer or Plain()).step(server, mean - x, self.server_step)


@dataclass(frozen=True)
class TwoPhaseRounds(SampledRounds):
    """Base of algorithms that average gradients in one phase, and local solutions that use the average in the next.

    Their server state has `phase`, one of GRADIENT, SOLVE, BOTH; the mean gradient g; and `has_x`: {i: True} for the
    clients that sent a gradient at x, and so have x in the next phase. Other members, new or rolled back, are sent x
    as well.
    """

    sums = ("x_sum", "g_sum")

    def two_phase_state(self, x0: Vector, clients: Clients, phase: int, **more: Any) -> State:
        """The server's state before the first phase, with what else a method has."""
        return State(
            x=x0.copy(), g=0 * x0, x_sum=0 * x0, g_sum=0 * x0, samples=clients.samples, phase=phase, has_x={}, **more
        )

    def update_weights(self, clients: Clients) -> np.ndarray | float | None:
        return self.member_weights(clients)

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        if server.phase == GRADIENT:
            server.has_x[i] = True
        else:
            server.x_sum = axpy(server.x_sum, server.weights[i], update.vectors[0])
        if server.phase != SOLVE:
            server.g_sum = axpy(server.g_sum, server.weights[i], update.vectors[-1])

    def aggregate(self, server: State) -> None:
        if server.phase != SOLVE:
            server.g, server.g_sum = server.g_sum, 0 * server.g_sum
        if server.phase != GRADIENT:
            server.x, server.x_sum, server.has_x = server.x_sum, 0 * server.x_sum, {}
        server.phase = {GRADIENT: SOLVE, SOLVE: GRADIENT, BOTH: BOTH}[server.phase]

    def on_client_rollback(self, server: State, i: int) -> None:
        server.has_x = {j: w for j, w in server.has_x.items() if j != i}


@dataclass(frozen=True)
class GradientTracking(SynchronousRounds):
    """Base of algorithms whose clients keep corrections delta_i that sum to 0 over all clients.

    The sum is 0 only if all clients take the same step and the same number of steps. A client that is rolled back
    breaks it: then all delta_i are reset to 0 at the start of the next round, and that client's in its next contact,
    since the message of that contact does not follow its last update.

    The server state has `resets`, their number, and `reset_pending`. The client state has `delta`, and `resets` as of
    its last contact, -1 after a rollback.
    """

    step_weights: StepWeights = field(default="one", init=False)
    local_epochs: PositiveInt | None = field(default=None, init=False)

    needs = {"a control variate": ""}

    def needs_plain_steps(self) -> str:
        return "the corrections are mean gradients of plain steps"

    def update_weights(self, clients: Clients) -> np.ndarray | float | None:
        return self.member_weights(clients)

    def begin_round(self, server: State, members: list[int]) -> None:
        super().begin_round(server, members)
        server.resets, server.reset_pending = server.resets + server.reset_pending, 0

    def on_client_rollback(self, server: State, i: int) -> None:
        server.reset_pending = 1

    def on_rollback(self, client: State) -> None:
        client.resets = -1

    def track(self, client: State, resets: float, change: Vector) -> None:
        """delta_i <- delta_i + change, or 0 if the server has reset the corrections since the last contact."""
        client.delta = client.delta + change if resets == client.resets else 0 * change
        client.resets = int(resets)
