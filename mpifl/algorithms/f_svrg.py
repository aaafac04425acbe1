"""F-SVRG: one phase averages full gradients; in the next every client takes SVRG steps that use the average.

Konecny, McMahan, Ramage, Richtarik, "Federated Optimization: Distributed Machine Learning for On-Device Intelligence",
arXiv 1610.02527, Algorithm 3 (naive federated SVRG). Each phase is one version of the server, two are one update.
Options that are not printed: a cohort, the same in both phases; steps or epochs, and weights of the mean.
The paper's Algorithm 4 (steps by s_i, the scalings S_k and A of sparse features) is not implemented.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import Solver, Svrg
from mpifl.algorithms.common.rounds import GRADIENT, TwoPhaseRounds
from mpifl.algorithms.participation import CohortSampler
from mpifl.objective import Objective, Vector


@dataclass(frozen=True)
class FSVRG(TwoPhaseRounds):
    """g = mean grad f_k(x); every client: y <- y - eta (g_k(y; xi) - g_k(x; xi) + g) from y = x; x <- mean y"""

    solver: Solver = field(default=Svrg(), init=False)

    vectors_up = 1  # each phase sends one
    vectors_down = 2  # each phase sends one; a client that is new in the second phase gets two
    message_fields = ("x",)
    needs = {"a gradient": ""}

    # -- server --------------------------------------------------------------------------------------------------------
    def participation(self, clients: Clients, seed: int) -> CohortSampler:
        return replace(super().participation(clients, seed), repeat=2)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return self.two_phase_state(x0, clients, GRADIENT)

    def message(self, server: State, i: int) -> Message:
        if server.phase == GRADIENT:
            return Message((server.x,), (server.phase,))
        return Message((server.g,) if i in server.has_x else (server.x, server.g), (server.phase,))

    # -- client --------------------------------------------------------------------------------------------------------
    def init_client(self, x0: Vector, i: int) -> State:
        return State(x=x0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        vectors, (phase,) = message.vectors, message.numbers
        if phase == GRADIENT or len(vectors) == 2:
            client.x = vectors[0]
        if phase == GRADIENT:
            return Update((objective.gradient(client.x),), 0)
        y, steps, _ = self.solve(objective, client.x, message.round, initial_estimate=(client.x, vectors[-1]))
        return Update((y,), steps)
