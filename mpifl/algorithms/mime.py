"""MIME: clients take steps of a centralised optimiser whose state only the server updates, once per round.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, "Breaking the Centralized Barrier for Cross-Device Federated
Learning", NeurIPS 2021, arXiv 2008.03606, Algorithm 1 (Mime and MimeLite).
The optimiser is SGD, or SGD with momentum beta: U(g, s) = V(g, s) = (1 - beta) g + beta s. Adam is not implemented.
Mime needs c = mean grad f_k(x) before the local steps, so it has two phases with the same clients, each one version of
the server; the gradients are sent in the first. MimeLite has one phase.
Options that are not printed: steps or epochs, and weights of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import Momentum, Sgd, Solver, Svrg
from mpifl.algorithms.common.rounds import BOTH, GRADIENT, SOLVE, TwoPhaseRounds
from mpifl.algorithms.participation import CohortSampler
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class Mime(TwoPhaseRounds):
    """y <- y - eta U(g_k(y; xi) - g_k(x; xi) + c, s) from y = x, s frozen; x <- mean y, s <- V(c, s)"""

    solver: Solver = field(default=Sgd(), init=False)
    momentum: Momentum = 0.0
    """weight of the server's momentum s in a step (beta); 0: plain SGD, and s is not sent"""
    lite: bool = False
    """MimeLite: y <- y - eta U(g_k(y; xi), s), one phase"""

    vectors_up = 2  # `lite` sends both in one phase, otherwise each phase sends one
    vectors_down = 3  # c and s; a client that is new in the second phase also gets x
    message_fields = ("x",)
    needs = {"a gradient": ""}

    # -- server --------------------------------------------------------------------------------------------------------
    def update_weights(self, clients: Clients) -> np.ndarray | float | None:
        return self.member_weights(clients, 1 - self.momentum)

    def participation(self, clients: Clients, seed: int) -> CohortSampler:
        return replace(super().participation(clients, seed), repeat=1 if self.lite else 2)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        momentum = {"s": 0 * x0} if self.momentum else {}
        return self.two_phase_state(x0, clients, BOTH if self.lite else GRADIENT, **momentum)

    def message(self, server: State, i: int) -> Message:
        x = () if server.phase == SOLVE and i in server.has_x else (server.x,)
        c = (server.g,) if server.phase == SOLVE else ()
        s = (server.s,) if server.phase != GRADIENT and self.momentum else ()
        return Message((*x, *c, *s), (server.phase,))

    def aggregate(self, server: State) -> None:
        solved = server.phase != GRADIENT
        super().aggregate(server)
        if solved and self.momentum:
            server.s = (1 - self.momentum) * server.g + self.momentum * server.s

    # -- client --------------------------------------------------------------------------------------------------------
    def init_client(self, x0: Vector, i: int) -> State:
        return State(x=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        vectors, (phase,), beta = [*message.vectors], message.numbers, self.momentum
        s = vectors.pop() if phase != GRADIENT and beta else None
        if phase != SOLVE or len(vectors) == 2:
            client.x = vectors.pop(0)
        gradient = () if phase == SOLVE else (objective.gradient(client.x),)
        if phase == GRADIENT:
            return Update(gradient, 0)
        y, steps, _ = self.solve(
            objective, client.x, message.round,
            step=(1 - beta) * self.client_step(objective),  # eta U(g, s) = eta (1 - beta) (g + beta/(1 - beta) s)
            shift=None if s is None else beta / (1 - beta) * s,
            solver=self.solver if self.lite else Svrg(),
            initial_estimate=None if self.lite else (client.x, *vectors),
        )  # fmt: skip
        return Update((y, *gradient), steps)
