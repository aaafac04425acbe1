"""AREA: asynchronous exact averaging; each client's last model has weight 1/n in the global model, at any arrival rate.

Iakovidou and Kim, "Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under Arbitrary Delays",
arXiv 2405.10123 v3, Algorithm 1.
The paper adds m_i/n to u at each upload; here u sums m_i and is divided by n once, when it is applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import LocalTraining, StepWeights
from mpifl.algorithms.common.step_schedules import Constant, Convex, StronglyConvex
from mpifl.algorithms.common.vectors import add, mean_step, zeros
from mpifl.algorithms.participation import Reply, Trigger
from mpifl.config.types import PositiveFloat
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Area(LocalTraining):
    """x_s <- x_s + (1/n) sum of the increments y_i - old y_i since the last aggregation"""

    step_size: PositiveFloat = 1.0
    """local step alpha; the constant schedule's value"""
    step_weights: StepWeights = "samples"
    """factor on client i's step: samples s_i/S, uniform 1/n, relative n s_i/S, one 1"""
    step_schedule: Constant | StronglyConvex | Convex = field(default_factory=Constant)
    """alpha_k over the server's events k: constant, strongly-convex (Theorem 7) or convex (Theorem 8)"""
    trigger: Trigger = field(default_factory=lambda: Trigger(every=1))
    """when the server adds u/n to x_s (Remark 2)"""
    reply: Reply = "before"
    """reply to a sender before (as printed) or after the aggregation it triggers, or deferred to the next one"""
    first_contact: Literal["compute", "zero"] = "compute"
    """compute (as printed): a client trains from its first contact on; zero: its first upload is zero (as proven)"""
    output: Literal["last", "average"] = "last"
    """the model that is evaluated and stored: last, x_s; average, of x_s over all events (Theorem 8)"""

    increment_of = ("y",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.step_schedule, Constant) and self.step_weights != "one":
            wrong = f"step_schedule={self.step_schedule.name} loses its rate, which is for clients with equal steps"
            raise ConfigError("step_weights", self.step_weights, wrong, "one")

    def needs_plain_steps(self) -> str:
        return "" if isinstance(self.step_schedule, Constant) else "the theorem of step_schedule is for plain steps"

    def update_weights(self, clients: Clients) -> float | None:
        return 1 / clients.n if isinstance(self.step_schedule, Constant) else None

    def init_server(self, x0: Vector, clients: Clients) -> State:
        a, b = self.step_schedule.coefficients(self.step_size, self.local_steps, self.trigger, clients)
        # k counts uploads and aggregations; the average of Theorem 8 has one x_s for each of them.
        return State(x=x0.copy(), u=zeros(x0), k=0, n=clients.n, a=float(a), b=float(b), past_sum=0 * x0, events_at_x=0)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (server.a / (server.k * server.b + 1),))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.u = add(server.u, update.vectors[0])
        server.k, server.events_at_x = server.k + 1, server.events_at_x + 1

    def aggregate(self, server: State) -> None:
        if self.output == "average":
            server.past_sum += server.events_at_x * server.x
            server.events_at_x = 0
        server.x, server.u = mean_step(server.x, server.u, server.n), zeros(server.u)
        server.k, server.events_at_x = server.k + 1, server.events_at_x + 1

    def model(self, server: State) -> Vector:
        if self.output == "last" or not server.k:
            return server.x
        return (server.past_sum + server.events_at_x * server.x) / server.k

    def init_client(self, x0: Vector, i: int) -> State:
        return State(y=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x_s,), (alpha,) = message.vectors, message.numbers
        none = 0 if self.first_contact == "zero" and message.round == 0 else None
        x, steps, _ = self.solve(objective, x_s, message.round, step=self.client_step(objective, alpha), steps=none)
        m, client.y = x - client.y, x
        return Update((m,), steps)
