"""FedDR: randomised Douglas-Rachford splitting; clients send the changes of their reflected proximal points.

Tran-Dinh, Pham, Phan, Nguyen, "FedDR - Randomized Douglas-Rachford Splitting Algorithms for Nonconvex Federated
Composite Optimization", NeurIPS 2021, arXiv 2103.03452, Algorithm 1.
The rules are in `common/splitting.py`, shared with asyncFedDR.

Departures from the printed text:
- Printed: xbar^0 = xtilde^0 = x^0, but xhat_i^0 = 2 prox(x^0) - x^0. Then xtilde - mean xhat_i keeps its initial value
  c, and the limit has grad f = c/eta for g = 0, which is not a stationary point. Here all vectors start at x^0
  (`init: x0`), or xtilde^0 is the mean of those xhat_i^0 (`init: mean`). A client's first update is xhat_i^0 - x^0, so
  `mean` is a first round of all clients; if every round has all clients, both are the same.
- Weights p_i, which only the server uses (`weights: samples`), minimise sum_i p_i f_i + g; the paper has 1/n.
- The local solver starts at the old x_i.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mpifl.algorithms.base import Clients, State
from mpifl.algorithms.common.rounds import SampledRounds
from mpifl.algorithms.common.splitting import DouglasRachford
from mpifl.algorithms.participation import CohortSampler

Init = Literal["x0", "mean"]


@dataclass(frozen=True)
class FedDR(DouglasRachford, SampledRounds):
    """xtilde <- xtilde + sum over the round's members of p_i (new xhat_i - xhat_i);  xbar <- prox_{eta g}(xtilde)"""

    init: Init = "x0"
    """initial vectors: x0, all equal x^0; mean: xtilde is the mean of the first xhat_i, from a first round of all"""

    def participation(self, clients: Clients, seed: int) -> CohortSampler:
        return replace(super().participation(clients, seed), all_first=self.init == "mean")

    def begin_round(self, server: State, members: list[int]) -> None:
        """No round weights: the increment of client i has the weight p_i in every round, also if it was drawn twice."""

    def on_client_lost(self, server: State, i: int) -> None:
        """No rescaling: xtilde keeps the client's last xhat_i."""
