"""A delay model in which a fraction of the clients is irregular."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifl.config.types import Fraction, PositiveInt
from mpifl.scheduling.delays import Speed


@dataclass(frozen=True)
class Irregular(Speed):
    """Times of a contact as in `speed` for the first clients, and for the others the geometric means of those times."""

    fraction: Fraction = 1.0
    """fraction of the clients that are irregular, rounded"""
    epochs: PositiveInt = 1
    """local epochs of a contact: the factor on `compute`"""

    def _means(self, clients: int) -> tuple[np.ndarray, np.ndarray]:
        regular = np.arange(clients) >= round(self.fraction * clients)
        compute, exchange = super()._means(clients)
        compute = compute * self.epochs
        return tuple(np.where(regular, np.exp(np.log(times).mean()), times) for times in (compute, exchange))
