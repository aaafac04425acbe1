"""The FedDANE paper's findings (arXiv 2001.01920; Figures 1 and 2 and the appendix) on the synthetic sets.

    python jobs/feddane/figures.py [--processes N]

Runs what is not in results/feddane/ yet (virtual clock), then writes docs/results/feddane.md and its figures from the
run files. About 35 minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import findings
import numpy as np
from findings import Cell, Panel

import mpifl

JOBS, RUNS = Path(__file__).parent, findings.ROOT / "results" / "feddane"
SETS = {
    "iid": "name: synthetic-iid",
    "(0,0)": "name: synthetic, alpha: 0, beta: 0",
    "(0.5,0.5)": "name: synthetic, alpha: 0.5, beta: 0.5",
    "(1,1)": "name: synthetic, alpha: 1, beta: 1",
}
SEED = 3  # of the data
SEEDS = {"(0,0)": [0, 1], "(0.5,0.5)": [0, 1], "(1,1)": [0, 1, 2]}  # other draws of the data
HETEROGENEOUS = [name for name in SETS if name != "iid"]
METHODS = {"fedavg": "FedAvg", "fedprox": "FedProx", "feddane": "FedDANE"}
MUS = {"fedavg": ["0"], "fedprox": ["0", "0.1", "1"], "feddane": ["0", "0.1", "1"]}
DRAWS = {  # how the devices of a round are drawn and weighted
    "code": (),  # as the job files: uniformly, weights n_k, FedDANE's two phases with the same devices
    "sets": ("algorithm.same_set=false",),  # FedDANE: the second phase's devices are drawn anew
    "text": ("algorithm.sampling=samples", "algorithm.weights=uniform"),  # with probability p_k, plain mean
}
DEVICES = [1, 5, 10, 30]
LAST = 10  # updates over which a run's last metric is averaged
Tuned = dict[tuple[str, str], str]  # (set, method) -> mu
Runs = Callable[..., list[Cell]]  # of a set, a method, and a kind of draw: one run for each mu
ONE, TWO = "FedDANE, one set", "FedDANE, two sets"

HEAD = """\
# FedDANE on the synthetic sets

*FedDANE: A Federated Newton-Type Method* (arXiv 2001.01920): Figures 1 and 2 and the appendix, as far as they are on
synthetic data. Multinomial logistic regression, 60 x 10 with bias, from zero; 30 devices; step 0.01, batches of 10; mu
the best by training loss. Made by

```sh
python jobs/feddane/figures.py
```

from the jobs in [jobs/feddane](../../jobs/feddane), under the virtual clock. An update of FedDANE is two round trips,
counted as one, as in the paper. As in its released code, devices are drawn uniformly without replacement and weighted
by their rows n_k. *One set*: both phases have the same devices, as in that code; *two sets*: each phase draws its own,
as the text says. Losses and accuracies are means over the last ten updates. Bold is the chosen mu, which two sets take
over. Accuracies are of FedAvg / FedProx / FedDANE with one set / with two.

Shortened: 100 updates, not 200 (the appendix: 200); mu of 0, 0.1, 1, not also 0.001 and 0.01; one run of each. The data
are those of seed 3, whose 10,025 rows are about as many as the released (1,1) set has by the size of its test file.
FedProx with mu = 0 is FedAvg.
"""

REASONS = """
## What comes out

- **On iid data FedDANE is level with FedAvg and FedProx**: yes, with one set and with two.
- **On (0,0), (0.5,0.5) and (1,1), 10 of 30 devices and 20 epochs, it is worse than both**: yes with two sets, the
  method as the paper states it. Its loss is above both on all three sets, and over ten draws of the data above that of
  FedProx in all and above that of FedAvg in eight. With one set, the released code, it is above that of FedProx in
  seven of ten and above that of FedAvg in four, and on (1,1) of Figure 1 it is the lowest of all after a bad start. A
  smaller mu makes FedDANE far worse: with mu = 0 it ends at 9 to 35.
- **Few devices hurt it**: yes with two sets: the loss falls from 1 to 5 to 10 to 30 devices, but for a late peak with
  10 on (1,1). With one set there is no such order: 30 devices are better than 5 and 10, but with one device g_t is its
  own gradient, and FedDANE is FedProx with one device.
- **On (0.5,0.5) even all devices do not help**: they help, but not enough. The loss swings from update to update, here
  and on (0,0), and stays above that of FedProx with 10.
- **It disappoints even with 78 % of the devices and one epoch**: no. Here its loss is well below both on all three
  sets, and level with them on iid data.
- With the text's sampling (probability p_k, plain mean, two sets, 50 updates) it is between FedAvg and FedProx, and
  on iid data level.

## Why

The correction is constant in a long local run: a device of 2,500 rows takes 5,000 steps with it. A logistic loss
flattens far out, so that without mu the local problem need not have a minimum: a device whose few rows are separable
follows its correction as long as it is let.

With all devices and exact local solutions an update is w - sum p_k (H_k + mu I)^-1 grad f, and near a minimum it is
stable while no eigenvalue of I - sum p_k (H_k + mu I)^-1 Hbar is below -1 (FEDDANE.2 in
[algorithms.md](../algorithms.md)). With mu = 1 the least of them, at the last model of FedDANE in the appendix'
setting, is

| iid | (0,0) | (0.5,0.5) | (1,1) |
| --- | --- | --- | --- |
| {} | {} | {} | {} |

Devices whose loss is flat go far too far along directions in which the mean is steep. Hence the swing with all 30
devices on the second and the third set, and none on (1,1). One epoch is too short to go that far.

The mean of the corrections over the second phase's devices is 0 with one set and g_S - g_S' with two: two sets push
the model by the difference of two samples' gradients, and the fewer the devices the larger it is.
"""


# -- runs --------------------------------------------------------------------------------------------------------------
def cell(
    data: str, method: str, mu: str, K: int = 10, E: int = 20, updates: int = 100, draw: str = "code", seed: int = SEED
) -> Cell:
    """One run of so many updates; FedDANE takes two seconds of the clock for each, the others one."""
    if method == "fedprox" and mu == "0":
        method = "fedavg"  # to the bit
    overrides = [
        f"problem.data={{{SETS[data]}, seed: {seed}}}", f"algorithm.cohort={K}", f"algorithm.local_epochs={E}",
        f"stop.time={updates * phases(method)}", *DRAWS[draw],
    ]  # fmt: skip
    if method != "fedavg":
        overrides.append(f"algorithm.mu={mu}")
    if method == "feddane" and draw == "text":
        overrides += DRAWS["sets"]
    place = "-".join([data.strip("()").replace(",", "_"), method, f"mu{mu}", f"K{K}", f"E{E}"])
    place += ("" if draw == "code" else f"-{draw}") + ("" if seed == SEED else f"-data{seed}")
    return Cell(JOBS / f"{method}.yaml", RUNS / f"{place}.h5", tuple(overrides))


def phases(method: str) -> int:
    return 2 if method == "feddane" else 1


def curve(run: Cell, metric: str = "train_loss") -> findings.Curve:
    """A metric against updates."""
    seconds, y = findings.curve(run.output, metric)
    return seconds / phases(run.job.stem), y


def last(run: Cell, metric: str = "train_loss") -> float:
    """The mean of the last updates."""
    return float(np.mean(curve(run, metric)[1][-LAST:]))


def main_runs(data: str, method: str, draw: str = "code") -> list[Cell]:
    return [cell(data, method, mu, draw=draw) for mu in MUS[method]]


def appendix_runs(data: str, method: str, draw: str = "code") -> list[Cell]:
    """About 78 % of the devices, one epoch."""
    return [cell(data, method, mu, K=23, E=1, updates=200, draw=draw) for mu in MUS[method]]


def participation(data: str, mu: str, draw: str) -> dict[int, Cell]:
    """FedDANE by the number of devices; with all of them there is one set."""
    return {K: cell(data, "feddane", mu, K=K, draw="code" if K == 30 else draw) for K in DEVICES}


def text_runs(data: str, tuned: Tuned) -> dict[str, Cell]:
    """Fewer updates: devices with many rows are drawn often."""
    return {m: cell(data, m, tuned[data, m], updates=50, draw="text") for m in METHODS}


def seed_runs(data: str, seed: int, tuned: Tuned) -> list[Cell]:
    """Another draw of the data, with the mu of the first."""
    runs = [cell(data, m, tuned[data, m], seed=seed) for m in METHODS]
    return [*runs, cell(data, "feddane", tuned[data, "feddane"], seed=seed, draw="sets")]


def best(runs: list[Cell]) -> Cell:
    """The run with the lowest training loss, as the paper chooses mu; a loss that is no number is the highest."""
    return min(runs, key=lambda run: loss if np.isfinite(loss := last(run)) else np.inf)


def tune(runs: list[Cell], method: str) -> str:
    return MUS[method][runs.index(best(runs))]


def compared(data: str, runs: Runs) -> dict[str, Cell]:
    """Each method with its best mu; FedDANE also with two sets, and the mu that is best with one."""
    chosen = {name: best(runs(data, method)) for method, name in METHODS.items()}
    two = runs(data, "feddane", "sets")[runs(data, "feddane").index(chosen["FedDANE"])]
    return {"FedAvg": chosen["FedAvg"], "FedProx": chosen["FedProx"], ONE: chosen["FedDANE"], TWO: two}


def swing(run: Cell) -> float:
    """The least eigenvalue of I - sum_k p_k (H_k + I)^-1 Hbar at a run's last model, H_k the devices' Hessians.

    Below -1, updates with all devices, mu = 1 and exact local solutions move away from a minimum.
    """
    problem = mpifl.load_problem(run.job, *run.overrides)
    p, x = problem.samples / problem.samples.sum(), np.asarray(mpifl.open_run(run.output).model, float)
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


# -- page --------------------------------------------------------------------------------------------------------------
def table(columns: list[str], rows: dict[str, list[str]]) -> str:
    lines = [["set", *columns], ["---"] * (1 + len(columns)), *([name, *row] for name, row in rows.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def sweep_table(runs: Runs) -> str:
    """Last losses for every mu, those of the chosen mu in bold."""
    columns = {"FedAvg": ("fedavg", 0)}
    columns |= {f"{METHODS[m]}, mu {mu}": (m, k) for m in ("fedprox", "feddane") for k, mu in enumerate(MUS[m])}
    del columns["FedProx, mu 0"]
    rows = {}
    for data in SETS:
        chosen = list(compared(data, runs).values())
        cells = [runs(data, method)[k] for method, k in columns.values()]
        rows[data] = [f"**{last(run):.3f}**" if run in chosen else f"{last(run):.3f}" for run in cells]
        rows[data].append(f"{last(chosen[-1]):.3f}")
        rows[data].append(" / ".join(f"{100 * last(run, 'test_accuracy'):.1f}" for run in chosen))
    return table([*columns, "two sets, same mu", "accuracy, %"], rows)


def methods_figure(name: str, runs: Runs) -> str:
    return figure(name, {f"synthetic {data}": compared(data, runs) for data in SETS}, 2)


def figure(name: str, panels: dict[str, dict[str, Cell]], columns: int) -> str:
    drawn = [
        Panel(title, {label: curve(run) for label, run in lines.items()}, "updates", "training loss", log=True)
        for title, lines in panels.items()
    ]
    findings.draw(findings.RESULTS / f"{name}.png", drawn, columns)
    return f"![{name}]({name}.png)"


def page(tuned: Tuned) -> str:
    sets = {"code": "one set", "sets": "two sets"}
    devices = {  # by (set, draw), then by number
        (data, draw): participation(data, tuned[data, "feddane"], draw) for draw in sets for data in HETEROGENEOUS
    }
    by_devices = {}
    for data in HETEROGENEOUS:
        runs = [devices[data, draw][K] for draw in sets for K in DEVICES[:-1]]
        runs += [devices[data, "code"][30], cell(data, "fedavg", "0")]
        by_devices[f"{data}, mu {tuned[data, 'feddane']}"] = [f"{last(run):.3f}" for run in runs]
    columns = [f"{K}, {word}" for word in sets.values() for K in DEVICES[:-1]] + ["30", "FedAvg, 10"]
    by_sets = {
        f"{data}, {sets[draw]}": {f"{K} device{'s' if K > 1 else ''}": run for K, run in by_number.items()}
        for (data, draw), by_number in devices.items()
    }
    text = {data: [f"{last(run):.3f}" for run in text_runs(data, tuned).values()] for data in SETS}
    others = {
        f"{data}, seed {seed}": [f"{last(run):.3f}" for run in seed_runs(data, seed, tuned)]
        for data in SEEDS for seed in [SEED, *SEEDS[data]]
    }  # fmt: skip
    parts = [
        HEAD,
        "## Figure 1: ten of thirty devices, 20 epochs", methods_figure("feddane-methods", main_runs),
        sweep_table(main_runs),
        "## Figure 2: the number of devices", figure("feddane-devices", by_sets, 3), table(columns, by_devices),
        "## The appendix: 23 of 30 devices, one epoch", methods_figure("feddane-appendix", appendix_runs),
        sweep_table(appendix_runs),
        "## Sampling as in the text", table(list(METHODS.values()), text),
        "## Other draws of the data", table(["FedAvg", "FedProx", ONE, TWO], others),
        REASONS.format(*(f"{swing(best(appendix_runs(data, 'feddane'))):.1f}" for data in SETS)),
    ]  # fmt: skip
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    processes = parser.parse_args().processes
    pairs = [(data, method) for data in SETS for method in METHODS]
    findings.run_all([run for pair in pairs for run in main_runs(*pair)], processes)
    tuned = {pair: tune(main_runs(*pair), pair[1]) for pair in pairs}
    rest = [run for draw in DRAWS if draw != "text" for data in HETEROGENEOUS
            for run in participation(data, tuned[data, "feddane"], draw).values()]  # fmt: skip
    rest += [run for pair in pairs for run in appendix_runs(*pair)]
    findings.run_all(list(dict.fromkeys(rest)), processes)
    rest = [run for data in SETS for runs in (main_runs, appendix_runs) for run in compared(data, runs).values()]
    rest += [run for data in SETS for run in text_runs(data, tuned).values()]
    rest += [run for data in SEEDS for seed in SEEDS[data] for run in seed_runs(data, seed, tuned)]
    findings.run_all(list(dict.fromkeys(rest)), processes)
    (findings.RESULTS / "feddane.md").write_text(page(tuned), encoding="utf-8")


if __name__ == "__main__":
    main()
