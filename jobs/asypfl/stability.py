"""How long AsyPFL's personal steps are: delta lambda h at the clients, which run files do not hold."""

from __future__ import annotations

from pathlib import Path

import mpifl
from mpifl.problems import objective
from mpifl.tools.reproduce.items import Item

LARGEST = 100


def text(item: Item, out: Path) -> str:
    """Markdown: the range over the clients of delta lambda max h, at a run's first and last shared model."""
    run = next(r for r in item.study.runs if r.labels["algorithm.elastic"] == LARGEST)
    if not run.path.exists():
        return ""
    with mpifl.open_run(run.path) as file:
        last = file.model
    job, problem = run.job, mpifl.load_problem(run.job)
    factor = job.algorithm.step_size * job.algorithm.elastic
    clients = [objective(job.problem, problem.meta, problem.shard(i), i, job.seed) for i in range(problem.clients)]
    h = [[float(client.fisher(x).max()) for client in clients] for x in (problem.initial(job.seed), last)]
    first, end = (f"{factor * min(values):.2f} to {factor * max(values):.2f}" for values in h)
    return (f"With lambda = {LARGEST} the largest entry of a client's h (seed {run.seed}) makes delta lambda h {first} "
            f"at the initial model, and {end} at the last shared model.")  # fmt: skip
