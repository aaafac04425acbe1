"""FedDR: randomised Douglas-Rachford splitting; clients send how their reflected proximal points have changed.

Tran-Dinh, Pham, Phan, Nguyen, "FedDR - Randomized Douglas-Rachford Splitting Algorithms for Nonconvex Federated
Composite Optimization", NeurIPS 2021, arXiv 2103.03452, Algorithm 1. `splitting` has the rules: asyncFedDR shares them.

Departures from the printed text:
- Printed: xbar^0 = xtilde^0 = x^0, but xhat_i^0 = 2 prox(x^0) - x^0. Then xtilde - mean xhat_i keeps its first value c,
  and the limit has grad f = c/eta where g = 0: no stationary point. Here all vectors start at x^0 (`init: x0`), or
  xtilde^0 is the mean of those xhat_i^0 (`init: mean`). What a client sends at its first contact is xhat_i^0 - x^0, so
  `mean` is a first round of all clients; where every round is one, both are the same.
- Weights p_i at the server alone (`weights: samples`) minimise sum_i p_i f_i + g; the paper has 1/n.
- The local solver starts at the old x_i.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mpifl.algorithms.base import Clients, State
from mpifl.algorithms.common.participation import CohortSampler
from mpifl.algorithms.common.rounds import Sampled
from mpifl.algorithms.common.splitting import Splitting
from mpifl.errors import choice


class AllFirst(CohortSampler):
    """Every client in the first round, cohorts from then on."""

    def sample(self, round: int, lost: Collection[int] = frozenset()) -> list[int]:
        return super().sample(round, lost) if round else [i for i in range(self.clients) if i not in lost]


@dataclass(frozen=True)
class FedDR(Splitting, Sampled):
    """xtilde <- xtilde + sum over the round's members of p_i (new xhat_i - xhat_i);  xbar <- prox_{eta g}(xtilde)"""

    init: str = "x0"
    """start: x0, all vectors equal x^0; mean: a first round of all clients makes xtilde the mean of the first xhat_i"""

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("init", self.init, ("x0", "mean"))

    def participation(self, clients: Clients, seed: int) -> CohortSampler:
        cohort = super().participation(clients, seed)
        return AllFirst(**vars(cohort)) if self.init == "mean" else cohort

    def begin_round(self, server: State, members: list[int]) -> None:
        """Nothing: a member's increment weighs p_i, whoever else is there, and once even if it was drawn twice."""

    def on_client_lost(self, server: State, i: int) -> None:
        """Nothing: xtilde keeps the client's last xhat_i."""
