"""FedAsync: every arriving model is mixed into the global one at once, the less the staler it is.

Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019, arXiv 1903.03934, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local import Local
from mpifl.algorithms.common.participation import Trigger
from mpifl.errors import ConfigError, at_least, choice
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class FedAsync(Local):
    """x <- (1 - a) x + a w with a = mixing * s(tau)"""

    mixing: float = 0.6
    """weight alpha of an arriving model that is not stale, in (0, 1]"""
    proximal: float = 0.005
    """weight rho of the local regulariser rho/2 ||w - base||^2"""
    staleness: str = "polynomial"
    """s(tau): constant 1; polynomial (tau + 1)^-a; hinge 1 up to b, then 1/(a (tau - b) + 1)"""
    staleness_a: float = 0.5
    """a of s(tau); 10 is usual for hinge"""
    staleness_b: float = 4.0
    """b of the hinge"""
    reply: str = "after"
    """a sender is answered before or after its own model is mixed in"""

    reply_policies = ("before", "after")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mixing <= 1:
            raise ConfigError("mixing", self.mixing, "a number above 0 and up to 1")
        for key in ("proximal", "staleness_a", "staleness_b"):
            at_least(key, getattr(self, key), 0)
        choice("staleness", self.staleness, ("constant", "polynomial", "hinge"))

    def aggregation_trigger(self) -> Trigger:
        return Trigger(every=1)

    def discount(self, tau: int) -> float:
        """s(tau), 1 for a fresh model and never increasing."""
        a, b = self.staleness_a, self.staleness_b
        if self.staleness == "constant" or (self.staleness == "hinge" and tau <= b):
            return 1.0
        return (tau + 1.0) ** -a if self.staleness == "polynomial" else 1 / (a * (tau - b) + 1)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), mixed=x0)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        a = self.mixing * self.discount(staleness)
        server.mixed = (1 - a) * server.x + a * update.vectors[0]

    def aggregate(self, server: State) -> None:
        server.x = server.mixed

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (base,) = message.vectors
        w, steps, _ = self.solve(objective, base, message.round, weight=self.proximal, centre=base)
        return Update((w,), steps)
