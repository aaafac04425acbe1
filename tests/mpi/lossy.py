"""Quadratics one of whose clients fails for good in the middle of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifl.problems.models.quadratic import Quadratic, QuadraticObjective
from mpifl.problems.settings import ProblemSettings

VICTIM, CONTACTS = 2, 3  # a client, and its contacts before it fails


@dataclass(frozen=True)
class Lossy(Quadratic):
    """Quadratics; client 2 raises in its fourth contact and in every later one."""

    def objective(
        self, settings: ProblemSettings, meta: dict[str, Any], shard: Sequence[np.ndarray], i: int, seed: int
    ) -> QuadraticObjective:
        return LossyObjective(self.sigma, meta["clients"], shard, i, seed)


class LossyObjective(QuadraticObjective):
    """One client's quadratic."""

    def begin_round(self, round: int) -> None:
        if self.i == VICTIM and round >= CONTACTS:
            raise OSError("the disk is gone")
