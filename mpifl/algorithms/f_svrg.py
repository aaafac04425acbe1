"""F-SVRG: one phase averages full gradients; in the next every client takes SVRG steps that use the average.

Konecny, McMahan, Ramage, Richtarik, "Federated Optimization: Distributed Machine Learning for On-Device Intelligence",
arXiv 1610.02527, Algorithm 3 (naive federated SVRG). It is Mime without momentum.
Options that are not printed: a cohort, the same in both phases; steps or epochs, and weights of the mean.
The paper's Algorithm 4 (steps by s_i, the scalings S_k and A of sparse features) is not implemented.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mpifl.algorithms.common.local_solver import Solver, Svrg
from mpifl.algorithms.mime import Mime


@dataclass(frozen=True)
class FSVRG(Mime):
    """g = mean grad f_k(x); every client: y <- y - eta (g_k(y; xi) - g_k(x; xi) + g) from y = x; x <- mean y"""

    solver: Solver = field(default=Svrg(), init=False)
    momentum: float = field(default=0.0, init=False)
    lite: bool = field(default=False, init=False)

    vectors_up = 1  # each phase sends one
    vectors_down = 2  # each phase sends one; a client that is new in the second phase gets two
