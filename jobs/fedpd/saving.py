"""Figure 1 of FedPD: the share of communications that may be skipped, printed and measured, against eps/G^2."""

from __future__ import annotations

from math import exp, log, sqrt
from pathlib import Path

import numpy as np
from pandas import DataFrame
from tabulate import tabulate

import mpifl
from mpifl.problems import objective
from mpifl.tools.analysis.panels import Panel, draw_panels
from mpifl.tools.reproduce.items import Item
from mpifl.tools.studies.study import StudyRun

NAME = "fedpd-saving-1.png"


def border(eta: float, L: float) -> float:
    """The p below which the first formula of Table III holds, and from which on the second one."""
    return (1 - 2 * L * eta) / (1 + L * eta)


def printed(p: float, eta: float, L: float) -> float:
    """eps/G^2 of Table III for a share p of skipped communications."""
    if p < border(eta, L):
        return 36 * eta**2 * p**2
    return 42 * eta**2 * exp(2 / (1 - p))


def printed_saving(ratio: float, eta: float, L: float) -> float:
    """p of Table III for eps/G^2: the inverse of `printed`, and between its two ranges the end of the first."""
    p, end = sqrt(ratio / 36) / eta, border(eta, L)
    if p < end:
        return p
    return max(end, 1 - 2 / log(ratio / (42 * eta**2))) if ratio > printed(end, eta, L) else end


def ratio(run: StudyRun) -> float:
    """eps/G^2 of a run: eps without the first tenth of the run, G = max_i ||grad f_i - grad f|| at the last model."""
    job, problem = run.job, mpifl.load_problem(run.job)
    clients = [objective(job.problem, problem.meta, problem.shard(i), i, job.seed) for i in range(problem.clients)]
    with mpifl.open_run(run.path) as file:
        norms, x = file.evaluations.gradient_norm.to_numpy(), np.asarray(file.model)
    gradients = np.array([client.gradient(x) for client in clients])
    distances = np.linalg.norm(gradients - gradients.mean(0), axis=1)
    return float(np.mean(norms[len(norms) // 10 :] ** 2) / distances.max() ** 2)


def figure(item: Item, out: Path) -> str:
    """Markdown: the figure, a table with a row for each p, and how many of the printed savings are reached."""
    found: dict[float, list[float]] = {}
    for run in item.study.runs:
        if run.path.exists():
            found.setdefault(run.job.algorithm.skip, []).append(ratio(run))
    algorithm, model = item.study.runs[0].job.algorithm, item.study.runs[0].job.problem.model
    eta, L = algorithm.eta, max(model.curvatures)
    rows, kept, curve = [], 0, {}
    for p, values in found.items():
        mean, low, high = float(np.mean(values)), min(values), max(values)
        claimed = printed_saving(mean, eta, L)
        kept += p >= claimed
        curve[mean] = (p, p, p)
        rows.append([f"{p:g}", f"{mean:.2e} ({low:.2e} to {high:.2e})", f"{claimed:.4f}", ("no", "yes")[p >= claimed]])
    shares = np.geomspace(min(found), max(found), 24)
    table = {
        printed(p, eta, L): (p, p, p) for p in shares if p < border(eta, L)
    }  # the second one begins at eps/G^2 = 37
    lines = {name: DataFrame.from_dict(points, "index", columns=["mean", "low", "high"]).sort_index()
             for name, points in (("measured", curve), ("printed, Table III", table))}  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    draw_panels(out / NAME, [Panel("", lines)], "eps/G²", "share saved, p", markers=True)
    headings = ["p", "eps/G^2, measured", "printed p for this eps/G^2", "p is at least the printed one"]
    caption = "Communication saved against eps/G², measured and printed"
    return (f"![{caption}]({NAME})\n\n*{caption}.*\n\n" + tabulate(rows, headings, "pipe", disable_numparse=True)
            + f"\n\nAt {kept} of {len(rows)} values of p the saving measured is at least the printed one.")  # fmt: skip
