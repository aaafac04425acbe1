"""AREA: asynchronous exact averaging; every client's last model counts 1/n in the global one, however often it arrives.

Iakovidou and Kim, "Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under Arbitrary Delays",
arXiv 2405.10123 v3, Algorithm 1.
The paper adds m_i/n to u at each upload; here u sums m_i and is divided by n once, when it is applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local import Local
from mpifl.algorithms.common.participation import Trigger
from mpifl.algorithms.common.schedules import Constant, Convex, StronglyConvex
from mpifl.errors import choice
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Area(Local):
    """x_s + u/n = (1/n) sum_i y_i after every event: nothing that a client sent is ever lost or counted twice."""

    step_size: float = 1.0
    """local step alpha; the constant schedule's value"""
    step_weights: str = "samples"
    """factor on client i's step: samples s_i/S, uniform 1/n, relative n s_i/S, one 1"""
    step_schedule: Constant | StronglyConvex | Convex = field(default_factory=Constant)
    """alpha_k over the server's events k: constant, strongly-convex (Theorem 7) or convex (Theorem 8)"""
    trigger: Trigger = field(default_factory=lambda: Trigger(every=1))
    """when the server adds u/n to x_s (Remark 2)"""
    reply: str = "before"
    """a sender is answered before (as printed) or after the aggregation it triggers, or deferred to the next one"""
    first_contact: str = "compute"
    """compute (as printed): a client computes from the start; zero: its first upload is zero (the proof's form)"""
    output: str = "last"
    """the model that is evaluated and stored: last, x_s; average, of x_s over all events (Theorem 8)"""

    increment_of = ("y",)

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("first_contact", self.first_contact, ("compute", "zero"))
        choice("output", self.output, ("last", "average"))

    def init_server(self, x0: Vector, clients: Clients) -> State:
        alpha = self.step_schedule.bind(self.step_size, self.local_steps, self.trigger, clients)
        return State(x=x0.copy(), u=0 * x0, k=0, n=clients.n, alpha=np.array(alpha), past=0 * x0, since=0)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (float(server.alpha[0] / (server.k * server.alpha[1] + 1)),))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.u += update.vectors[0]
        self._count(server)

    def aggregate(self, server: State) -> None:
        if self.output == "average":
            server.past += server.since * server.x
            server.since = 0
        server.x = server.x + server.u / server.n
        server.u[:] = 0
        self._count(server)

    def _count(self, server: State) -> None:
        """Uploads and aggregations are events alike; x_s counts once for each in the average of Theorem 8."""
        server.k += 1
        server.since += 1

    def model(self, server: State) -> Vector:
        if self.output == "last" or not server.k:
            return server.x
        return (server.past + server.since * server.x) / server.k

    def init_client(self, x0: Vector, i: int) -> State:
        return State(y=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x_s,), (alpha,) = message.vectors, message.numbers
        none = 0 if self.first_contact == "zero" and message.round == 0 else None
        x, steps, _ = self.solve(objective, x_s, message.round, step=self.step(objective, alpha), steps=none)
        m, client.y = x - client.y, x
        return Update((m,), steps)
