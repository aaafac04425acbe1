"""What the scripts of the papers' findings share: runs what is missing, reads curves, draws panels."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import mpifl

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
Curve = tuple[np.ndarray, np.ndarray]

# Okabe and Ito's colours, as in the report
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
_worker = ExitStack()  # of a process of `pool`


@dataclass(frozen=True)
class Cell:
    """One run: a job file, what is changed in it, and where it goes."""

    job: Path
    output: Path  # under results/
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: lines by label."""

    title: str
    lines: Mapping[str, Curve]
    x: str
    y: str
    log: bool = False
    limits: tuple[float | None, float | None] = field(default=(None, None))  # of y


def run(cell: Cell) -> str:
    """Runs one cell in this process, unless its file exists; the file's name."""
    if not is_completed(cell.output):
        mpifl.run(cell.job, *cell.overrides, output=cell.output, overwrite=True).close()
    return cell.output.name


def is_completed(path: Path) -> bool:
    """Whether this file exists and holds a completed run."""
    return path.exists() and mpifl.open_run(path).status == "completed"


def pool(processes: int) -> ProcessPoolExecutor:
    """Processes for runs, each of which keeps the problem that it loaded last."""
    return ProcessPoolExecutor(processes, initializer=_keep_problem)


def _keep_problem() -> None:
    _worker.enter_context(mpifl.keep_problem())


def run_all(cells: Sequence[Cell], processes: int) -> None:
    """Runs every cell whose file does not exist yet, so many at a time. Raises what a run raised."""
    with pool(processes) as executor:
        for k, future in enumerate([executor.submit(run, cell) for cell in cells], 1):
            print(f"{k}/{len(cells)} {future.result()}", file=sys.stderr, flush=True)


def curve(path: Path, metric: str, against: str = "time") -> Curve:
    """A metric at the evaluations of a run file, against time (s), updates, version, or bytes (sent both ways)."""
    with mpifl.open_run(path) as file:
        evaluations, updates = file.evaluations, file.updates
    y = evaluations[metric].to_numpy()
    if against != "bytes":
        return evaluations[against].to_numpy(), y
    total = np.concatenate([[0], np.cumsum((updates.bytes + updates.bytes_down).to_numpy())])
    return total[evaluations.updates.to_numpy()], y


def draw(path: Path, panels: Sequence[Panel], columns: int = 2) -> None:
    """Writes a figure of panels; a label has the same colour in all of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    labels = list(dict.fromkeys(label for panel in panels for label in panel.lines))
    rows = -(-len(panels) // columns)
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, grid = plt.subplots(
            rows, columns, figsize=(3.7 * columns, 2.8 * rows + 0.5), layout="constrained", squeeze=False
        )
        handles = {}
        for axes, panel in zip(grid.flat, panels, strict=False):
            for label, (x, y) in panel.lines.items():
                k = labels.index(label)
                style = STYLES[k // len(COLOURS) % len(STYLES)]
                (handles[label],) = axes.plot(x, y, style, color=COLOURS[k % len(COLOURS)], linewidth=1.4)
            axes.set_title(panel.title, fontsize=9)
            axes.set_xlabel(panel.x)
            axes.set_ylabel(panel.y)
            axes.margins(x=0.01)
            if panel.log:
                axes.set_yscale("log")
            axes.set_ylim(*panel.limits)
            axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
        for axes in list(grid.flat)[len(panels) :]:
            axes.remove()
        ncols = 2 * columns if max(map(len, labels)) <= 18 else columns + 1
        figure.legend([handles[k] for k in labels], labels, loc="outside lower center", ncols=ncols, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
        plt.close(figure)
