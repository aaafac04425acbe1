"""The FedDR paper's findings (arXiv 2103.03452, Figures 2, 3, 5 and 6): runs them, draws them, prints tables.

python jobs/feddr/figures.py [--processes N]      run files under results/feddr, figures and page under docs/results

Runs what is not in results/feddr yet; about 40 minutes on one core; needs MNIST.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import findings
import numpy as np
from findings import Cell, Curve, Panel

import mpifl
from mpifl.algorithms import Clients

JOBS, RUNS = Path(__file__).parent, findings.ROOT / "results" / "feddr"
SETS = {
    "iid": "{name: synthetic-iid}",
    "(0,0)": "{name: synthetic, alpha: 0, beta: 0}",
    "(0.5,0.5)": "{name: synthetic, alpha: 0.5, beta: 0.5}",
    "(1,1)": "{name: synthetic, alpha: 1, beta: 1}",
}
PRINTED = {  # of the released scripts: mu of FedProx, eta of FedPD, eta of FedDR
    "iid": (0.1, 10, 100),
    "(0,0)": (0.1, 10, 100),
    "(0.5,0.5)": (1, 1, 500),
    "(1,1)": (1, 10, 1000),
}
METHODS = {"FedAvg": "fedavg", "FedProx": "fedprox", "FedPD": "fedpd", "FedDR": "feddr"}
SMALL = "FedDR, eta = alpha = 1"
LABELS = [*METHODS, SMALL]
LEVELS = (0.9, 0.92, 0.925)  # test accuracies whose times are compared
LAST = 10  # rounds over which a run's last figures are averaged
ACCURACIES = {
    "1 step": ("algorithm.accuracy=null", "algorithm.local_steps=1"),
    "5 steps": ("algorithm.accuracy=null", "algorithm.local_steps=5"),
    "relative, 1": ("algorithm.accuracy={name: relative, theta: 1}",),
    "relative, 0.1": ("algorithm.accuracy={name: relative, theta: 0.1}",),
    "absolute, M = 1": ("algorithm.accuracy={name: absolute, M: 1}",),
    "absolute, M = 0.01": ("algorithm.accuracy={name: absolute, M: 0.01}",),
}
EPOCHS = (5, 10, 20, 30)


# -- runs --------------------------------------------------------------------------------------------------------------
def synthetic(data: str, label: str, cohort: int | None) -> Cell:
    """Figures 2 (all clients) and 3 (10 of 30; FedPD: all)."""
    mu, eta_pd, eta_dr = PRINTED[data]
    method = METHODS.get(label, "feddr")
    key = {"fedavg": None, "fedprox": f"mu={mu}", "fedpd": f"eta={eta_pd}", "feddr": f"eta={eta_dr}"}[method]
    key = "eta=1" if label == SMALL else key
    cohort = cohort if method != "fedpd" else None
    overrides = [f"problem.data={SETS[data]}", *["algorithm.alpha=1"] * (label == SMALL)]
    overrides += [f"algorithm.{key}"] if key else []
    overrides += [f"algorithm.cohort={cohort}"] if cohort else []
    name = f"{data.strip('()').replace(',', '_')}-{method}-{'small-' * (label == SMALL)}{cohort or 'all'}.h5"
    return Cell(JOBS / f"synthetic-{method}.yaml", RUNS / name, tuple(overrides))


def mnist(method: str) -> Cell:
    return Cell(JOBS / f"mnist-{method}.yaml", RUNS / f"mnist-{method}.h5")


def epochs(count: int, printed: bool = False) -> Cell:
    """Figure 5; `printed`: eta, alpha, tau and cohort of the released script for synthetic(0,0), 60 rounds."""
    script = ("algorithm.eta=100", "algorithm.alpha=1.95", "algorithm.regulariser.tau=0.01", "algorithm.cohort=10")
    overrides = (f"algorithm.local_epochs={count}", *((*script, "stop.time=60") if printed else ()))
    return Cell(JOBS / "l1-epochs.yaml", RUNS / f"epochs-{'100' if printed else '1'}-{count}.h5", overrides)


def accuracy(label: str) -> Cell:
    name = label.replace(", ", "-").replace(" = ", "").replace(" ", "-")
    return Cell(JOBS / "l1-accuracy.yaml", RUNS / f"accuracy-{name}.h5", ACCURACIES[label])


def cells() -> list[Cell]:
    found = [synthetic(data, label, k) for data in SETS for k in (None, 10) for label in LABELS]
    found += [mnist("feddr"), mnist("async-feddr")]
    found += [epochs(count, printed) for printed in (False, True) for count in EPOCHS]
    found += [accuracy(label) for label in ACCURACIES]
    return list(dict.fromkeys(found))


# -- what run files do not hold ----------------------------------------------------------------------------------------
def at_both_models(data: str, label: str, rounds: int = 60) -> np.ndarray:
    """(rounds, 2) train loss of the global model, and sum_i (s_i/S) f_i(x_i) at the clients' own models."""
    cell = synthetic(data, label, None)
    path = cell.output.with_suffix(".both.npy")
    if not path.exists():
        job = mpifl.load_job(cell.job, *cell.overrides, output=cell.output)
        problem, algorithm = mpifl.load_problem(job), job.algorithm
        n, x0 = problem.clients, problem.initial(job.seed)
        objectives = client_objectives(job, problem)
        server = algorithm.init_server(x0, Clients(problem.samples, seed=job.seed))
        states = [algorithm.init_client(x0, i) for i in range(n)]
        losses = []
        for k in range(rounds):
            algorithm.begin_round(server, list(range(n)))
            for i in range(n):
                message = algorithm.message(server, i)._replace(version=k, round=k)
                algorithm.receive(server, i, algorithm.train(states[i], message, objectives[i]), 0)
            algorithm.aggregate(server)
            own = sum(f.share * f.loss(s.x) for f, s in zip(objectives, states, strict=True))
            losses.append((problem.evaluate(algorithm.model(server))["train_loss"], own))
        np.save(path, np.array(losses))
    return np.asarray(np.load(path))


def client_objectives(job: mpifl.Job, problem: Any) -> list[Any]:
    """Each client's objective."""
    shards = (problem.shard(i) for i in range(problem.clients))
    return [
        job.problem.model.objective(job.problem.settings, problem.meta, s, i, job.seed) for i, s in enumerate(shards)
    ]


def smallest(tau: float, steps: int = 4000) -> float:
    """F* of the convex composite problem, by FISTA with restarts."""
    job = mpifl.load_job(JOBS / "l1-accuracy.yaml")
    problem = mpifl.load_problem(job)
    objectives = client_objectives(job, problem)
    step, momentum = 1 / 7, 1.0  # L is 6
    x = z = np.zeros(problem.d)
    for _ in range(steps):
        v = z - step * sum(f.share * f.gradient(z) for f in objectives)
        new = v - v.clip(-tau * step, tau * step)
        momentum = 1.0 if (z - new) @ (new - x) > 0 else momentum
        after = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        z, x, momentum = new + (momentum - 1) / after * (new - x), new, after
    return float(sum(f.share * f.loss(x) for f in objectives) + tau * np.abs(x).sum())


def local_steps(cell: Cell, cohort: int) -> Curve:
    """Local steps of a client so far, at each round: the mean over the clients."""
    with mpifl.open_run(cell.output) as file:
        steps = file.updates.local_steps.to_numpy()
    total = np.concatenate([[0], np.cumsum(steps.reshape(-1, cohort).mean(1))])
    return np.arange(len(total)), total


# -- figures and tables ------------------------------------------------------------------------------------------------
def last(cell: Cell, metric: str, megabytes: float = np.inf) -> float:
    """The mean of the last rounds, of those up to so many MB."""
    x, y = findings.curve(cell.output, metric, "bytes")
    return float(np.mean(y[x / 1e6 <= megabytes + 1e-9][-LAST:]))


def megabytes(cell: Cell, metric: str = "train_loss") -> Curve:
    x, y = findings.curve(cell.output, metric, "bytes")
    return x / 1e6, y


def first(curve: Curve, level: float) -> str:
    x, y = curve
    reached = np.flatnonzero(y >= level)
    return f"{x[reached[0]]:.0f} s" if len(reached) else "-"


def synthetic_table(cohort: int | None) -> str:
    """At the bytes that FedAvg sends in a run."""
    most = megabytes(synthetic("iid", "FedAvg", cohort))[0][-1]
    columns = dict.fromkeys(LABELS, cohort) | ({f"{SMALL}, all": None} if cohort else {})
    rows = []
    for data in SETS:
        found = [synthetic(data, label.removesuffix(", all"), k) for label, k in columns.items()]
        values = [(last(c, "train_loss", most), 100 * last(c, "test_accuracy", most)) for c in found]
        rows.append([data, *(f"{loss:.3f}, {accuracy:.1f} %" for loss, accuracy in values)])
    return table([f"at {most:.1f} MB", *columns], rows)


def synthetic_figure(cohort: int | None, path: Path) -> None:
    most, panels = megabytes(synthetic("iid", "FedAvg", cohort))[0][-1], []
    for data in SETS:
        for metric, name in (("train_loss", "train loss"), ("test_accuracy", "test accuracy")):
            whole = {label: megabytes(synthetic(data, label, cohort), metric) for label in LABELS}
            lines = {label: (x[x <= most], y[x <= most]) for label, (x, y) in whole.items()}
            panels.append(Panel(data, lines, "MB sent both ways", name, log=name == "train loss"))
    findings.draw(path, panels)


def metric_figure(path: Path) -> str:
    """The train loss at the global model, and at the models where the released code takes it."""
    x = np.arange(1, 61)
    plain = {k: (x, findings.curve(synthetic("(0,0)", k, None).output, "train_loss")[1][1:61]) for k in METHODS}
    code = plain | {k: (x, at_both_models("(0,0)", k)[:, 1]) for k in ("FedPD", "FedDR")}
    panels = {"at the global model": plain, "where the released code takes it": code}
    findings.draw(path, [Panel(title, lines, "rounds", "train loss", log=True) for title, lines in panels.items()])
    rows = [[title, *(f"{y[-1]:.3f}" for _, y in lines.values())] for title, lines in panels.items()]
    return table(["train loss after 60 rounds", *METHODS], rows)


def asynchronous_figure(path: Path) -> str:
    runs, names = {"FedDR": mnist("feddr"), "asyncFedDR": mnist("async-feddr")}, ("train loss", "test accuracy")
    curves = [{k: findings.curve(c.output, m) for k, c in runs.items()} for m in ("train_loss", "test_accuracy")]
    limits = (0.22, 0.6), (0.85, 0.94)
    panels = [
        Panel("MNIST, 20 users", c, "virtual time (s)", n, limits=ends)
        for c, n, ends in zip(curves, names, limits, strict=True)
    ]
    findings.draw(path, panels)
    rows = []
    for label, cell in runs.items():
        with mpifl.open_run(cell.output) as file:
            updates = len(file.updates)
        loss, accuracy = (c[label][1][-1] for c in curves)
        times = [first(curves[1][label], level) for level in LEVELS]
        rows.append([label, str(updates), *times, f"{loss:.4f}", f"{100 * accuracy:.2f} %"])
    return table(
        ["", "updates", *(f"{100 * v:g} % at" for v in LEVELS), "train loss at 40 s", "accuracy at 40 s"], rows
    )


def composite_figure(path: Path) -> tuple[str, str]:
    best, runs = smallest(0.01), {label: accuracy(label) for label in ACCURACIES}
    by_epochs = {f"{count} epochs": findings.curve(epochs(count).output, "train_loss") for count in EPOCHS}
    work = {k: (x * count, y) for (k, (x, y)), count in zip(by_epochs.items(), EPOCHS, strict=True)}
    gaps = {k: (x, y - best) for k, (x, y) in ((k, findings.curve(c.output, "train_loss")) for k, c in runs.items())}
    steps = {k: (local_steps(c, 10)[1], gaps[k][1]) for k, c in runs.items()}
    shown = {k: (x[x <= 2000], y[x <= 2000]) for k, (x, y) in steps.items()}
    findings.draw(
        path,
        [
            Panel("synthetic(0,0), network", by_epochs, "rounds", "f + g"),
            Panel("synthetic(0,0), network", work, "local epochs", "f + g"),
            Panel("digits, logistic regression", gaps, "rounds", "F - F*", log=True),
            Panel("digits, logistic regression", shown, "gradients of a user", "F - F*", log=True),
        ],
    )
    head = ["local epochs", *map(str, EPOCHS)]
    rows = [
        [title, *(f"{last(epochs(count, printed), 'train_loss'):.3f}" for count in EPOCHS)]
        for title, printed in (("tau 0.001, eta 1, all users, 40 rounds", False), ("as in the script, 60 rounds", True))
    ]
    after = []
    for label, (x, y) in steps.items():
        at_700 = f"{np.interp(700, x, y):.2g}" if x[-1] >= 700 else "-"
        after.append([label, *(f"{gaps[label][1][r]:.2g}" for r in (15, 50, 150)), f"{x[-1]:.0f}", at_700])
    columns = ["local prox", "15 rounds", "50", "150", "gradients of a user", "after 700 gradients"]
    return table(head, rows), table(columns, after)


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=1)
    findings.run_all(cells(), parser.parse_args().processes)
    results = findings.RESULTS
    for cohort, name in ((None, "all"), (10, "sampled")):
        synthetic_figure(cohort, results / f"feddr-{name}.png")
    metric = metric_figure(results / "feddr-metric.png")
    timed = asynchronous_figure(results / "feddr-async.png")
    by_epochs, by_accuracy = composite_figure(results / "feddr-l1.png")
    page = (JOBS / "page.txt").read_text(encoding="utf-8").format(
        all=synthetic_table(None), sampled=synthetic_table(10), metric=metric,
        timed=timed, epochs=by_epochs, accuracy=by_accuracy,
    )  # fmt: skip
    (results / "feddr.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
