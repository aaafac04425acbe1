"""How much the devices' gradients differ, and how far the mean over a cohort is from the whole gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tabulate import tabulate

import mpifl
from mpifl.algorithms.feddane import FedDANE
from mpifl.problems import objective
from mpifl.tools.reproduce.items import Item
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.select import without_rejected

DRAWS = 1000  # cohorts
TEXT = """How much the devices differ, by the paper's Definition 2: B^2 is the mean over k of |grad F_k|^2/|grad f|^2
with the weights p_k, and B is 1 where all gradients are the same. Beside it the root mean square of
|g_t - grad f|/|grad f| over {draws:,} draws of the devices of a phase; where it is above 1, the error of g_t
is larger than the gradient. Both are at the first and at the last model of one run, with the selected mu:"""


def table(item: Item, out: Path) -> str:
    """Markdown: B and the error of g_t at the first and the last model of a run of each form of FedDANE."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for run in without_rejected(item.study, Index(item.study)).runs:
        labels, select = {**run.labels, "seed": run.seed}, item.study.options.select
        key = tuple(str(label) for name, label in run.labels.items() if name != "algorithm.mu")
        reported = select is None or select.reports(run.seed)
        if isinstance(run.job.algorithm, FedDANE) and reported and key not in rows and run.path.exists():
            with mpifl.open_run(run.path) as file:
                numbers = differences(run.job, np.asarray(file.model))
            rows[key] = [*map(str, labels.values()), *(f"{number:.2f}" for number in np.ravel(numbers))]
    headings = [*labels, "B, first", "error, first", "B, last", "error, last"]
    return TEXT.format(draws=DRAWS) + "\n\n" + tabulate(list(rows.values()), headings, "pipe", disable_numparse=True)


def differences(job: mpifl.Job, last: np.ndarray) -> list[tuple[float, float]]:
    """B, and the relative error of g_t, at the first model of the job and at another one (d,)."""
    problem = mpifl.load_problem(job)
    p = problem.samples / problem.samples.sum()
    devices = [objective(job.problem, problem.meta, problem.shard(i), i, job.seed) for i in range(problem.clients)]
    found = []
    for model in (problem.initial(job.seed), last):
        gradients = np.array([device.gradient(model.astype(problem.dtype)) for device in devices], float)
        found.append((dissimilarity(gradients, p), cohort_error(gradients, p, job.algorithm.cohort)))
    return found


def dissimilarity(gradients: np.ndarray, p: np.ndarray) -> float:
    """B of Definition 2 from the devices' gradients (N, d) and weights p (N,)."""
    mean = p @ gradients
    return float(np.sqrt(p @ (gradients**2).sum(1) / (mean @ mean)))


def cohort_error(gradients: np.ndarray, p: np.ndarray, cohort: int) -> float:
    """The root mean square of |g_t - grad f|/|grad f|; g_t is the mean, weighted by p, of devices drawn uniformly."""
    generator, mean = np.random.default_rng(0), p @ gradients
    errors = []
    for _ in range(DRAWS):
        drawn = generator.choice(len(p), cohort, replace=False)
        error = p[drawn] @ gradients[drawn] / p[drawn].sum() - mean
        errors.append(error @ error / (mean @ mean))
    return float(np.sqrt(np.mean(errors)))
