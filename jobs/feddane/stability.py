"""Whether updates of FedDANE with all devices and exact local solutions are stable at the last models of runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tabulate import tabulate

import mpifl
from mpifl.tools.reproduce.items import Item

TEXT = """With all devices and exact local solutions an update is w - sum p_k (H_k + mu I)^-1 grad f, and near a minimum
it is stable while no eigenvalue of I - sum p_k (H_k + mu I)^-1 Hbar is below -1 (FEDDANE.2). The least of them with
mu = 1, H_k being the devices' Hessians at the last model of FedDANE with mu = 1:"""


def table(item: Item, out: Path) -> str:
    """Markdown: the least eigenvalue for each of the study's completed runs of FedDANE with mu = 1."""
    rows = []
    for run in item.study.runs:
        if run.labels["method"] == "FedDANE" and run.labels["algorithm.mu"] == 1 and run.path.exists():
            with mpifl.open_run(run.path) as file:
                rows.append([run.labels["data"], run.seed, f"{least_eigenvalue(run.job, np.asarray(file.model)):.1f}"])
    return TEXT + "\n\n" + tabulate(rows, ["data", "seed", "least eigenvalue"], "pipe", disable_numparse=True)


def least_eigenvalue(job: mpifl.Job, model: np.ndarray) -> float:
    """The least eigenvalue of I - sum_k p_k (H_k + I)^-1 Hbar at a model of logistic regression with bias."""
    problem = mpifl.load_problem(job)
    p, x = problem.samples / problem.samples.sum(), model.astype(float)
    hessians = []
    for k in range(problem.clients):
        rows = np.asarray(problem.shard(k)[0], float)
        rows = np.column_stack([rows, np.ones(len(rows))])
        scores = rows @ x.reshape(rows.shape[1], -1)  # W, and b below it
        q = np.exp(scores - scores.max(1, keepdims=True))
        q /= q.sum(1, keepdims=True)
        h = np.einsum("ra,ab->rab", q, np.eye(q.shape[1])) - np.einsum("ra,rb->rab", q, q)
        hessians.append(np.einsum("ri,rab,rj->iajb", rows, h, rows, optimize=True).reshape(x.size, x.size) / len(rows))
    mean, eye = np.tensordot(p, hessians, 1), np.eye(x.size)
    steps = sum(w * np.linalg.solve(h + eye, mean) for w, h in zip(p, hessians, strict=True))
    return float(np.linalg.eigvals(eye - steps).real.min())
