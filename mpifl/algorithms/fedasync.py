"""FedAsync: every arriving model is mixed into the global one at once, the less the staler it is.

Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019, arXiv 1903.03934, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.algorithms.base import Algorithm, Clients, Message, Objective, State, Update, Vector
from mpifl.algorithms.local import check_step_weights, descend, step_weight
from mpifl.algorithms.participation import Trigger
from mpifl.errors import ConfigError, at_least, choice


@dataclass(frozen=True)
class FedAsync(Algorithm):
    """x <- (1 - a) x + a w with a = mixing * s(tau)"""

    step_size: float = 0.1
    """local step (gamma)"""
    step_weights: str = "one"
    """factor on client i's step: samples s_i/S, uniform 1/n, relative n s_i/S, one 1"""
    local_steps: int = 1
    """local SGD steps a contact (H)"""
    local_epochs: int | None = None
    """passes over the client's rows instead of local_steps"""
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

    replies = ("before", "after")

    def __post_init__(self) -> None:
        at_least("step_size", self.step_size, 0, strict=True)
        at_least("local_steps", self.local_steps, 1)
        at_least("local_epochs", self.local_epochs, 1)
        if not 0 < self.mixing <= 1:
            raise ConfigError("mixing", self.mixing, "a number above 0 and up to 1")
        for key in ("proximal", "staleness_a", "staleness_b"):
            at_least(key, getattr(self, key), 0)
        choice("staleness", self.staleness, ("constant", "polynomial", "hinge"))
        check_step_weights(self.step_weights)

    def when(self) -> Trigger:
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
        (base,), step = message.vectors, self.step_size * step_weight(self.step_weights, objective)
        steps, epochs = self.local_steps, self.local_epochs
        w, taken = descend(objective, base, step, message.round, steps, epochs, anchor=self.proximal)
        return Update((w,), taken)
