"""Inexact DANE: FedDANE with every client in both phases.

Reddi, Konecny, Richtarik, Poczos, Smola, "AIDE: Fast and Communication Efficient Distributed Optimization",
arXiv 1608.06879, Algorithm 1; with exact solutions DANE of Shamir, Srebro, Zhang, ICML 2014, arXiv 1312.7853.
As in the FedDANE paper the average gradient has the factor 1 (their eta); the number of local steps determines the
inexactness.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mpifl.algorithms.common.rounds import Sampling
from mpifl.algorithms.feddane import FedDANE, Variant
from mpifl.config.types import PositiveInt


@dataclass(frozen=True)
class InexactDANE(FedDANE):
    """w <- mean over all k of w_k, each about argmin_v F_k(v) + <g - grad F_k(w), v - w> + mu/2 ||v - w||^2"""

    cohort: PositiveInt | None = field(default=None, init=False)
    sampling: Sampling = field(default="uniform", init=False)
    same_set: bool = field(default=False, init=False)
    correction: float = field(default=1.0, init=False)
    decay: float = field(default=1.0, init=False)
    variant: Variant = field(default="plain", init=False)
