"""A user's own problems for groups of ranks: a model that makes trouble on one rank, a module with dropout."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifl.problems.models.logistic import Logistic, LogisticObjective
from mpifl.problems.settings import ProblemSettings

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0)


@dataclass(frozen=True)
class Troubled(Logistic):
    """Logistic regression whose gradients raise or hang on one rank, while there is a file of that name."""

    trouble: str = ""
    """raises or hangs"""
    rank: int = 0
    """where"""

    def objective(
        self, settings: ProblemSettings, meta: dict[str, Any], shard: Sequence[np.ndarray], i: int, seed: int
    ) -> TroubledObjective:
        return TroubledObjective(self, settings, meta, shard, i, seed)


class TroubledObjective(LogisticObjective):
    """One client's."""

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        if self.model.rank == RANK and self.model.trouble and Path(self.model.trouble).exists():
            if self.model.trouble == "raises":
                raise RuntimeError(f"trouble on rank {RANK}")
            time.sleep(1000)
        return super().gradient(x, rows)


def dropout() -> Any:
    """A problem for `problem.entry`."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy
    from torch.utils.data import TensorDataset

    module = nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Dropout(0.3), nn.Linear(40, 3))
    x = [torch.randn(20 + s, 5) for s in range(6)]
    return module, cross_entropy, [TensorDataset(rows, (rows[:, 0] > 0).long()) for rows in x]
