"""AsyPFL with irregular clients, and the effect of lambda: runs it, draws it, prints tables.

python jobs/asypfl/figures.py [--processes N]      run files under results/asypfl, figures and page under docs/results
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import findings
import numpy as np
from findings import Cell, Panel

import mpifl

PAGE = """# AsyPFL: irregular clients, and the effect of lambda

The paper (Ma, Lu, Li, Cui) gives no step size, lambda, E, batch, number of rounds or seed, and its models are deep
networks: its numbers cannot be reproduced. What is tested here is what it says in words, on a convex surrogate: with
irregular clients and non-iid data AsyPFL is ahead of FedAvg and FedProx, and the elastic term helps personal models.

    python jobs/asypfl/figures.py

**Setting.** Fashion-MNIST, 40 clients with 3 of the 10 classes each, all of the same size; 97 % of every client's rows
are held out as its own test rows, so that it trains on 45. Multinomial logistic regression from zero, batches of 10,
step 0.1 for every method. Virtual time, 180 s: a local epoch takes 0.2 to 2 s and the messages of a contact 0.2 to
20 s, both log-uniform over the clients (the lists are in the job files). Rounds wait for the slowest client: 21 s with
E = 1, 27 s with E = 5. Means over three seeds, each with its own deal of the rows; accuracies in per cent.

AsyPFL: E = 1, lambda = 10, pi_k from the measured times and at most 5, h computed once a contact. The others have
E = 1, or E = 5 where a contact computes for five times as long. FedProx mu = 0.1, APFL alpha = 0.75, FedAMP
lambda = 0.001, sigma = 1, alpha = 1/40. A few single runs chose them: step 0.3, APFL with alpha = 0.5 and FedAMP with
sigma = 10 were worse.

## Irregular clients

![accuracy over virtual time](asypfl.png)

<METHODS>

*shared model*: on the 10,000 test rows of the data (FedAMP has none: the mean of its models). *personal*: each client's
own model on its own test rows; for FedAvg and FedProx the shared model there. *BMTA*: best mean over the run. The last
two columns are seconds until a mean over the seeds is at 70 or 90 %, looked at every 15 s. *rounds*: AsyPFL's
synchronous mode, pi_k = 1. *slower*: local epochs three times as long, see below.

- It comes out: AsyPFL is ahead of FedAvg and FedProx in both models. In the personal ones by 17 points, but any method
  with personal models is ahead by 12 or more, because a client holds 3 of the 10 classes. In the shared model by
  4 points, and at 70 % in half the time. That is due to asynchrony alone: in rounds its shared model is FedAvg's.
- Ahead of APFL and FedAMP as well, by 1.9 and 1.4 points in the personal mean, in each of the three seeds. Neither of
  them is better here than clients that train alone (lambda = 0 below).
- The indicators pi_k do nothing for the shared model (77.2 against 77.3 with pi_k = 1). They give clients with slow
  messages more local epochs, and so better personal models: 0.7 points more in the mean, 1.3 in the lower quartile,
  ahead in each seed, and at 90 % in half the time.
- What it does not show: the clock takes a local epoch to be equally long in all methods, while AsyPFL has two gradients
  a step (as APFL has) and one pass for h a contact. *slower* charges three times the computing time, about the most
  that this can be. AsyPFL is then still ahead of FedAvg and FedProx in the shared model, by 3 points; in the personal
  mean it is level with FedAMP.
- The runs end before the synchronous methods have converged: 8 rounds with E = 1, 6 with E = 5, against about 2,300
  uploads of AsyPFL.

## Lambda

![accuracy by lambda](asypfl-lambda.png)

Personal models on the clients' own test rows after 180 s:

<LAMBDA>

- A middle lambda is best. 10 gains 1.3 points in the mean and 3.5 in the lower quartile on lambda = 0, which is every
  client alone, and gains in each seed: clients that do badly alone gain most. The price is a slower start, because the
  personal models follow a shared model that is poor at first.
- lambda = 100 fails because its steps are too long for it: a step of beta_k contracts towards omega_k only where
  delta lambda h < 2. The largest entry of a client's h (seed 0) makes delta lambda h <START> at the initial model, and
  <END> at the last shared model. Clients with few contacts (some have 6 in a run) do not come back from their first
  ones. A smaller `personal_step` is what such a lambda needs.

## What was shortened

45 training rows a client and a logistic model instead of deep networks; three seeds; one law of the times; 180 s;
hardly any tuning.
"""

JOBS, RUNS = Path(__file__).parent, findings.ROOT / "results" / "asypfl"
SEEDS = (0, 1, 2)
BASELINES = {"FedAvg": "fedavg", "FedProx": "fedprox", "APFL": "apfl", "FedAMP": "fedamp"}
LAMBDAS = ("0", "1", "10", "30", "100")
EQUAL = "algorithm.indicators={name: equal}"
METRICS = ("mean", "q25", "median", "q75", "best")
TARGETS = {"shared_accuracy": 0.7, "personal_accuracy_mean": 0.9}


def cell(job: str, seed: int, name: str, *overrides: str, E: int = 1, factor: int | None = None) -> Cell:
    """One run. A seed has its own deal of the rows; E local epochs take E times as long, or `factor` times."""
    path = JOBS / f"{job}.yaml"
    more = [f"seed={seed}", f"problem.partition.seed={seed}", *overrides]
    if (factor := factor or E) > 1:
        times = np.array(mpifl.load_job(path).clock.delay.compute)  # type: ignore[attr-defined]
        more += [f"algorithm.local_epochs={E}", f"clock.delay.compute={(factor * times).round(2).tolist()}"]
    return Cell(path, RUNS / f"{name}-s{seed}.h5", tuple(more))


def rows() -> dict[str, list[Cell]]:
    """The runs of each row of the first table, one a seed."""
    found = {}
    for label, job in BASELINES.items():
        for E in (1, 5):
            found[f"{label}, E = {E}"] = [cell(job, s, f"{job}-E{E}", E=E) for s in SEEDS]
    found |= {
        "AsyPFL, rounds, E = 5": [
            cell("asypfl", s, "asypfl-synchronous", EQUAL, "algorithm.mode=synchronous", E=5) for s in SEEDS
        ],
        "AsyPFL, pi_k = 1": [cell("asypfl", s, "asypfl-equal", EQUAL) for s in SEEDS],
        "AsyPFL": sweep()["10"],
        "AsyPFL, slower": [cell("asypfl", s, "asypfl-slow", E=1, factor=3) for s in SEEDS],
    }
    return found


def sweep() -> dict[str, list[Cell]]:
    """AsyPFL by lambda."""
    return {x: [cell("asypfl", s, f"asypfl-lambda{x}", f"algorithm.elastic={x}") for s in SEEDS] for x in LAMBDAS}


# -- what the runs say -------------------------------------------------------------------------------------------------
def curve(runs: list[Cell], metric: str) -> findings.Curve:
    """The mean over the seeds. Where a method has no personal models, the shared one stands for each of them."""
    columns = {"shared_accuracy": "test_accuracy"}
    if runs[0].job.stem in ("fedavg", "fedprox"):
        columns |= {f"personal_accuracy_{k}": "client_accuracy_mean" for k in METRICS}
    each = [findings.curve(run.output, columns.get(metric, metric)) for run in runs]
    return each[0][0], np.mean([y for _, y in each], axis=0)


def percent(runs: list[Cell], metric: str) -> str:
    """The last value, mean over the seeds."""
    if runs[0].job.stem in ("fedavg", "fedprox") and metric[-3:] in ("q25", "ian", "q75"):
        return "-"
    y = curve(runs, metric)[1]
    last = np.max(y) if metric.endswith("best") else y[-1]
    return f"{100 * last:.1f}"


def first(runs: list[Cell], metric: str) -> str:
    """The first evaluation (s) at which the mean over the seeds is at the target."""
    time, y = curve(runs, metric)
    reached = np.flatnonzero(y >= TARGETS[metric])
    return f"{time[reached[0]]:.0f}" if len(reached) else "-"


def stability(run: Cell) -> tuple[str, str]:
    """delta lambda max h, from the least to the largest over the clients, at the first and the last shared model."""
    job = mpifl.load_job(run.job, *run.overrides)
    with mpifl.open_run(run.output) as file:
        last = np.asarray(file.model)
    problem = mpifl.load_problem(job)
    factor = job.algorithm.step_size * job.algorithm.elastic  # type: ignore[attr-defined]
    ranges = []
    for x in (problem.initial(job.seed), last):
        shards = (problem.shard(i) for i in range(problem.clients))
        clients = [
            job.problem.model.objective(job.problem.settings, problem.meta, s, i, 0) for i, s in enumerate(shards)
        ]
        h = [float(client.fisher(x).max()) for client in clients]
        ranges.append(f"{factor * min(h):.2f} to {factor * max(h):.2f}")
    return ranges[0], ranges[1]


def table(columns: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [columns, ["---"] * len(columns), *lines])


def page() -> str:
    shared, mean = "shared_accuracy", "personal_accuracy_mean"
    methods, lambdas = rows(), sweep()
    first_table = [
        [label, *(percent(runs, k) for k in (shared, mean, "personal_accuracy_q25", "personal_accuracy_best")),
         first(runs, shared), first(runs, mean)]
        for label, runs in methods.items()
    ]  # fmt: skip
    second_table = [[x, *(percent(runs, f"personal_accuracy_{k}") for k in METRICS)] for x, runs in lambdas.items()]
    drawn = [label for label in methods if label[-1] != "1" or "pi_k" in label]
    time = "seconds of virtual time"
    findings.draw(
        findings.RESULTS / "asypfl.png",
        [Panel(title, {k: curve(methods[k], metric) for k in drawn}, time, "accuracy", limits=(0.6, top))
         for title, metric, top in (("clients' own test rows, mean", mean, 0.94),
                                    ("shared model, all test rows", shared, 0.8))],
    )  # fmt: skip
    findings.draw(
        findings.RESULTS / "asypfl-lambda.png",
        [Panel(title, {f"lambda {x}": curve(runs, f"personal_accuracy_{k}") for x, runs in lambdas.items()},
               time, "accuracy", limits=(0.7, 0.98))
         for k, title in {"mean": "mean over the clients", "q25": "lower quartile"}.items()],
    )  # fmt: skip
    columns = [
        "method",
        "shared model",
        "personal: mean",
        "lower quartile",
        "BMTA",
        "shared at 70 %",
        "personal at 90 %",
    ]
    text = PAGE
    parts = {"METHODS": table(columns, first_table), "LAMBDA": table(["lambda", *METRICS[:4], "BMTA"], second_table)}
    parts["START"], parts["END"] = stability(lambdas["100"][0])
    for key, value in parts.items():
        text = text.replace(f"<{key}>", value)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    cells = {run.output: run for runs in [*rows().values(), *sweep().values()] for run in runs}
    findings.run_all(sorted(cells.values(), key=lambda run: run.overrides[0]), parser.parse_args().processes)
    (findings.RESULTS / "asypfl.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
