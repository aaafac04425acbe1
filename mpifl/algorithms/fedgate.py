"""FedGATE: each client tracks how its gradient differs from the mean one, at the price of one vector each way.

Haddadpour, Kamani, Mokhtari, Mahdavi, "Federated Learning with Compression: Unified Analysis and Sharp Guarantees",
AISTATS 2021, arXiv 2007.01154: FedGATE, and with `levels` FedCOMGATE.
The paper sends Dbar back beside the model; here a client finds it as (old - new server model)/gamma when the next
message comes, and updates delta_i then. Its D is this D_i over eta. There are no `step_weights` and `local_epochs`, see
`Tracking`. With momentum eta Q is what `Local.reach` says.
FedCOMGATE: the quantiser is unbiased, with levels spaced evenly up to the largest entry; delta_i is updated by what the
client sent, which keeps the sum at 0 (the released code takes the unquantised D_i). Values are not packed: `bytes` are
those of whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.rounds import Tracking
from mpifl.errors import at_least
from mpifl.objective import Objective, Vector, from_numpy, to_numpy
from mpifl.rng import stream


@dataclass(frozen=True)
class FedGate(Tracking):
    """w <- w - eta (g_i(w) - delta_i);  x <- x - gamma Dbar;  delta_i <- delta_i + (D_i - Dbar)/(eta Q)"""

    server_step: float = 1.0
    """server step gamma"""
    levels: int | None = None
    """levels on each side of 0 to which D_i is quantised, at random and without bias (FedCOMGATE); null: exact"""

    sums = ("D",)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("server_step", self.server_step, 0, strict=True)
        at_least("levels", self.levels, 1)

    def init_server(self, x0: Vector, clients: Clients) -> State:
        return State(x=x0.copy(), D=0 * x0, samples=clients.samples, seed=clients.seed, start=0, restart=0)

    def message(self, server: State, i: int) -> Message:
        return Message((server.x,), (float(server.seed), server.start))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        server.D += server.weights[i] * update.vectors[0]

    def aggregate(self, server: State) -> None:
        server.x = server.x - self.server_step * server.D
        server.D[:] = 0

    def init_client(self, x0: Vector, i: int) -> State:
        return State(i=i, x=x0, D=0 * x0, delta=0 * x0, start=0)

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        (x,), (seed, start) = message.vectors, message.numbers
        Dbar = (client.x - x) / self.server_step
        self.track(client, start, (client.D - Dbar) / self.reach(objective, self.local_steps))
        w, steps, _ = self.solve(objective, x, message.round, shift=-client.delta)
        client.x, client.D = x, x - w
        if self.levels is not None:
            rng = stream(int(seed), "quantise", client.i, message.round)  # the same draws on any device
            client.D = from_numpy(quantise(to_numpy(client.D), self.levels, rng), like=x)
        return Update((client.D,), steps)


def quantise(v: np.ndarray, levels: int, rng: np.random.Generator) -> np.ndarray:
    """v with its entries rounded at random to multiples of max|v|/levels; the mean over the draws is v."""
    unit = float(np.abs(v).max(initial=0)) / levels
    return unit * np.floor(v / unit + rng.random(v.size)).astype(v.dtype) if unit else v
