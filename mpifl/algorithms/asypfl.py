"""AsyPFL: federated averaging in which slow clients work longer, beside personal models tied to the shared one.

Ma, Lu, Li, Cui, AsyPFL, Algorithm 1 and rule (4). The paper names no venue and no released code; it gives no value of
any hyper-parameter. What it leaves open:

- tau of the rates is the server's version at the moment of sending, one for a whole contact.
- h is the diagonal of the empirical Fisher information at omega_k. It costs a pass over all rows, so it is computed
  anew only every `fisher_steps` local steps; 1 is what Algorithm 1 prints.
- The elastic term ties beta_k to the client's own omega_k, as in Algorithm 1; objective (2) has the optimum omega*.
- dT_k^g is the time of a local step, or of an epoch where E counts these; dT_k^c is what is left of the contact (in
  real time with the wait for other clients of the rank). pi_k is 1 until k is measured, and bounded by `most`. 1e-9 is
  added before rounding down, so that a ratio of 3 less its rounding error is 3.

beta_k steps along plain gradients on the rows of omega_k's steps, whatever the local solver of omega_k is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.indicators import Decayed, Equal, Indicators, Measured, Theorem2
from mpifl.algorithms.common.local import Local, update_buffers
from mpifl.algorithms.common.participation import CohortSampler, Trigger
from mpifl.errors import ConfigError, at_least, choice
from mpifl.objective import Objective, Vector, clone


@dataclass(frozen=True)
class AsyPFL(Local):
    """omega <- omega + sum p^k (omega_k - omega^{r_k}); beta_k: F_k(beta) + lambda/2 (beta - omega_k)' diag h (same)"""

    personal_step: float | None = None
    """step of the personal model (delta); null: step_size"""
    elastic: float = 1.0
    """weight of the elastic term (lambda); 0: purely local personal models"""
    fisher_steps: int | None = None
    """local steps after which h is computed anew; 1: at every step, as printed; null: once a contact"""
    step_schedule: Decayed | Theorem2 = field(default_factory=Decayed)
    """factor on both steps over the server's versions tau: decayed 1/(1 + gamma tau), or theorem-2"""
    mode: str = "asynchronous"
    """asynchronous: the server steps at every upload; synchronous: when all clients have answered"""
    indicators: Indicators = field(default_factory=Measured)
    """pi_k of E_k = pi_k E, E being local_steps or local_epochs: measured, theorem-4, equal, or given"""

    personal_models: ClassVar[bool] = True
    reply_policies = ("after", "deferred")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("personal_step", self.personal_step, 0, strict=True)
        at_least("elastic", self.elastic, 0)
        at_least("fisher_steps", self.fisher_steps, 1)
        choice("mode", self.mode, ("asynchronous", "synchronous"))

    def validate(self, clients: int) -> None:
        super().validate(clients)
        self.indicators.first(clients)
        if self.mode == "synchronous" and type(self.indicators) is not Equal:
            text = "equal: pi_k balances unequal rates, and in rounds all are equal"
            raise ConfigError("indicators", self.indicators.name, text)
        if self.local_epochs is not None and "theorem" in self.indicators.name + self.step_schedule.name:
            raise ConfigError("local_epochs", self.local_epochs, "null: the theorems count E in local steps")

    def participation(self, clients: Clients, seed: int) -> CohortSampler | None:
        return CohortSampler(clients.n, clients.n, seed) if self.mode == "synchronous" else None

    def aggregation_trigger(self) -> Trigger | None:
        return Trigger(every=1) if self.mode == "asynchronous" else None

    def reply_policy(self) -> str:
        return "after" if self.mode == "asynchronous" else "deferred"

    def needs_timings(self) -> bool:
        return self.indicators.timed

    @property
    def E(self) -> int:
        return self.local_steps if self.local_epochs is None else self.local_epochs

    def init_server(self, x0: Vector, clients: Clients) -> State:
        unknown = np.full(clients.n, np.nan)
        pi = self.indicators.first(clients.n)
        return State(x=x0.copy(), sum=0 * x0, p=clients.shares, pi=pi, g=unknown.copy(), c=unknown)

    def message(self, server: State, i: int) -> Message:
        pi_k, longest = float(server.pi[i]), float(server.pi.max()) * self.E
        return Message((server.x,), (pi_k * self.E, *self.step_schedule.bind(self.step_size, longest)), work=int(pi_k))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.sum += float(server.p[i]) * update.vectors[0]
        server.g[i], server.c[i] = update.compute / update.numbers[0], update.exchange
        server.pi = self.indicators.after(server.pi, server.p, server.g, server.c, self.E)

    def aggregate(self, server: State) -> None:
        server.x, server.sum = server.x + server.sum, 0 * server.sum

    def init_client(self, x0: Vector, i: int) -> State:
        return State(beta=clone(x0))

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (omega,), (E_k, eta, gamma) = message.vectors, message.numbers
        decay = 1 / (1 + gamma * message.version)
        delta = decay * (eta if self.personal_step is None else self.personal_step)
        beta, h, taken = clone(client.beta), None, 0

        def personalise(before: Vector, omega_k: Vector, rows: object) -> None:
            nonlocal beta, h, taken
            gradient = objective.gradient(beta, rows)
            if self.elastic:
                if taken % (self.fisher_steps or inf) == 0:
                    h = objective.fisher(omega_k)
                gradient += self.elastic * (beta - omega_k) * h
            beta -= delta * gradient
            update_buffers(objective, beta)
            taken += 1

        omega_k, steps, _ = self.solve(
            objective, omega, message.round, step=self.step(objective, decay * eta), beside=personalise,
            steps=int(E_k), epochs=None if self.local_epochs is None else int(E_k),
        )  # fmt: skip
        client.beta = beta
        return Update((omega_k - omega,), steps, (E_k,))

    def personal_model(self, client: State) -> Vector:
        return client.beta
