"""MIFA: rounds that do not wait for unavailable clients; the last update of each of them is used again.

Gu, Huang, Zhang, Huang, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability", NeurIPS 2021,
arXiv 2106.04159, Algorithm 1. A, the clients that answer in a round, is the round's cohort; with `period`, all clients
whose updates arrive within a round of this length. A later update is of an older model and counts in its round.
As in the released code the server waits until every client has sent an update: with `fill: wait` the first round has
all clients. The table has the updates over their step factors, and the step takes the present one (`step_schedule`).
The server keeps the n vectors; in the paper's other form the clients keep them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common import update_table
from mpifl.algorithms.common.rounds import SampledRounds
from mpifl.algorithms.participation import CohortSampler, Trigger
from mpifl.config.types import PositiveFloat
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Mifa(SampledRounds):
    """D_i <- x - y_i for the round's members;  x <- x - (1/n) sum over all clients of D_i"""

    weights: Literal["uniform"] = "uniform"
    """weight of a client's D_i: 1/n"""
    fill: Literal["wait", "zero"] = "wait"
    """wait: the first round has all clients, and with `period` no step is taken before all have sent an update; zero:
    D_i is 0 until client i has sent an update: small steps at first"""
    lost: update_table.Lost = "keep"
    """D_i of a client that is lost: keep, it stays in the mean for ever; drop, the mean is over the living"""
    period: PositiveFloat | None = None
    """length of a round (s of the run's clock), which ends without clients that have not answered; null: it waits for
    all members of its cohort"""
    step_schedule: Literal["constant", "inverse"] = "constant"
    """factor on the local step in round t = 0, 1, ..: constant 1, inverse 1/(t + 1)"""

    @property
    def draws_cohorts(self) -> bool:  # type: ignore[override]
        return self.period is None

    sums = ()  # the table's weights do not depend on a round's members

    def validate(self, clients: int) -> None:
        super().validate(clients)
        if self.period and (self.cohort or self.sampling != "uniform"):
            key = "cohort" if self.cohort else "sampling"
            wrong = "with period every client takes part as it answers"
            raise ConfigError(key, getattr(self, key), wrong, "null" if self.cohort else "uniform")

    def aggregation_trigger(self) -> Trigger | None:
        return Trigger(period=self.period) if self.period else None

    def participation(self, clients: Clients, seed: int) -> CohortSampler | None:  # type: ignore[override]
        if self.period:
            return None
        return replace(super().participation(clients, seed), all_first=self.fill == "wait")

    def server_vectors(self, clients: int) -> float:
        return clients

    def init_server(self, x0: Vector, clients: Clients) -> State:
        # Where rounds have cohorts, the first round still has all clients.
        unheard = dict.fromkeys(range(clients.n), True) if self.period and self.fill == "wait" else {}
        server = State(x=x0.copy(), samples=clients.samples, t=0, unheard=unheard)
        update_table.init(server, clients.n)
        return server

    def factor(self, server: State) -> float:
        """The factor on the step in the present round."""
        return 1.0 if self.step_schedule == "constant" else 1 / (server.t + 1)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (self.factor(server),))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.unheard.pop(i, None)
        update_table.replace(server, i, update.vectors[0])

    def aggregate(self, server: State) -> None:
        if server.unheard:
            return
        server.x = server.x - (self.factor(server) / server.n) * server.total
        server.t += 1

    def on_client_lost(self, server: State, i: int) -> None:
        if not self.period:
            super().on_client_lost(server, i)

    def forget_client(self, server: State, i: int) -> None:
        server.unheard.pop(i, None)
        if self.lost == "drop":
            update_table.drop(server, i)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,), (factor,) = message.vectors, message.numbers
        y, steps, _ = self.solve(objective, x, message.round, step=factor * self.client_step(objective))
        return Update(((x - y) / factor,), steps)
