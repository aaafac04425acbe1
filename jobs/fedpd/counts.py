"""Table I of FedPD in numbers: gradients of single rows that an agent computes until an accuracy is reached."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import numpy as np
from tabulate import tabulate

import mpifl
from mpifl.algorithms.common.local_solver import Gd, Sarah, Svrg
from mpifl.algorithms.fedpd import FedPD
from mpifl.text import capitalised
from mpifl.tools.reproduce.items import Item
from mpifl.tools.studies.study import StudyRun

LEVEL = 1e-3  # of the gradient norm
ABOUT = "Until the squared gradient norm is at most 1e-6, for one agent, means over the trials:"


def sample_gradients(job: mpifl.Job, rows: int, steps: int, rounds: int) -> int:
    """The gradients of single rows that a client with `rows` rows computes in local steps of its rounds.

    rounds: Those that the client has worked in, also without communication.
    """
    solver = job.algorithm.solver
    if isinstance(solver, Gd):
        return steps * rows
    batch = min(job.problem.batch_size or rows, rows)
    if not isinstance(solver, Sarah | Svrg):
        return steps * batch
    full = ceil(rounds / job.algorithm.refresh) if isinstance(job.algorithm, FedPD) else rounds
    return 2 * steps * batch + full * rows


def counts(run: StudyRun) -> tuple[int, int, int] | None:
    """Communications, local steps and sample gradients of client 0 until the level is reached; None: never."""
    with mpifl.open_run(run.path) as file:
        evaluations, updates, rows = file.evaluations, file.updates, int(file.clients.samples.iloc[0])
    reached = evaluations[evaluations.gradient_norm <= LEVEL]
    if reached.empty:
        return None
    own = updates.iloc[: int(reached.updates.iloc[0])]
    own = own[own.client == 0]
    steps = int(own.local_steps.sum())
    return len(own), steps, sample_gradients(run.job, rows, steps, steps // run.job.algorithm.local_steps)


def table(item: Item, out: Path) -> str:
    """Markdown: the three numbers of each method, the mean over the trials, and the smallest number of each kind."""
    found: dict[str, list[tuple[int, int, int] | None]] = {}
    for run in item.study.runs:
        if run.path.exists():
            found.setdefault(str(run.labels["method"]), []).append(counts(run))
    rows, means = [], {}
    for method, each in found.items():
        reached = [c for c in each if c is not None]
        if len(reached) == len(each):
            means[method] = np.mean(reached, 0)
        rows.append([method, *(f"{v:,.0f}" for v in means[method])] if method in means else [method, *["never"] * 3])
    headings = ["method", "communications", "local steps", "sample gradients"]
    best = [min(means, key=lambda method, k=k: means[method][k]) for k in range(3)] if means else []
    text = "; ".join(f"fewest {name}: {method}" for name, method in zip(headings[1:], best, strict=False))
    lines = tabulate(rows, headings, "pipe", disable_numparse=True)
    return f"{ABOUT}\n\n{lines}\n\n{capitalised(text)}."
