"""FedAsync: each arriving model is mixed into the global model, with a weight that decreases with its staleness.

Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019, arXiv 1903.03934, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining
from mpifl.algorithms.common.vectors import mix
from mpifl.algorithms.participation import Trigger
from mpifl.config.types import NonNegativeFloat, PositiveFraction
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class FedAsync(LocalTraining):
    """x <- (1 - a) x + a w with a = mixing * s(tau)"""

    mixing: PositiveFraction = 0.6
    """weight alpha of an arriving model that is not stale"""
    proximal: NonNegativeFloat = 0.005
    """weight rho of the local regulariser rho/2 ||w - base||^2"""
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    """s(tau): constant 1; polynomial (tau + 1)^-a; hinge 1 up to b, then 1/(a (tau - b) + 1)"""
    staleness_a: NonNegativeFloat = 0.5
    """a of s(tau); 10 is usual for hinge"""
    staleness_b: NonNegativeFloat = 4.0
    """b of the hinge"""
    reply: Literal["before", "after"] = "after"
    """reply to a sender before or after its model is mixed in"""

    needs = {"a proximal term": "proximal"}

    def aggregation_trigger(self) -> Trigger:
        return Trigger(every=1)

    def update_weights(self, clients: Clients) -> float:
        return self.mixing

    def discount(self, tau: int) -> float:
        """s(tau), 1 for tau = 0 and non-increasing."""
        a, b = self.staleness_a, self.staleness_b
        if self.staleness == "constant" or (self.staleness == "hinge" and tau <= b):
            return 1.0
        return (tau + 1.0) ** -a if self.staleness == "polynomial" else 1 / (a * (tau - b) + 1)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), mixed=x0)

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        a = self.mixing * self.discount(staleness)
        server.mixed = mix(server.x, a, update.vectors[0])

    def aggregate(self, server: State) -> None:
        server.x = server.mixed

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,) = message.vectors
        w, steps, _ = self.solve(objective, base, message.round, weight=self.proximal, centre=base)
        return Update((w,), steps)
