"""FedSplit: Peaceman-Rachford splitting, every client in every round; for convex f_i.

Pathak, Wainwright, "FedSplit: An algorithmic framework for fast federated optimization", NeurIPS 2020,
arXiv 2005.05238, Algorithm 1. It is FedDR with alpha = 2, g = 0 and all clients, with z_i for xhat_i:

    z_i <- z_i + 2 (prox_{eta f_i}(2 X - z_i) - X),  X <- mean z_i,

since 2 X - z_i = y_i + 2 (X - x_i) is the new y_i. It requires X^0 = mean z_i^0; here all start at x^0.
Departure: `weights` and `accuracy` are FedDR's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mpifl.algorithms.common.proximal import NoRegulariser, Regulariser
from mpifl.algorithms.common.rounds import Sampling
from mpifl.algorithms.feddr import FedDR, Init
from mpifl.config.types import PositiveInt


@dataclass(frozen=True)
class FedSplit(FedDR):
    """z_i <- z_i + 2 (prox_{eta f_i}(2 X - z_i) - X), X <- mean z_i"""

    alpha: float = field(default=2.0, init=False)
    regulariser: Regulariser = field(default=NoRegulariser(), init=False)
    init: Init = field(default="x0", init=False)
    cohort: PositiveInt | None = field(default=None, init=False)
    sampling: Sampling = field(default="uniform", init=False)
