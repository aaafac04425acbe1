"""FedGATE: each client tracks the difference of its gradient from the mean gradient, with one vector each way.

Haddadpour, Kamani, Mokhtari, Mahdavi, "Federated Learning with Compression: Unified Analysis and Sharp Guarantees",
AISTATS 2021, arXiv 2007.01154: FedGATE, and with `levels` FedCOMGATE.
The paper sends Dbar with the model; here a client computes it as (old - new server model)/gamma from the next message,
and updates delta_i then. The paper's D is this D_i over eta. `step_weights` and `local_epochs` are fixed, see
`GradientTracking`. With momentum, eta Q is `LocalTraining.cumulative_step`.
FedCOMGATE: the quantiser is unbiased, with levels spaced evenly up to the largest entry; delta_i is updated with the
quantised D_i, which keeps the sum at 0 (the released code uses the unquantised D_i). Quantised values are not packed:
`bytes` are those of full vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.rounds import GradientTracking
from mpifl.algorithms.common.vectors import axpy, step
from mpifl.config.types import PositiveFloat, PositiveInt
from mpifl.objective import Objective, Vector, from_numpy, to_numpy
from mpifl.rng import stream


@dataclass(frozen=True)
class FedGate(GradientTracking):
    """w <- w - eta (g_i(w) - delta_i);  x <- x - gamma Dbar;  delta_i <- delta_i + (D_i - Dbar)/(eta Q)"""

    server_step: PositiveFloat = 1.0
    """server step gamma"""
    levels: PositiveInt | None = None
    """quantisation levels of D_i on each side of 0, with unbiased random rounding (FedCOMGATE); null: exact"""

    sums = ("D",)

    message_fields = ("x",)

    def update_weights(self, clients: Clients) -> np.ndarray | float | None:
        return self.member_weights(clients, self.server_step)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), D=0 * x0, samples=clients.samples, seed=clients.seed, resets=0, reset_pending=0)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (float(server.seed), server.resets))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.D = axpy(server.D, server.weights[i], update.vectors[0])

    def aggregate(self, server: State) -> None:
        server.x = step(server.x, -self.server_step, server.D)
        server.D[:] = 0

    def init_client(self, x0: Vector, i: int) -> State:
        return State(i=i, x=x0, D=0 * x0, delta=0 * x0, resets=0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,), (seed, resets) = message.vectors, message.numbers
        Dbar = (client.x - x) / self.server_step
        self.track(client, resets, (client.D - Dbar) / self.cumulative_step(objective, self.local_steps))
        w, steps, _ = self.solve(objective, x, message.round, shift=-client.delta)
        client.x, client.D = x, x - w
        if self.levels is not None:
            rng = stream(int(seed), "quantise", client.i, message.round)  # the same draws on any device
            client.D = from_numpy(quantise(to_numpy(client.D), self.levels, rng), like=x)
        return Update((client.D,), steps)


def quantise(v: np.ndarray, levels: int, rng: np.random.Generator) -> np.ndarray:
    """(d,) v with its entries rounded at random to multiples of max|v|/levels; the expectation is v."""
    unit = float(np.abs(v).max(initial=0)) / levels
    return unit * np.floor(v / unit + rng.random(v.size)).astype(v.dtype) if unit else v
