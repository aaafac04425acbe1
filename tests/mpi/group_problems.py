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
    """Logistic regression whose gradients raise or hang on one rank, or that cannot be made there, while there is a
    file of that name."""

    trouble: str = ""
    """raises, hangs or cannot be made"""
    rank: int = 0
    """where"""

    def objective(
        self, settings: ProblemSettings, meta: dict[str, Any], shard: Sequence[np.ndarray], i: int, seed: int
    ) -> TroubledObjective:
        if self.is_troubled("cannot be made"):
            raise RuntimeError(f"trouble on rank {RANK}")
        return TroubledObjective(self, settings, meta, shard, i, seed)

    def is_troubled(self, trouble: str) -> bool:
        return self.rank == RANK and self.trouble == trouble and Path(trouble).exists()


class TroubledObjective(LogisticObjective):
    """One client's."""

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        if self.model.is_troubled("raises"):
            raise RuntimeError(f"trouble on rank {RANK}")
        if self.model.is_troubled("hangs"):
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


class Site:
    """A client with a training loop of its own, whose ranks share the rows of a gradient."""

    def __init__(self, k: int, trouble: str) -> None:
        self.rows, self.trouble = np.random.default_rng(k).standard_normal((40, 8)), trouble
        self.contacts = 0

    def fit(self, x: np.ndarray, contact: Any) -> tuple[np.ndarray, int]:
        comm = contact.comm
        rank, size = (comm.rank, comm.size) if comm else (0, 1)
        self.contacts += 1
        if comm and self.contacts > 2 and self.trouble == "another communicator":
            from mpi4py import MPI

            MPI.COMM_WORLD.Barrier()  # which rank 0 does not enter
        if rank and self.contacts > 2:
            if self.trouble.startswith("raises"):
                raise ValueError("one member alone")
            while self.trouble == "hangs":
                time.sleep(0.01)
        together = comm and not self.trouble.endswith("no collective")
        part = self.rows[rank::size] if together else self.rows
        gradient = part.T @ (part @ x - 1) / 40
        if together:
            comm.Allreduce(gradient.copy(), gradient)
        unlike = rank * (self.trouble == "unlike")
        return x - contact.step_size * gradient + unlike, 1

    def evaluate(self, x: np.ndarray) -> dict[str, float]:
        return {"train_loss": float(((self.rows @ x - 1) ** 2).mean() / 2)}

    def save(self) -> dict[str, int]:
        return {"contacts": self.contacts}

    def load(self, saved: dict[str, int]) -> None:
        self.contacts = saved["contacts"]


def sites(trouble: str = "") -> Any:
    """A problem for `problem.entry`."""
    return np.zeros(8), [Site(k, trouble) for k in range(4)]
