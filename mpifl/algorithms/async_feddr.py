"""asyncFedDR: FedDR in which every update is an iteration; a client uses the xbar of its last contact.

Tran-Dinh, Pham, Phan, Nguyen, "FedDR - Randomized Douglas-Rachford Splitting Algorithms for Nonconvex Federated
Composite Optimization", NeurIPS 2021, arXiv 2103.03452, Algorithm 2.
The rules are in `common/splitting.py`, shared with FedDR.

Departures from the printed text:
- Printed: xtilde^0 = 0, which is not the mean of the first xhat_i; the limit is then wrong, as in FedDR. Here all
  vectors start at x^0.
- `largest_eta` is the root of (9). The printed closed form has 7 + 4c + 4c^2 where that root has 7 + 12c + 4c^2.
  A job may exceed both: values far above these bounds converge in practice.

The reply is sent after the update has entered xbar, as printed. `before` would make all messages one update staler: a
single client without delay would not reproduce FedDR. `deferred` would equal `after`, since each update aggregates.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal

from mpifl.algorithms.common.splitting import DouglasRachford, Relaxation
from mpifl.algorithms.participation import Trigger


@dataclass(frozen=True)
class AsyncFedDR(DouglasRachford):
    """xtilde <- xtilde + p_i (new xhat_i - xhat_i);  xbar <- prox_{eta g}(xtilde);  reply xbar"""

    alpha: Relaxation = 1.0
    """relaxation alpha; theory: below 2/(2 + c), c = max(0, 2 tau^2 - n)/n^2 for delays up to tau"""
    reply: Literal["after"] = "after"
    """reply to a sender after its update has entered xbar"""

    def aggregation_trigger(self) -> Trigger:
        return Trigger(every=1)


def delay_constant(tau: int, n: int) -> float:
    """c = (2 tau^2 - n)/n^2 of (8) and (9), 0 if delays up to tau have no effect: 2 tau^2 <= n."""
    return max(0.0, (2 * tau**2 - n) / n**2)


def largest_alpha(tau: int, n: int) -> float:
    """The bound of alpha, 2/(2 + c), which is 1 for c = 0  (8)."""
    return 2 / (2 + delay_constant(tau, n))


def largest_eta(alpha: float, L: float, tau: int, n: int) -> float:
    """The bound of eta, the root of 2 (1-a) - (2+a) L^2 eta^2 - L a eta - a c (1 + L^2 eta^2)  (9); 0: none."""
    c = delay_constant(tau, n)
    if not 0 < alpha < largest_alpha(tau, n):
        return 0.0
    return (sqrt(16 - 8 * alpha - (7 + 12 * c + 4 * c**2) * alpha**2) - alpha) / (2 * L * (2 + (1 + c) * alpha))
