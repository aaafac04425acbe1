"""Methods that also log the quantities of their theorems; their rules are those of the package."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.rounds import GRADIENT
from mpifl.algorithms.feddane import FedDANE
from mpifl.algorithms.feddr import FedDR
from mpifl.config.types import PositiveFloat
from mpifl.objective import Objective, Vector

ROUNDING = 1e-12  # relative: a smaller rise of the potential does not count as one


@dataclass(frozen=True)
class FedDRPotential(FedDR):
    """FedDR that logs its potential, and the number of rounds in which it rose.

    V = g(xbar) + mean_i [f_i(x_i) + <grad f_i(x_i), xbar - x_i> + ||xbar - x_i||^2/(2 eta)]. With xhat_i = x_i -
    eta grad f_i(x_i), which holds for exact local solutions, the bracket is
    f_i(x_i) - (||x_i - xhat_i||^2 - ||xbar - xhat_i||^2)/(2 eta).
    """

    def init_server(self, x0: Vector, clients: Clients) -> State:
        server = super().init_server(x0, clients)
        server.parts, server.xhat = np.zeros(clients.n), x0.copy()  # xhat: the mean of the xhat_i
        server.potential, server.rises = inf, 0
        return server

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        update = super().train(client, message, objective)
        x, xhat = client.x, client.xhat
        part = objective.loss(x) - ((x - xhat) @ (x - xhat) - xhat @ xhat) / (2 * self.eta)
        return update._replace(numbers=(float(part),))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        super().receive(server, i, update, staleness)
        server.parts[i] = update.numbers[0]
        server.xhat = server.xhat + update.vectors[0] / len(server.parts)

    def aggregate(self, server: State) -> None:
        super().aggregate(server)
        x, last = server.x, server.potential
        near = (x @ x - 2 * x @ server.xhat) / (2 * self.eta)
        server.potential = float(self.penalty(x) + server.parts.mean() + near)
        server.rises += not server.potential <= last + ROUNDING * max(1.0, abs(last))  # also where it is NaN
        server.log(potential=server.potential, rises=server.rises)


@dataclass(frozen=True)
class FedDANEDescent(FedDANE):
    """FedDANE with all devices; logs the least (f(w) - f(w+))/||grad f(w)||^2 of its aggregations so far.

    An aggregation counts only if it starts from a w with a dissimilarity of at most B, as the theorems assume. The
    dissimilarity is the square root of mean ||grad f_k||^2/||grad f||^2.
    """

    B: PositiveFloat = 1.0
    """largest dissimilarity of an aggregation that counts"""

    def init_server(self, x0: Vector, clients: Clients) -> State:
        server = super().init_server(x0, clients)
        server.loss, server.squares, server.before, server.slope = 0.0, 0.0, inf, 0.0
        server.least, server.counted = inf, 0
        return server

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        update = super().train(client, message, objective)
        return update._replace(numbers=(objective.loss(client.w),))

    def receive(self, server: State, i: int, update: Update, staleness: int) -> None:
        super().receive(server, i, update, staleness)
        if server.phase == GRADIENT:
            server.loss += server.weights[i] * update.numbers[0]
            server.squares += server.weights[i] * float(update.vectors[0] @ update.vectors[0])

    def aggregate(self, server: State) -> None:
        gradients = server.phase == GRADIENT
        super().aggregate(server)
        if not gradients:
            return
        if server.slope:
            server.least = float(np.minimum(server.least, (server.before - server.loss) / server.slope))  # NaN stays
            server.log(least_descent=server.least, counted=server.counted)
        slope = float(server.g @ server.g)
        counts = slope > 0 and server.squares <= self.B**2 * slope
        server.before, server.slope, server.counted = server.loss, slope if counts else 0.0, server.counted + counts
        server.loss, server.squares = 0.0, 0.0
