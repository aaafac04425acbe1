"""FedDANE: one phase averages gradients, the next minimises local losses whose gradient is corrected to that average.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "FedDANE: A Federated Newton-Type Method", Asilomar 2019, arXiv 2001.01920,
Algorithm 2. Each phase is one version of the server, two are one update.
Text: `sampling: samples` (with probability s_i/S, with replacement, plain mean). Released code: `weights: samples`,
`sampling: uniform`, `same_set: true` (it draws both phases with the same seed, where the text has another subset).
A client that is drawn twice trains once and has twice the weight; a client in both sets is not sent w again.
The two variants of the discussion section are printed without formulas. `decay`: the correction is multiplied by
gamma_t = correction * decay^t. `variant: pipelined`: one phase, with the mean gradient of the previous round as g_t; no
correction in the first round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.local_solver import Gd
from mpifl.algorithms.common.proximal import norm
from mpifl.algorithms.common.rounds import BOTH, GRADIENT, SOLVE, TwoPhaseRounds
from mpifl.algorithms.participation import CohortSampler
from mpifl.config.types import Fraction, NonNegativeFloat, PositiveFloat, check_length
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector

Variant = Literal["plain", "pipelined", "pipelined-memory"]


@dataclass(frozen=True)
class FedDANE(TwoPhaseRounds):
    """w <- mean of w_k, each about argmin_v F_k(v) + gamma_t <g_t - grad F_k(w), v - w> + mu/2 ||v - w||^2"""

    mu: NonNegativeFloat | list[NonNegativeFloat] = 0.0
    """weight of the proximal term (mu), or that of each client (mu_k)"""
    accuracy: PositiveFloat | None = None
    """gamma of Definition 1: with gd and mu above 0 the local steps end where w_k is gamma-inexact; null: they do
    not end before"""
    same_set: bool = False
    """whether the second phase has the members of the first (S'_t = S_t), as in the released code"""
    correction: NonNegativeFloat = 1.0
    """factor on the correction g_t - grad F_k(w) in the first update (gamma_0); 0: FedProx"""
    decay: Fraction = 1.0
    """factor on gamma_t from each update to the next (delta); below 1: the decayed variant"""
    variant: Variant = "plain"
    """plain: two phases; pipelined: one, g_t of the previous round; pipelined-memory: also grad F_k as last sent"""

    vectors_up = 2  # `plain` sends one in each phase
    vectors_down = 2
    message_fields = ("w",)
    needs = {"a gradient": ""}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.same_set and self.variant != "plain":
            raise ConfigError("same_set", True, "a pipelined round has one phase", "false")
        if self.accuracy is not None and not isinstance(self.solver, Gd):
            raise ConfigError(
                "accuracy", self.accuracy, "only solver: gd computes the full gradient", "null, or that solver"
            )
        if self.accuracy is not None and not np.all(self.mu):
            raise ConfigError("accuracy", self.accuracy, "without mu the error is not known", "null", "or mu above 0")

    def validate(self, clients: int) -> None:
        super().validate(clients)
        check_length("mu", self.mu, clients)

    # -- server --------------------------------------------------------------------------------------------------------
    def participation(self, clients: Clients, seed: int) -> CohortSampler:
        return replace(super().participation(clients, seed), repeat=2 if self.same_set else 1)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return self.two_phase_state(x0, clients, GRADIENT if self.variant == "plain" else BOTH, t=0)

    def message(self, server: State, i: int) -> Message:
        gamma = 0.0 if server.phase == BOTH and server.t == 0 else self.correction * self.decay**server.t
        if server.phase == GRADIENT:
            vectors: tuple[Vector, ...] = (server.x,)
        else:
            vectors = (server.g,) if i in server.has_x else (server.x, server.g)
        return Message(vectors, (server.phase, gamma))

    def aggregate(self, server: State) -> None:
        server.t += int(server.phase != GRADIENT)
        super().aggregate(server)

    # -- client --------------------------------------------------------------------------------------------------------
    def init_client(self, x0: Vector, i: int) -> State:
        own = {"mu": self.mu[i]} if isinstance(self.mu, Sequence) else {}
        return State(w=x0, g=0 * x0, known=False, **own)  # known: whether g is a gradient yet

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (phase, gamma), vectors, last, known = message.numbers, message.vectors, client.g, client.known
        if phase == GRADIENT or len(vectors) == 2:
            client.w, client.g, client.known = vectors[0], objective.gradient(vectors[0]), True
        if phase == GRADIENT:
            return Update((client.g,), 0)
        if self.variant != "pipelined-memory":
            last = client.g
        elif not known:
            gamma = 0.0  # no earlier gradient
        shift = gamma * (vectors[-1] - last)
        w, accuracy = client.w, self.accuracy or 0.0
        mu = client.mu if isinstance(self.mu, Sequence) else self.mu

        def inexact(v: Vector, gradient: Vector) -> bool:
            """||v - w_k*|| <= gamma ||w_k* - w||, as the error of v is at most ||gradient||/mu, f_k being convex."""
            return not (1 + accuracy) * norm(gradient) / mu > accuracy * norm(v - w)

        stop = inexact if accuracy else None
        w_k, steps, _ = self.solve(objective, w, message.round, shift=shift, weight=mu, centre=w, stop=stop)
        return Update((w_k,) if phase == SOLVE else (w_k, client.g), steps)
