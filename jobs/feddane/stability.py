"""Whether updates of FedDANE with all devices are stable at the last models of runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tabulate import tabulate

import mpifl
from mpifl.tools.reproduce.items import Item
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.select import without_rejected

TEXT = """An update with all devices is w - sum p_k A_k grad f(w), and near a minimum it is stable while no eigenvalue
of I - sum p_k A_k Hbar is below -1. With M gradient steps eta, A_k is eta sum_j (I - eta (H_k + mu I))^j
over the j below M; with exact local solutions it is (H_k + mu I)^-1. The least eigenvalue at the last model of FedDANE
with the selected mu, by the Hessians H_k of the devices there: as run, and with exact solutions and mu = 1:"""


def table(item: Item, out: Path) -> str:
    """Markdown: the least eigenvalues at the last model of a run of FedDANE with the selected mu, for each data set."""
    rows: dict[str, list[str]] = {}
    for run in without_rejected(item.study, Index(item.study)).runs:
        data, select = str(run.labels["data"]), item.study.options.select
        reported = select is None or select.reports(run.seed)
        if run.labels["method"] == "FedDANE" and reported and data not in rows and run.path.exists():
            with mpifl.open_run(run.path) as file:
                as_run, exact = least_eigenvalues(run.job, np.asarray(file.model))
            rows[data] = [data, str(run.seed), f"{run.labels['algorithm.mu']:g}", f"{as_run:.2f}", f"{exact:.1f}"]
    headings = ["data", "seed", "selected mu", "as run", "exact, mu = 1"]
    return TEXT + "\n\n" + tabulate(list(rows.values()), headings, "pipe", disable_numparse=True)


def least_eigenvalues(job: mpifl.Job, model: np.ndarray) -> tuple[float, float]:
    """The least eigenvalue of I - sum_k p_k A_k Hbar at a model of logistic regression with bias: for the local epochs
    of the job in gradient steps, and for exact local solutions with mu = 1."""
    problem, algorithm = mpifl.load_problem(job), job.algorithm
    p, x = problem.samples / problem.samples.sum(), model.astype(float)
    eta, mu, batch = algorithm.step_size, algorithm.mu, job.problem.batch_size
    mean = as_run = exact = np.zeros((x.size, x.size))
    for k, share in enumerate(p):
        rows = np.asarray(problem.shard(k)[0], float)
        rows = np.column_stack([rows, np.ones(len(rows))])
        scores = rows @ x.reshape(rows.shape[1], -1)  # W, and b below it
        q = np.exp(scores - scores.max(1, keepdims=True))
        q /= q.sum(1, keepdims=True)
        h = np.einsum("ra,ab->rab", q, np.eye(q.shape[1])) - np.einsum("ra,rb->rab", q, q)
        hessian = np.einsum("ri,rab,rj->iajb", rows, h, rows, optimize=True).reshape(x.size, x.size) / len(rows)
        values, vectors = np.linalg.eigh(hessian)
        steps = algorithm.local_epochs * -(-len(rows) // batch)
        curved = values + mu
        flat = np.abs(curved) < 1e-9  # the sum of M equal steps
        safe = np.where(flat, 1.0, curved)
        factors = np.where(flat, eta * steps, (1 - (1 - eta * safe) ** steps) / safe)
        mean = mean + share * hessian
        as_run = as_run + share * (vectors * factors) @ vectors.T
        exact = exact + share * (vectors / (values + 1)) @ vectors.T
    least = [float(np.linalg.eigvals(np.eye(x.size) - a @ mean).real.min()) for a in (as_run, exact)]
    return least[0], least[1]
