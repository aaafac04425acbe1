"""FedProx: FedAvg with a proximal term mu/2 ||w - x||^2 in the local problems; slow clients may train for fewer epochs.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
arXiv 1812.06127, Algorithm 2. The paper samples with probability p_k and takes the plain mean (`sampling: samples`).
The released code samples uniformly without replacement, with weights s_i (`weights: samples`).
The local problem is solved with a number of steps or epochs, not to a given inexactness gamma.
Stragglers are those of the released code: they train for 1 to E - 1 epochs, drawn anew each round, and answer in time.
There, FedAvg drops them, which is a `cohort` of that many fewer clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.rounds import OptimizedAveraging
from mpifl.config.types import Fraction, NonNegativeFloat
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector
from mpifl.rng import stream


@dataclass(frozen=True)
class FedProx(OptimizedAveraging):
    """x <- sum over the round's members of a_i x_i, x_i near argmin_w f_i(w) + mu/2 ||w - x||^2"""

    mu: NonNegativeFloat = 0.1
    """weight of the proximal term (mu); 0 is FedAvg"""
    drop_percent: Fraction = 0.0
    """fraction of a round's members that run only 1 to local_epochs - 1 epochs (name of the released code)"""

    needs = {"a proximal term": "mu"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop_percent and (self.local_epochs or 0) < 2:
            wrong = "stragglers of drop_percent run fewer epochs"
            raise ConfigError("local_epochs", self.local_epochs, wrong, "at least 2")

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(**vars(super().init_server(x0, clients)), seed=clients.seed, round=0)

    def begin_round(self, server: State, members: list[int]) -> None:
        super().begin_round(server, members)
        rng = stream(server.seed, "stragglers", round=server.round)
        E, unique = self.local_epochs or 0, list(server.weights)
        server.epochs = dict.fromkeys(unique, E)
        for i in rng.permutation(unique)[round(len(unique) * (1 - self.drop_percent)) :].tolist():
            server.epochs[i] = int(rng.integers(1, E))
        server.round += 1

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (server.epochs[i],) if self.drop_percent else ())

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,) = message.vectors
        epochs = int(message.numbers[0]) if message.numbers else None
        x_i, steps, _ = self.solve(objective, x, message.round, epochs=epochs, weight=self.mu, centre=x)
        return Update((x_i,), steps)
