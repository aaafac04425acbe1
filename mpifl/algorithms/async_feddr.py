"""asyncFedDR: FedDR where every arrival is an iteration; a client works with the xbar of its last contact.

Tran-Dinh, Pham, Phan, Nguyen, "FedDR - Randomized Douglas-Rachford Splitting Algorithms for Nonconvex Federated
Composite Optimization", NeurIPS 2021, arXiv 2103.03452, Algorithm 2. `splitting` has the rules: FedDR shares them.

Departures from the printed text:
- Printed: xtilde^0 = 0, which is not the mean of the first xhat_i; the limit is then wrong, as in FedDR. Here all
  vectors start at x^0.
- `largest_eta` is the root of (9). The closed form in print has 7 + 4c + 4c^2 where that root has 7 + 12c + 4c^2.
  Neither limits what a job may ask for: what works is far above it.

A sender is answered after its update has entered xbar, as printed. `before` would make all messages one update staler:
then even one client alone, without any delay, would not run FedDR. `deferred` would be `after`: each update aggregates.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from mpifl.algorithms.common.participation import Trigger
from mpifl.algorithms.common.splitting import Splitting


@dataclass(frozen=True)
class AsyncFedDR(Splitting):
    """xtilde <- xtilde + p_i (new xhat_i - xhat_i);  xbar <- prox_{eta g}(xtilde);  reply xbar"""

    alpha: float = 1.0
    """relaxation alpha, above 0 and up to 2; theory: below `largest_alpha`"""
    reply: str = "after"
    """a sender is answered after its update has entered xbar"""

    reply_policies = ("after",)

    def aggregation_trigger(self) -> Trigger:
        return Trigger(every=1)


def delay_constant(tau: int, n: int) -> float:
    """c = (2 tau^2 - n)/n^2 of (8) and (9), 0 where delays up to tau do no harm: 2 tau^2 <= n."""
    return max(0.0, (2 * tau**2 - n) / n**2)


def largest_alpha(tau: int, n: int) -> float:
    """alpha must be below this: 2/(2 + c), which is 1 for c = 0  (8)."""
    return 2 / (2 + delay_constant(tau, n))


def largest_eta(alpha: float, L: float, tau: int, n: int) -> float:
    """eta must be below this, the root of 2 (1-a) - (2+a) L^2 eta^2 - L a eta - a c (1 + L^2 eta^2)  (9); 0: no eta."""
    c = delay_constant(tau, n)
    if not 0 < alpha < largest_alpha(tau, n):
        return 0.0
    return (sqrt(16 - 8 * alpha - (7 + 12 * c + 4 * c**2) * alpha**2) - alpha) / (2 * L * (2 + (1 + c) * alpha))
