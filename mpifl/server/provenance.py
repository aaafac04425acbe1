"""Provenance: the root attributes of a run file that are known at its start."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifl.config.read import job_to_dict, to_yaml
from mpifl.version import __version__

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.transport.mpi import MPI


def attributes(
    job: Job, clock: str, clients: int, comm: MPI.Comm | None, hosts: list[str], facts: list[Any]
) -> dict[str, Any]:
    """Root attributes by name; facts: the compute resources of each rank, rank 0 first."""
    return {
        "mpifl_version": __version__,
        "name": job.name,
        "algorithm": job_to_dict(job)["algorithm"]["name"],
        "config": to_yaml(job),
        "seed": job.seed,
        "clock": clock,
        "clients": clients,
        "ranks": comm.size if comm else 1,
        "hosts": json.dumps(hosts),
        "mpi": _mpi_library() if comm else "none",
        "git_commit": _git_commit(),
        **({"compute": json.dumps(facts)} if any(facts) else {}),
    }


def _mpi_library() -> str:
    from mpifl.transport.mpi import MPI

    return MPI.Get_library_version().splitlines()[0].strip("\0 ")


@functools.cache
def _git_commit() -> str:
    """The commit of the source, with -dirty where files differ from it; empty without a checkout. Asked once."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(git, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
