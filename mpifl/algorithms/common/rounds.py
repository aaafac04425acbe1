"""Synchronous rounds: who works in each, and what each member's answer weighs; shared by all methods that have them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from mpifl.algorithms.base import Clients, State, Update
from mpifl.algorithms.common.local import Local
from mpifl.algorithms.common.participation import CohortSampler
from mpifl.algorithms.common.robust import Aggregation, Mean, combined
from mpifl.errors import ConfigError, at_least, choice
from mpifl.objective import Vector

GRADIENT, SOLVE, BOTH = 1, 2, 3  # phases: what the clients send


@dataclass(frozen=True)
class Synchronous(Local):
    """The base of methods with rounds in which every client works. Their server state has `samples` (n,) int."""

    weights: str = "uniform"
    """weight of a member's answer in a round's mean: uniform, or samples: s_i over the members' sum"""
    reply: str = "deferred"
    """rounds are synchronous: deferred to the next round"""

    sums: ClassVar[tuple[str, ...]] = ("sum",)  # the server's vectors in which a round's weighted means are summed up
    reply_policies = ("deferred",)

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("weights", self.weights, ("uniform", "samples"))

    def participation(self, clients: Clients, seed: int) -> CohortSampler:
        return CohortSampler(clients.n, clients.n, seed)

    def begin_round(self, server: State, members: list[int]) -> None:
        """Sets `server.weights`, {i: weight}: they sum to 1 over the round's members; one drawn twice counts twice."""
        raw = {i: k * (int(server.samples[i]) if self.weights == "samples" else 1) for i, k in Counter(members).items()}
        server.weights = {i: w / sum(raw.values()) for i, w in raw.items()}

    def on_client_lost(self, server: State, i: int) -> None:
        """The others' weights, and what is summed up with them, grow so that the weights sum to 1 again."""
        others = {j: w for j, w in server.weights.items() if j != i}
        whole = sum(others.values())
        server.weights = {j: w / whole for j, w in others.items()}
        for name in self.sums if others else ():
            setattr(server, name, getattr(server, name) / whole)


@dataclass(frozen=True)
class Sampled(Synchronous):
    """The base of methods with rounds of a few clients, drawn anew for each round."""

    cohort: int | None = None
    """members of a round (K); null: all clients"""
    sampling: str = "uniform"
    """how members are drawn: uniform without replacement, or samples: with probability s_i/S, with replacement"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("cohort", self.cohort, 1)
        choice("sampling", self.sampling, ("uniform", "samples"))

    def validate(self, clients: int) -> None:
        super().validate(clients)
        if self.cohort is not None and self.cohort > clients:
            raise ConfigError("cohort", self.cohort, f"at most {clients}, the number of clients")

    def participation(self, clients: Clients, seed: int) -> CohortSampler:
        shares = clients.shares if self.sampling == "samples" else None
        return CohortSampler(self.cohort or clients.n, clients.n, seed, shares)


@dataclass(frozen=True)
class Averaged(Sampled):
    """The base of methods whose clients all start from the server's model, which the mean of theirs then replaces."""

    aggregation: Aggregation = Mean()
    """what the models become: mean; robust to bad clients: median, trimmed-mean (no weights in these), clip, krum"""

    def validate(self, clients: int) -> None:
        super().validate(clients)
        if self.aggregation.counts and self.sampling != "uniform":
            text = f"uniform with {self.aggregation.name}: one that is drawn twice is one member, so m is not known"
            raise ConfigError("sampling", self.sampling, text)
        self.aggregation.check(self.cohort or clients)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), sum=0 * x0, samples=clients.samples, held={})

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        if self.aggregation.whole:
            server.held[i] = update.vectors[0].copy()
        else:
            server.sum += server.weights[i] * update.vectors[0]

    def aggregate(self, server: State) -> None:
        if self.aggregation.whole:
            server.x, server.held = combined(self.aggregation, server.held, server.weights, server.x), {}
        else:
            server.x, server.sum = server.sum, 0 * server.sum


@dataclass(frozen=True)
class Phased(Sampled):
    """The base of methods that average gradients in one phase, and what clients do with that average in the next.

    Their server state has `phase`, one of those above, and `had`: who sent a gradient, and so has x in the phase after.
    The others, new members or readmitted ones, are sent x as well.
    """

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        if server.phase == GRADIENT:
            server.had[i] = True

    def on_client_rollback(self, server: State, i: int) -> None:
        server.had = {j: w for j, w in server.had.items() if j != i}


@dataclass(frozen=True)
class Tracking(Synchronous):
    """The base of methods whose clients keep corrections delta_i that sum to 0 over all clients.

    All must take the same step and the same number of steps, or the sum would not be 0. Where a client goes on from an
    earlier state, the sum is lost; all delta_i then start from 0 again with the next round, and that client's at once:
    the message that it is sent does not follow its last answer. The server's state has `start`, which counts these, and
    `restart`: whether there is one to come. The client's has `start`, -1 where it went on so, and `delta`.
    """

    step_weights: str = field(default="one", init=False)
    local_epochs: int | None = field(default=None, init=False)

    def begin_round(self, server: State, members: list[int]) -> None:
        super().begin_round(server, members)
        server.start, server.restart = server.start + server.restart, 0

    def on_client_rollback(self, server: State, i: int) -> None:
        server.restart = 1

    def on_rollback(self, client: State) -> None:
        client.start = -1

    def track(self, client: State, start: float, change: Vector) -> None:
        """delta_i <- delta_i + change, or 0 where all start again."""
        client.delta = client.delta + change if start == client.start else 0 * change
        client.start = int(start)
