"""FedProx: FedAvg whose clients are held near the global model by mu/2 ||w - x||^2; slow ones may do less work.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
arXiv 1812.06127, Algorithm 2. The paper samples with probability p_k and averages plainly (`sampling: samples`); its
released code samples uniformly without replacement and weighs by samples (`weights: samples`).
The local problem is solved by a number of steps or epochs, not to a given inexactness gamma.
Stragglers are those of the released code: they run 1 to E - 1 epochs, drawn anew each round, and answer in time. There,
FedAvg drops them: that is a `cohort` of that many fewer clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.rounds import Averaged
from mpifl.errors import ConfigError, at_least
from mpifl.objective import Objective, Vector
from mpifl.rng import stream


@dataclass(frozen=True)
class FedProx(Averaged):
    """x <- sum over the round's members of a_i x_i, x_i near argmin_w f_i(w) + mu/2 ||w - x||^2"""

    mu: float = 0.1
    """weight of the proximal term (mu); 0 is FedAvg"""
    drop_percent: float = 0.0
    """fraction, 0 to 1, of a round's members that run only 1 to local_epochs - 1 epochs (the released code's name)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("mu", self.mu, 0)
        if not 0 <= self.drop_percent <= 1:
            raise ConfigError("drop_percent", self.drop_percent, "a fraction from 0 to 1")
        if self.drop_percent and (self.local_epochs or 0) < 2:
            raise ConfigError("local_epochs", self.local_epochs, "at least 2 epochs with drop_percent: some run fewer")

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
