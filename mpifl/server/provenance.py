"""Provenance: the root attributes of a run file that are known at its start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mpifl.config.read import job_to_dict, to_yaml
from mpifl.version import source

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.transport.mpi import MPI


def attributes(
    job: Job, clock: str, clients: int, comm: MPI.Comm | None, hosts: list[str], facts: list[Any]
) -> dict[str, Any]:
    """Root attributes by name; facts: the compute resources of each rank, rank 0 first."""
    return {
        "mpifl_version": source().version,
        "name": job.name,
        "algorithm": job_to_dict(job)["algorithm"]["name"],
        "config": to_yaml(job),
        "seed": job.seed,
        "clock": clock,
        "clients": clients,
        "ranks": comm.size if comm else 1,
        "hosts": json.dumps(hosts),
        "mpi": _mpi_library() if comm else "none",
        "git_commit": source().commit,
        **({"compute": json.dumps(facts)} if any(facts) else {}),
    }


def _mpi_library() -> str:
    from mpifl.transport.mpi import MPI

    return MPI.Get_library_version().splitlines()[0].strip("\0 ")
