"""FedAvg: synchronous rounds; every member of a round starts from the same model, and their models are averaged.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
arXiv 1602.05629, Algorithm 1. S-FedAvg of the AREA paper (arXiv 2405.10123): `cohort: 4`, `step_weights: samples`.
With `sampling: samples` a client drawn twice trains once and counts twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mpifl.algorithms.base import Algorithm, Clients, Message, Objective, State, Update, Vector
from mpifl.algorithms.local import check_step_weights, descend, step_weight
from mpifl.algorithms.participation import Cohort
from mpifl.errors import ConfigError, at_least, choice


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """x <- sum over the round's members of a_i x_i"""

    step_size: float = 0.1
    """local step eta"""
    step_weights: str = "one"
    """factor on client i's step: samples s_i/S, uniform 1/n, relative n s_i/S, one 1"""
    local_steps: int = 1
    """local SGD steps a round (M, Q)"""
    local_epochs: int | None = None
    """passes over the client's rows instead of local_steps (E)"""
    cohort: int | None = None
    """members of a round (K); null: all clients"""
    sampling: str = "uniform"
    """how members are drawn: uniform without replacement, or samples: with probability s_i/S, with replacement"""
    weights: str = "uniform"
    """weight a_i of a member's model: uniform, or samples: s_i over the members' sum"""
    reply: str = "deferred"
    """rounds are synchronous: deferred to the next round"""

    replies = ("deferred",)

    def __post_init__(self) -> None:
        at_least("step_size", self.step_size, 0, strict=True)
        at_least("local_steps", self.local_steps, 1)
        at_least("local_epochs", self.local_epochs, 1)
        at_least("cohort", self.cohort, 1)
        check_step_weights(self.step_weights)
        choice("sampling", self.sampling, ("uniform", "samples"))
        choice("weights", self.weights, ("uniform", "samples"))

    def validate(self, clients: int) -> None:
        super().validate(clients)
        if self.cohort is not None and self.cohort > clients:
            raise ConfigError("cohort", self.cohort, f"at most {clients}, the number of clients")

    def rounds(self, clients: Clients, seed: int) -> Cohort:
        shares = clients.shares if self.sampling == "samples" else None
        return Cohort(self.cohort or clients.n, clients.n, seed, shares)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), sum=0 * x0, weights={}, samples=clients.samples)

    def begin(self, server: State, members: list[int]) -> None:
        raw = {i: k * (int(server.samples[i]) if self.weights == "samples" else 1) for i, k in Counter(members).items()}
        server.weights = {i: w / sum(raw.values()) for i, w in raw.items()}

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.sum += server.weights[i] * update.vectors[0]

    def aggregate(self, server: State) -> None:
        server.x, server.sum = server.sum, 0 * server.sum

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,), step = message.vectors, self.step_size * step_weight(self.step_weights, objective)
        x_i, taken = descend(objective, x, step, message.round, self.local_steps, self.local_epochs)
        return Update((x_i,), taken)
