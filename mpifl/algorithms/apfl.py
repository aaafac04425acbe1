"""APFL: every client mixes the shared model with one of its own, trained on the mixture.

Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, arXiv 2003.13461, Algorithm 1.
The shared models w_i start from w at each contact and are averaged as in FedAvg; v_i and alpha_i stay on the client.
Parameters are mixed, and alpha_i steps along the derivative of f_i(v-bar); released codes mix outputs, or add
0.02 alpha and use a mixture of gradients as the gradient at the mixture. Both models use the same rows in each step.
v_i takes plain gradient steps, with every local solver of w_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.common.local_solver import step_at, update_buffers
from mpifl.algorithms.common.rounds import ModelAveraging
from mpifl.config.types import Fraction
from mpifl.objective import Objective, Vector, clone


@dataclass(frozen=True)
class APFL(ModelAveraging):
    """v_i <- v_i - eta alpha_i g_i(v-bar), v-bar = alpha_i v_i + (1 - alpha_i) w_i; w as in FedAvg"""

    mixing: Fraction = 0.5
    """weight of the client's own model in the mixture (alpha_i; its initial value if it adapts)"""
    adapt: Literal["never", "step", "round"] = "never"
    """when alpha_i takes a gradient step: never, at every local step, or once a round (at the first local step)"""

    personal_models: ClassVar[bool] = True
    needs = {"a gradient": ""}

    def init_client(self, x0: Vector, i: int) -> State:
        return State(v=clone(x0), w=x0, alpha=self.mixing)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        v, alpha, taken = clone(client.v), client.alpha, 0
        step = self._decayed(self.client_step(objective), message.round)

        def personalise(w_i: Vector, after: Vector, rows: object) -> None:
            nonlocal v, alpha, taken
            eta = step_at(step, taken)
            gradient = objective.gradient(alpha * v + (1 - alpha) * w_i, rows)
            slope = float((v - w_i) @ gradient)  # d/d alpha of f_i(v-bar)
            v -= eta * alpha * gradient
            update_buffers(objective, v)
            if self.adapt == "step" or (self.adapt == "round" and not taken):
                alpha = min(max(alpha - eta * slope, 0.0), 1.0)
            taken += 1

        w_i, steps, _ = self.solve(objective, message.vectors[0], message.round, on_step=personalise)
        client.v, client.w, client.alpha = v, w_i, alpha
        return Update((w_i,), steps)

    def personal_model(self, client: State) -> Vector:
        return client.alpha * client.v + (1 - client.alpha) * client.w
