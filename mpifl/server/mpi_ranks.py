"""The clients on the other ranks of an MPI job, as the server sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.transport import handshake
from mpifl.transport.base import max_vectors
from mpifl.transport.mpi_server import ServerEnd

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpifl.config.job import Job
    from mpifl.problems import Problem


class There(ServerEnd):
    """The server's end of the link to ranks that have their clients ready."""

    def __init__(self, comm: MPI.Comm, job: Job, problem: Problem, x0: np.ndarray) -> None:
        super().__init__(comm, problem.clients, x0.size, x0.dtype, max_vectors(job.algorithm))
        self._problem = problem
        # Ranks that a client has left, by client: what they still say of it is told apart by the rank it comes from.
        self._had: dict[int, set[int]] = {}

    def rehost(self, i: int, saved: dict[str, Any] | None, consumed: list[np.ndarray]) -> str:
        """Moves client i to another rank, which answers and never had it, with the fewest clients; where to, or "".

        saved     which checkpoint has its snapshot (`client.checkpoint.ResumePayload`); None: it starts anew
        consumed  sums of what was consumed of it since, of each vector named in `increment_of`
        """
        had = self._had.setdefault(i, set())
        had.add(self.rank_of[i])
        able = sorted(self.live_ranks - self.unresponsive_ranks - had)
        if not able:
            return ""
        rank = min(able, key=self.rank_of.count)
        shard = self._problem.shard(i)
        text = {"shard": handshake.array_specs(shard), "consumed": handshake.array_specs(consumed), "saved": saved}
        self.move(i, rank, handshake.setup_buffers(text, [*shard, *consumed]))
        return f"to rank {rank}"
