"""The two worlds that a run's clients can live in, as the server sees them: this process, and the other ranks."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.client.checkpoint import ClientCheckpointer, ResumePayload, resume
from mpifl.client.worker import Worker
from mpifl.problems import ComputeResources, host
from mpifl.storage.checkpoint_set import folder_of
from mpifl.transport.base import PartStatus
from mpifl.transport.in_process import InProcess

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.problems import Problem


class Here(InProcess):
    """All clients in this process; their part of a checkpoint is that of rank 1."""

    def __init__(
        self, job: Job, problem: Problem, x0: np.ndarray, resources: ComputeResources, payload: ResumePayload | None
    ) -> None:
        """Raises ConfigError."""
        shards = {i: problem.shard(i) for i in range(problem.clients)}
        hosted = host(job.problem, problem.meta, shards, job.seed, resources)
        super().__init__(
            Worker(job.algorithm, x0, hosted.objectives, hosted.train_batch, hosted.memory, job.faults.norm)
        )
        self.facts = hosted.facts
        self._checkpointer = ClientCheckpointer(folder_of(Path(job.output)), 1, self.worker, self.holding)
        self.on_marker = self._checkpointer.save
        self.live_ranks, self.rank_of = {1}, [1] * problem.clients
        self.unresponsive_ranks: set[int] = set()
        self.part_statuses: list[PartStatus] = []
        self.signals: list[int] = []
        self.stuck_ranks: set[int] = set()
        if payload:
            resume(self.worker, self, payload)

    def expect_update(self, i: int, round: int) -> None:
        """Its update is there."""

    def poll(self) -> None:
        self.part_statuses += [PartStatus(1, *written) for written in self._checkpointer.done()]

    def clients_on_dead_ranks(self) -> list[tuple[int, str]]:
        """There is no other rank."""
        return []

    def rehost(self, i: int, saved: dict[str, Any] | None, consumed: list[np.ndarray]) -> str:
        """There is no other rank."""
        return ""

    def shut_down(self, code: int, timeout: float = inf) -> int:
        self._checkpointer.close()
        return super().shut_down(code, timeout)
