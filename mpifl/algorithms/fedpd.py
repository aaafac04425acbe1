"""FedPD: every client minimises its own augmented Lagrangian and keeps a dual variable; rounds may skip communication.

Zhang, Hong, Dhople, Yin, Liu, "FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data", IEEE
Transactions on Signal Processing 2021, arXiv 2005.11418, Algorithm 2, with the local oracles of Algorithms 3 and 4:
Oracle I is `solver: gd` or `sgd` with `step_size` eta_1, Oracle II is `solver: sarah` with `gamma` and `refresh`.

The server draws in advance the number k of rounds to the next communication, and sends k with the model: a skipped
round sends no message at all. p = 1, without any communication, is refused.
Departures, where the print is in error: the mean is of x_{0,i}^+, not of the x_{0,i}^{r+1} that it is to produce;
Oracle II linearises f_i around the current point x^q and uses client i's own Lagrangian, dual and initial point.
The closed form of Oracle II equals a step eta gamma/(eta + gamma) along the gradient of L_i, and is computed as that,
with any solver. The limit gamma -> infinity, `step_size` = `eta`, is x_{0,i} - eta (g + lambda_i) of the released code.
A rollback of x_i and lambda_i needs no correction: lambda_i depends on one round only, and the mean of all lambda_i is
exact again after two.
Oracle I takes Q steps, or fewer if `gd` reaches eps_1. `weights: samples` solves min sum (s_i/S) f_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import Gd, LocalSolution, Sarah
from mpifl.algorithms.common.rounds import SynchronousRounds
from mpifl.config.types import Bounds, NonNegativeFloat, PositiveFloat, PositiveInt
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector
from mpifl.rng import stream


@dataclass(frozen=True)
class FedPD(SynchronousRounds):
    """x_i ~ argmin L_i = f_i + <lambda_i, . - x_0> + ||. - x_0||^2/(2 eta); x_0 <- mean of x_i + eta lambda_i"""

    eta: PositiveFloat = 1.0
    """1/eta is the weight of the proximal term and the step of lambda_i; theory: below (sqrt 5 - 1)/(4 L)"""
    gamma: PositiveFloat | None = None
    """Oracle II: a local step is eta gamma/(eta + gamma) (gamma); null: step_size, here eta_1"""
    refresh: PositiveInt = 1
    """Oracle II (sarah): rounds from one full gradient to the next (I)"""
    accuracy: NonNegativeFloat | None = None
    """Oracle I (gd): the local steps of a round end when ||grad L_i||^2 is at most this (eps_1)"""
    skip: Annotated[float, Bounds(at_least=0, below=1)] = 0.0
    """probability that a round has no communication, one draw for all clients (p)"""
    period: PositiveInt = 1
    """instead of skip: rounds from one communication to the next (R)"""

    needs = {"a proximal term": "", "a gradient": "accuracy"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.skip and self.period > 1:
            raise ConfigError(
                "period", self.period, "rounds are skipped either at random, by skip, or periodically", "1"
            )
        if self.accuracy is not None and not isinstance(self.solver, Gd):
            raise ConfigError(
                "accuracy", self.accuracy, "only solver: gd computes the full gradient", "null, or that solver"
            )
        if self.gamma and self.step_weights != "one":
            raise ConfigError("step_weights", self.step_weights, "the closed form of gamma has no such factor", "one")
        if self.refresh > 1 and not isinstance(self.solver, Sarah):
            raise ConfigError(
                "refresh", self.refresh, "only solver: sarah keeps a gradient estimate", "1, or that solver"
            )

    def needs_plain_steps(self) -> str:
        return "with gamma a local step has the closed form of Oracle II" if self.gamma else ""

    # -- server --------------------------------------------------------------------------------------------------------
    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), sum=0 * x0, samples=clients.samples, seed=clients.seed, contacts=0, k=1)

    def begin_round(self, server: State, members: list[int]) -> None:
        super().begin_round(server, members)
        coin = stream(server.seed, "communication", round=server.contacts)
        server.k = int(coin.geometric(1 - self.skip)) if self.skip else self.period
        server.contacts += 1

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (server.k,), work=server.k)

    # -- client --------------------------------------------------------------------------------------------------------
    def init_client(self, x0: Vector, i: int) -> State:
        return State(x=x0, lam=0 * x0, r=0)  # r: rounds so far, communicated or not; train adds g if refresh > 1

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x_0,), eta, taken = message.vectors, self.eta, 0
        for _ in range(int(message.numbers[0])):
            client.x, steps, g = self.oracle(client, x_0, objective)
            client.lam = client.lam + (client.x - x_0) / eta
            x_0 = client.x + eta * client.lam
            client.r += 1
            if self.refresh > 1:
                client.g = g
            taken += steps
        return Update((x_0,), taken)

    def oracle(self, client: State, x_0: Vector, objective: Objective) -> LocalSolution:
        """x_i ~ argmin L_i(., x_{0,i}, lambda_i), started at the old x_i; with sarah also g ~ grad f_i(x_i)."""
        eta, eps_1 = self.eta, self.accuracy
        step = self.client_step(objective, eta / (1 + eta / self.gamma) if self.gamma else None)
        estimate = client.g if client.r % self.refresh else None
        stop = None if eps_1 is None else lambda y, gradient: float(gradient @ gradient) <= eps_1
        L_i = {"shift": client.lam, "weight": 1 / eta, "centre": x_0}
        return self.solve(objective, client.x, client.r, step=step, **L_i, stop=stop, initial_estimate=estimate)
