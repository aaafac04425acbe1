"""The findings of the FedPD paper (arXiv 2005.11418, Fig. 2): penalised logistic regression on 100 agents.

    python jobs/fedpd/figures.py [--processes 1]

Runs what is not in results/fedpd/ yet, then writes docs/results/fedpd.png, fedpd-steps.png and the tables of
docs/results/fedpd.md, between its marks. About 15 minutes on one core.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from findings import RESULTS, ROOT, Cell, Curve, Panel, curve, draw, run_all

import mpifl

HERE = Path(__file__).parent
RUNS = ROOT / "results" / "fedpd"
CLIENTS, ROUNDS = 100, 600


@dataclass(frozen=True)
class Line:
    """One method with its steps: a job and what is changed in it."""

    label: str
    job: str
    changes: dict[str, float]  # of the algorithm section
    rounds: int = ROUNDS
    skip: float = 0.0  # share of the rounds without communication

    def cell(self, kind: str) -> Cell:
        name = "-".join([kind, self.job, *(f"{k}={v}" for k, v in self.changes.items())])
        updates = round(CLIENTS * self.rounds * (1 - self.skip))
        changes = [f"algorithm.{k}={v}" for k, v in self.changes.items()]
        more = [f"problem.data.kind={kind}", f"stop.updates={updates}", *changes]
        return Cell(HERE / f"{self.job}.yaml", RUNS / f"{name}.h5", tuple(more))


def eta(value: float) -> dict[str, float]:
    """FedPD with gamma -> infinity: a local step is as long as eta."""
    return {"eta": value, "step_size": value}


PAPER = [  # the steps of the released code
    Line("FedPD-GD", "gd", {}),
    Line("FedPD-GD p = 0.5", "gd", {"skip": 0.5}, skip=0.5),
    Line("FedPD-VR", "vr", {}),
    Line("FedPD-VR Q = 2, I = 100", "vr", {"local_steps": 2, "refresh": 100}),
    Line("FedPD-SGD", "sgd", {}, 150),
    Line("FedAvg-GD", "fedavg", {}),
    Line("FedProx-VR", "fedprox", {}),
]
STEPS = [  # others, on the strong labels of the text
    Line("FedPD-GD 0.5", "gd", eta(0.5), 300),
    Line("FedPD-GD 0.5, p = 0.5", "gd", {**eta(0.5), "skip": 0.5}, 300, 0.5),
    Line("FedPD-GD 0.5, R = 2", "gd", {**eta(0.5), "period": 2}, 300, 0.5),
    Line("FedPD-VR 0.027", "vr", eta(0.027)),
    Line("FedPD-VR 0.2", "vr", eta(0.2), 300),
    Line("FedPD-SGD 0.005", "sgd", {"step_size": 0.005}, 150),
    Line("FedAvg-GD 0.05", "fedavg", {"step_size": 0.05}, 300),
    Line("FedAvg-GD 0.2", "fedavg", {"step_size": 0.2}, 300),
    Line("FedAvg-GD 0.2, Q = 1", "fedavg", {"step_size": 0.2, "local_steps": 1}, 300),
    Line("FedProx 0.04, mu = 0.1", "fedprox", {"mu": 0.1}, 300),
    Line("FedProx 0.04, mu = 10", "fedprox", {"mu": 10}, 300),
    Line("FedProx 0.2, mu = 2.5", "fedprox", {"step_size": 0.2}, 300),
]
KINDS = {"weak": "weak", "strong": "strong", "strong-code": "strong, the code's labels"}


def squared(cell: Cell, against: str) -> Curve:
    """||grad f(x_0)||^2 at the evaluations, against communications or the rounds that passed."""
    messages, norm = curve(cell.output, "gradient_norm", "version")
    if against == "messages":
        return messages, norm**2
    with mpifl.open_run(cell.output) as file:
        updates, config = file.updates, file.config["algorithm"]
    steps = updates.local_steps.to_numpy()[updates.client.to_numpy() == 0] / config["local_steps"]
    return np.concatenate([[0], np.cumsum(steps)])[messages], norm**2


def row(line: Line, kind: str) -> str:
    """Markdown: messages and rounds, the squared gradient after 100 messages, at the end, and just before it."""
    messages, square = squared(line.cell(kind), "messages")
    rounds = squared(line.cell(kind), "rounds")[0][-1]
    tenth = max(len(square) // 10, 1)
    end, before = np.median(square[-tenth:]), np.median(square[-2 * tenth : -tenth])
    reached = [
        next((str(m) for m, s in zip(messages, square, strict=True) if s < level), "-") for level in (1e-6, 1e-8)
    ]
    cells = [
        line.label,
        messages[-1],
        f"{rounds:.0f}",
        f"{square[100]:.1e}",
        f"{end:.1e}",
        f"{end / before:.2f}",
        *reached,
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


HEADER = """\
| method | messages | rounds | after 100 messages | at the end | its change | messages to 1e-6 | to 1e-8 |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1)
    lines = {kind: PAPER if kind != "strong" else [*PAPER, *STEPS] for kind in KINDS}
    cells = [line.cell(kind) for kind in KINDS for line in lines[kind]]
    run_all(cells, parser.parse_args().processes)
    text = "||grad f(x_0)||^2"
    panels = [
        Panel(f"{kind} labels", {line.label: squared(line.cell(kind), against) for line in PAPER}, against, text, True)
        for against in ("rounds", "messages")
        for kind in ("weak", "strong")
    ]
    draw(RESULTS / "fedpd.png", panels)
    groups = {"FedPD": STEPS[:6], "FedAvg and FedProx": STEPS[6:]}
    panels = [
        Panel(title, {line.label: squared(line.cell("strong"), "messages") for line in group}, "messages", text, True)
        for title, group in groups.items()
    ]
    draw(RESULTS / "fedpd-steps.png", panels)
    page = RESULTS / "fedpd.md"
    tables = {kind: [row(line, kind) for line in PAPER] for kind in KINDS}
    tables["steps"] = [row(line, "strong") for line in STEPS]
    written = page.read_text()
    for name, rows in tables.items():
        table = "\n".join([HEADER, *rows])
        written = re.sub(f"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>\n{table}\n\n\g<2>", written, flags=re.DOTALL)
    page.write_text(written)


if __name__ == "__main__":
    main()
