"""AsyPFL: federated averaging in which slow clients train longer, and personal models are tied to the shared model.

Ma, Lu, Li, Cui, AsyPFL, Algorithm 1 and rule (4). The paper names no venue and no released code, and
gives no values of hyper-parameters. Where it is not specific:

- tau of Algorithm 1's step eta/(1 + gamma tau) is the server's version when the message is sent, the same for a whole
  contact. Theorem 2's tau is that of eq. (3), with Pi_k = {l pi_k E}: the local steps that the client has taken.
- h is the diagonal of the empirical Fisher information at omega_k. It costs a pass over all rows, so it is recomputed
  only every `fisher_steps` local steps; 1 is as printed in Algorithm 1.
- The elastic term ties beta_k to the client's own omega_k, as in Algorithm 1; objective (2) has the optimum omega*.
- dT_k^g is the time of a local step, or of an epoch if E counts epochs; dT_k^c is the rest of the contact (in real time
  it includes the wait for other clients of the rank). pi_k is 1 until k is measured, and bounded by `most`. 1e-9 is
  added before rounding down, so that a ratio of 3 minus a rounding error gives 3.
- A round of a cohort S^tau adds sum over S^tau of p^k (omega_k - omega), rule (4): its weights are not scaled to sum 1.

beta_k takes plain gradient steps on the rows of omega_k's steps, with every local solver of omega_k.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Literal

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.indicators import Decayed, Equal, Indicators, Measured, Theorem2
from mpifl.algorithms.common.local_solver import LocalTraining, update_buffers
from mpifl.algorithms.common.vectors import axpy
from mpifl.algorithms.participation import CohortSampler, Reply, Trigger, check_cohort
from mpifl.config.types import NonNegativeFloat, PositiveFloat, PositiveInt
from mpifl.errors import ConfigError
from mpifl.objective import Objective, Vector, clone


@dataclass(frozen=True)
class AsyPFL(LocalTraining):
    """omega <- omega + sum p^k (omega_k - omega^{r_k}); beta_k: F_k(beta) + lambda/2 (beta - omega_k)' diag h (same)"""

    personal_step: PositiveFloat | None = None
    """step of the personal model (delta); null: step_size"""
    elastic: NonNegativeFloat = 1.0
    """weight of the elastic term (lambda); 0: purely local personal models"""
    fisher_steps: PositiveInt | None = None
    """local steps after which h is recomputed; 1: at every step, as printed; null: once per contact"""
    step_schedule: Decayed | Theorem2 = field(default_factory=Decayed)
    """decayed: both steps times 1/(1 + gamma tau), tau the server's version; theorem-2: tau the client's local steps"""
    mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    """asynchronous: the server aggregates at every update; synchronous: in rounds of a cohort"""
    cohort: PositiveInt | None = None
    """synchronous: members of a round (S^tau), drawn uniformly; null: all clients"""
    indicators: Indicators = field(default_factory=Measured)
    """pi_k of E_k = pi_k E, E being local_steps or local_epochs: measured, theorem-4, equal, or given"""

    pace = "either"
    personal_models: ClassVar[bool] = True
    needs = {"a gradient": "", "a Fisher diagonal": "elastic"}

    def needs_plain_steps(self) -> str:
        names = self.indicators.name + self.step_schedule.name
        return "the theorems of indicators and step_schedule are for plain steps" if "theorem" in names else ""

    @property
    def draws_cohorts(self) -> bool:  # type: ignore[override]
        return self.mode == "synchronous"

    def validate(self, clients: int) -> None:
        super().validate(clients)
        if self.cohort is not None and self.mode == "asynchronous":
            raise ConfigError(
                "cohort", self.cohort, "without rounds every client takes part", "null, or mode synchronous"
            )
        check_cohort(self.cohort, clients)
        self.indicators.initial(clients)  # raises ConfigError if the indicators do not fit
        if self.mode == "synchronous" and type(self.indicators) is not Equal:
            wrong = "pi_k balances unequal contact rates, which are equal in synchronous rounds"
            raise ConfigError("indicators", self.indicators.name, wrong, "equal")
        if self.local_epochs is not None and "theorem" in self.indicators.name + self.step_schedule.name:
            raise ConfigError("local_epochs", self.local_epochs, "the theorems count E in local steps", "null")

    def update_weights(self, clients: Clients) -> np.ndarray | None:
        return clients.shares if isinstance(self.step_schedule, Decayed) else None

    def participation(self, clients: Clients, seed: int) -> CohortSampler | None:
        return CohortSampler(self.cohort or clients.n, clients.n, seed) if self.mode == "synchronous" else None

    def aggregation_trigger(self) -> Trigger | None:
        return Trigger(every=1) if self.mode == "asynchronous" else None

    def reply_policy(self) -> Reply:
        return "after" if self.mode == "asynchronous" else "deferred"

    def needs_timings(self) -> bool:
        return self.indicators.uses_timings

    @property
    def E(self) -> int:
        """E of E_k = pi_k E: local steps, or epochs."""
        return self.local_steps if self.local_epochs is None else self.local_epochs

    def init_server(self, x0: Vector, clients: Clients) -> State:
        unknown = np.full(clients.n, np.nan)
        pi = self.indicators.initial(clients.n)
        return State(x=x0.copy(), sum=0 * x0, p=clients.shares, pi=pi, g=unknown.copy(), c=unknown)

    def message(self, server: State, i: int) -> Message:
        pi_k, longest = float(server.pi[i]), float(server.pi.max()) * self.E
        eta_gamma = self.step_schedule.coefficients(self.step_size, longest)
        return Message((server.x,), (pi_k * self.E, *eta_gamma), work=int(pi_k))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.sum = axpy(server.sum, float(server.p[i]), update.vectors[0])
        server.g[i], server.c[i] = update.compute / update.numbers[0], update.exchange
        server.pi = self.indicators.updated(server.pi, server.p, server.g, server.c, self.E)

    def aggregate(self, server: State) -> None:
        server.x, server.sum = server.x + server.sum, 0 * server.sum

    def init_client(self, x0: Vector, i: int) -> State:
        return State(beta=clone(x0), steps=0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (omega,), (E_k, eta, gamma) = message.vectors, message.numbers
        delta = eta if self.personal_step is None else self.personal_step
        beta, h, taken = clone(client.beta), None, 0

        def decay(taken: int) -> float:
            return 1 / (1 + gamma * (client.steps + taken if self.step_schedule.by_steps else message.version))

        def personalise(before: Vector, omega_k: Vector, rows: object) -> None:
            nonlocal beta, h, taken
            gradient = objective.gradient(beta, rows)
            if self.elastic:
                if taken % (self.fisher_steps or inf) == 0:
                    h = objective.fisher(omega_k)
                gradient += self.elastic * (beta - omega_k) * h
            beta -= delta * decay(taken) * gradient
            update_buffers(objective, beta)
            taken += 1

        omega_k, steps, _ = self.solve(
            objective, omega, message.round, on_step=personalise,
            step=lambda taken: self.client_step(objective, decay(taken) * eta),
            steps=int(E_k), epochs=None if self.local_epochs is None else int(E_k),
        )  # fmt: skip
        client.beta, client.steps = beta, client.steps + steps
        return Update((omega_k - omega,), steps, (E_k,))

    def personal_model(self, client: State) -> Vector:
        return client.beta
