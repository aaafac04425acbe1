"""FedProx as in the released code of FedPD: local steps start at the client's last model."""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.fedprox import FedProx
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class WarmFedProx(FedProx):
    """FedProx whose local steps start at the client's last model; the proximal term is FedProx's."""

    def init_client(self, x0: Vector, i: int) -> State:
        return State(x=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,) = message.vectors
        client.x, steps, _ = self.solve(objective, client.x, message.round, weight=self.mu, centre=x)
        return Update((client.x,), steps)
