"""ProxSkip (Scaffnew): gradient descent on the clients with control variates h_i; communication with probability p.

Mishchenko, Malinovsky, Stich, Richtarik, "ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication
Acceleration! Finally!", ICML 2022, arXiv 2202.09357, Algorithm 2 (Scaffnew).
The server draws in advance the number k of local steps to the next communication, Geometric(p), and sends it with x:
one coin for all clients. A client updates h_i when it receives x with the next message. Theory: gamma = 1/L and
p = 1/sqrt(kappa). `period` has k = Q always and p = 1/Q: VRL-SGD. `step_weights` and `local_epochs` are fixed, see
`GradientTracking`; `local_steps` is k.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.rounds import GradientTracking
from mpifl.config.types import PositiveFraction, PositiveInt
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector
from mpifl.rng import stream


@dataclass(frozen=True)
class ProxSkip(GradientTracking):
    """xh_i <- x_i - gamma (g_i(x_i) - h_i);  with probability p: x = mean xh_i,  h_i <- h_i + (p/gamma) (x - xh_i)"""

    probability: PositiveFraction = 1.0
    """probability that a local step is followed by a communication, one draw for all clients (p)"""
    period: PositiveInt = 1
    """instead of probability: local steps from one communication to the next (Q); p is then 1/Q"""
    local_steps: PositiveInt = field(default=1, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probability < 1 and self.period > 1:
            raise ConfigError("period", self.period, "communication is either random, by probability, or periodic", "1")
        if momentum := getattr(self.solver, "momentum", 0.0):
            raise ConfigError("solver.momentum", momentum, "p/gamma in h_i is for plain steps", "0")

    @property
    def p(self) -> float:
        """The probability of a communication after a local step."""
        return 1 / self.period if self.period > 1 else self.probability

    def init_server(self, x0: Vector, clients: Clients) -> State:
        counts = {"resets": 0, "reset_pending": 0, "contacts": 0, "k": 1}
        return State(x=x0.copy(), sum=0 * x0, samples=clients.samples, seed=clients.seed, **counts)

    def begin_round(self, server: State, members: list[int]) -> None:
        super().begin_round(server, members)
        coin = stream(server.seed, "communication", round=server.contacts)
        server.k = self.period if self.period > 1 else int(coin.geometric(self.p))
        server.contacts += 1

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (server.resets, server.k), work=server.k)

    def init_client(self, x0: Vector, i: int) -> State:
        return State(x=x0, delta=0 * x0, resets=0)  # delta: h_i

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,), (resets, k) = message.vectors, message.numbers
        self.track(client, resets, self.p / self.client_step(objective) * (x - client.x))
        client.x, steps, _ = self.solve(objective, x, message.round, steps=int(k), shift=-client.delta)
        return Update((client.x,), steps)
