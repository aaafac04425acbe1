"""FedAvg: synchronous rounds; every member of a round starts from the same model, and their models are averaged.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
arXiv 1602.05629, Algorithm 1. S-FedAvg of the AREA paper (arXiv 2405.10123): `cohort: 4`, `step_weights: samples`.
With `sampling: samples` a client that is drawn twice trains once and has twice the weight.
With `optimizer` it is FedAvgM, FedAdagrad, FedAdam or FedYogi: see `common/server_optimizers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.common.rounds import OptimizedAveraging
from mpifl.objective import Objective


@dataclass(frozen=True)
class FedAvg(OptimizedAveraging):
    """x <- sum over the round's members of a_i x_i; or a step of the server optimiser along the change of that mean"""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        x_i, steps, _ = self.solve(objective, message.vectors[0], message.round)
        return Update((x_i,), steps)
