"""Figure 2 of AREA: how the rows of each class are split over the clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tabulate import tabulate

import mpifl
from mpifl.tools.analysis import style
from mpifl.tools.reproduce.items import Item

NAME = "area-figure2-1.png"


def counts(job: mpifl.Job) -> np.ndarray:
    """(classes, clients) the number of training rows of each class at each client."""
    problem = mpifl.load_problem(job)
    return np.array([np.bincount(problem.shard(i)[1], minlength=10) for i in range(problem.clients)]).T


def figure(item: Item, out: Path) -> str:
    """Markdown: the figure, and a table with the sizes and the numbers of classes of the clients."""
    splits = {str(run.labels["split"]): counts(run.job) for run in item.study.runs}
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    with style.paper_style():
        drawn, axes = style.panels([*splits], 8.0)
        for ax, (name, table) in zip(axes, splits.items(), strict=True):
            sizes, held = table.sum(0), (table >= 0.05 * table.sum(0)).sum(0)
            rows.append([name, f"{sizes.min()}", f"{sizes.mean():.0f}", f"{sizes.max()}", f"{held.min()}",
                         f"{held.mean():.1f}", f"{held.max()}"])  # fmt: skip
            clients, classes = np.meshgrid(np.arange(table.shape[1]), np.arange(table.shape[0]))
            ax.scatter(clients.ravel(), classes.ravel(), s=table.ravel() / 12, linewidths=0)
        style.label_axes(axes, "client", "class")
        drawn.savefig(out / NAME, dpi=150)
    most = "classes that are 5 % or more of its rows: least"
    headings = ["split", "rows of a client: least", "mean", "most", most, "mean", "most"]
    caption = "Rows of each class at each client; areas are proportional to numbers"
    return f"![{caption}]({NAME})\n\n*{caption}.*\n\n" + tabulate(rows, headings, "pipe", disable_numparse=True)
