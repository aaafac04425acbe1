"""Tables 3, 4, 7 and 8 of the AREA paper (arXiv 2405.10123), ours beside the printed ones.

    python jobs/area/tables.py [--trials 10] [--processes 2] [--tables 3 4 7 8]

Runs every cell's trials that are not in results/area/ yet (one process each, virtual clock), then writes
docs/results/area.md from the run files and jobs/area/printed.csv. About an hour on 2 cores; needs MNIST.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))
import findings

import mpifl

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
JOBS = {"S-FedAvg": "fedavg", "AS-FedAvg": "async-fedavg", "FedBuff": "fedbuff", "AREA": "area"}
SPREAD = {"equal": 0, "unequal": 5}  # N(10, 5) is the paper's law of unequal rates
Cell = tuple[int, str, float, str]  # table, method, step, rates

HEAD = """\
# The AREA paper's tables

Tables 3 and 7 (128 clients, M = 1, 15 s) and 4 and 8 (M = 50, 2 s) of *Asynchronous Federated Stochastic Optimization
for Heterogeneous Objectives Under Arbitrary Delays* (arXiv 2405.10123 v3), cell by cell: multinomial logistic
regression on MNIST, four methods, two steps each, equal rates (10 a second) and unequal ones (N(10, 5), negative
draws by absolute value). The conventions behind the numbers are in [algorithms.md](../algorithms.md), the jobs in
[jobs/area](../../jobs/area). Made by

```sh
python jobs/area/tables.py
```

under the virtual clock, in one process a trial: seeds 0 to 9 draw the initial model, the rates, the contact times and
the batches; the split is one for all trials (partition seed 0). Mean (min-max) over the trials of the last evaluation;
rho = t_80/t_h, t_80 the first evaluation at which the trials' mean accuracy is 80 % or more; in brackets the median
over the trials of each one's own first such evaluation (the paper does not say which it means).

The last column judges our mean. AREA at step 100, and FedBuff at step 1 with M = 1: within 1.0 point of accuracy and
0.05 of loss of the printed mean. Every other cell: inside the printed min to max. rho: within 0.1 where it is printed
below 1.
"""

REASONS = """
## What falls outside, and why

All strict cells hold, and of the others every mean of accuracy.

- **Loss of AREA at step 1000, Table 8**: 6 to 7 % above the printed mean, the trials 2 % around it. An independent
  simulation of the paper has the same residue (2.77 and 2.76). It is not the split: with equal rates, one trial on each
  of three other near-iid splits (partition seeds 1, 2, 3) gives 2.68, 2.58 and 2.69. The accuracy agrees.
- **rho of noisy rows** (AS-FedAvg and S-FedAvg at large steps): their accuracy swings by tens of points from one
  evaluation to the next, so that t_80 depends on what is averaged. A single trial crosses 80 % early, the mean of ten
  late. For six of the eight cells one of the two figures is within 0.1 of the printed one; for the other two (S-FedAvg
  at step 100 in Table 3, AS-FedAvg at step 100 with equal rates in Table 4) the printed figure lies between them. These
  rows also depend most on the split and the seeds: the printed range of S-FedAvg in Table 3 is 41 to 85 %.
"""


def run_file(cell: Cell, seed: int) -> Path:
    table, method, step, rates = cell
    return ROOT / "results" / "area" / f"table{table}-{JOBS[method]}-{step:g}-{rates}-{seed}.h5"


def run(cell: Cell, seed: int) -> str:
    """One trial, unless its file exists; the file's name."""
    table, method, step, rates = cell
    path = run_file(cell, seed)
    job = HERE / f"table{table}-{JOBS[method]}.yaml"
    overrides = f"algorithm.step_size={step:g}", f"clock.delay.spread={SPREAD[rates]}", f"seed={seed}"
    return findings.run(findings.Cell(job, path, overrides))


def summary(cell: Cell, trials: int) -> dict[str, float]:
    """Mean, min and max over the trials' last evaluations, and rho, of the mean curve and the median of the trials'."""
    (cells,) = mpifl.open_runs([run_file(cell, seed) for seed in range(trials)]).groups
    last = {"accuracy": 100 * cells.last("test_accuracy"), "loss": cells.last("train_loss")}
    found = {
        f"{key}_{what}": getattr(values, what)() for key, values in last.items() for what in ("mean", "min", "max")
    }
    return {
        **found,
        "rho": cells.rho,
        "rho_median": median(replace(cells, trials=[trial]).rho for trial in cells.trials),
    }


def verdict(row: pd.Series, ours: dict[str, float]) -> str:
    """How a cell is judged: strict cells by distance of the means, the others by the printed range; then rho."""
    if pd.isna(row.accuracy):
        return "not printed"
    missed = []
    strict = (row.method, row.step) == ("AREA", 100) or (
        (row.method, row.step) == ("FedBuff", 1) and row.table in (3, 7)
    )
    for key, within in (("accuracy", 1.0), ("loss", 0.05)):
        mean = round(ours[f"{key}_mean"], 2)
        if strict and abs(mean - row[key]) > within:
            missed.append(f"{key} {mean - row[key]:+.2f}")
        elif not strict and not row[f"{key}_min"] <= mean <= row[f"{key}_max"]:
            missed.append(f"{key} outside")
    if row.rho != ">1" and abs(ours["rho"] - float(row.rho)) > 0.1:
        missed.append(f"rho {ours['rho'] - float(row.rho):+.2f}")
    return ", ".join(missed) or "ok"


def render(printed: pd.DataFrame, trials: int) -> tuple[str, int, int]:
    """The Markdown tables, and how many of the printed cells are met."""
    lines, met, count = [], 0, 0
    for table, rows in printed.groupby("table"):
        lines += ["", f"## Table {table}", ""]
        lines.append(
            "| method | step | rates | accuracy, printed | ours | loss, printed | ours | rho, printed | ours | |"
        )
        lines.append("|---|---|---|---|---|---|---|---|---|---|")
        for _, row in rows.iterrows():
            ours = summary((row.table, row.method, row.step, row.rates), trials)
            judgement = verdict(row, ours)
            met, count = met + (judgement == "ok"), count + (judgement != "not printed")
            both = []
            for key in ("accuracy", "loss"):
                none = pd.isna(row[key])
                both.append("-" if none else f"{row[key]:.2f} ({row[f'{key}_min']:.2f}-{row[f'{key}_max']:.2f})")
                both.append("{:.2f} ({:.2f}-{:.2f})".format(*(ours[f"{key}_{w}"] for w in ("mean", "min", "max"))))
            rhos = [f"{ours[key]:.2f}" if ours[key] <= 1 else ">1" for key in ("rho", "rho_median")]
            both += ["-" if pd.isna(row.rho) else row.rho, "{} ({})".format(*rhos)]
            lines.append(f"| {row.method} | {row.step:g} | {row.rates} | {' | '.join(both)} | {judgement} |")
    return "\n".join(lines), met, count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--tables", type=int, nargs="+", default=[3, 4, 7, 8])
    args = parser.parse_args()
    printed = pd.read_csv(HERE / "printed.csv")
    printed = printed[printed.table.isin(args.tables)]
    cells: list[Cell] = [tuple(c) for c in printed[["table", "method", "step", "rates"]].itertuples(index=False)]
    try:
        with findings.pool(args.processes) as pool:
            todo = [pool.submit(run, cell, seed) for cell in cells for seed in range(args.trials)]
            for k, future in enumerate(todo, 1):
                print(f"\r{k}/{len(todo)} {future.result()}    ", end="", file=sys.stderr, flush=True)
    except mpifl.ConfigError as error:
        print(f"tables: {error}", file=sys.stderr)
        return 2
    tables, met, count = render(printed, args.trials)
    out = ROOT / "docs" / "results" / "area.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        f"{HEAD}\n{met} of {count} printed cells are met, with {args.trials} trials each.\n{tables}\n{REASONS}",
        encoding="utf-8",
    )
    print(f"\n{out.relative_to(ROOT)}: {met} of {count} printed cells are met", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
