"""One job for each torch model: FedAvg with 16 clients, beside a plain torch loop on all rows together.

    python jobs/torch/figures.py [--ranks 5] [MODEL ...]

Runs `mpirun -n 5` for what is not in results/torch/ yet (half an hour on 2 cores), then writes docs/results/torch.png
and the table of docs/results/torch.md, between its marks. The plain loop is torch.optim.SGD with the same step and as
many steps as the rounds have one after the other, each on a batch 16 times as large: on as many rows.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from findings import RESULTS, ROOT, Curve, Panel, curve, draw

import mpifl

HERE, RUNS = Path(__file__).parent, ROOT / "results" / "torch"
TITLES = {
    "logistic": "logistic regression, MNIST",
    "mlp": "MLP 784-128-10, MNIST",
    "cnn": "LEAF's CNN, EMNIST letters",
    "char-lstm": "character LSTM, Shakespeare",
    "lstm": "LSTM, verse or prose",
    "resnet": "ResNet-20, Fashion-MNIST",
    "vgg11": "VGG11, Fashion-MNIST",
}
FEDERATED, PLAIN = "FedAvg, 16 clients", "plain loop, all rows"


def job(model: str) -> Any:
    return mpifl.load_job(HERE / f"{model}.yaml", output=f"{RUNS / model}.h5", overwrite=True)


def federated(model: str, ranks: int) -> Path:
    """The run file of the model's job, made under mpirun where it does not exist."""
    path = RUNS / f"{model}.h5"
    if not (path.exists() and mpifl.open_run(path).status == "completed"):
        mpirun = Path(sys.executable).with_name("mpirun")
        command = [str(mpirun), "-n", str(ranks), sys.executable, "run_mpi.py", str(HERE / f"{model}.yaml")]
        subprocess.run([*command, f"output={path}", "overwrite=true"], cwd=ROOT, check=True)
    return path


def plain(model: str) -> Path:
    """A CSV file with the plain loop's rows seen, and test accuracy then."""
    import torch
    from torch.nn.functional import cross_entropy

    path = RUNS / f"{model}-plain.csv"
    if path.exists():
        return path
    this = job(model)
    settings, local = this.problem, this.algorithm.local_steps
    problem = mpifl.load_problem(this)
    torch.set_num_threads(1)
    shards = [problem.shard(i) for i in range(problem.clients)]
    x, y = (np.concatenate([shard[k] for shard in shards]) for k in (0, 1))
    meta = {**problem.meta, "samples": [len(y)], "clients": 1}
    client: Any = settings.model.objective(settings, meta, [x, y], 0, 0)  # for its rows alone
    module = settings.model.build(tuple(meta["shape"]), meta["classes"], (meta["tokens"] or [0])[-1])
    start = torch.from_numpy(problem.initial(this.seed))
    torch.nn.utils.vector_to_parameters(start, module.parameters())
    momentum = this.algorithm.solver.momentum  # kept throughout; a client begins each contact without
    optimiser = torch.optim.SGD(module.parameters(), this.algorithm.step_size, momentum)
    batch, generator = problem.clients * settings.batch_size, np.random.default_rng(0)
    steps = this.stop.updates // problem.clients * local
    every, points, begin = this.evaluate.updates // problem.clients * local, [], time.perf_counter()
    for step in range(steps + 1):
        if step % every == 0:
            flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
            points.append((step * batch, problem.evaluate(flat)["test_accuracy"]))
        inputs, targets = client.rows.take(generator.choice(len(y), batch, replace=False))
        optimiser.zero_grad()
        cross_entropy(module(inputs), targets).backward()
        optimiser.step()
    print(f"{model}: {steps} plain steps in {time.perf_counter() - begin:.0f} s", flush=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("rows", "test_accuracy"), *points])
    return path


def lines(model: str, ranks: int) -> dict[str, Curve]:
    """Test accuracy in per cent against thousands of training rows seen."""
    this = job(model)
    updates, accuracy = curve(federated(model, ranks), "test_accuracy", "updates")
    central = np.loadtxt(plain(model), delimiter=",", skiprows=1)
    rows = updates * this.algorithm.local_steps * this.problem.batch_size
    return {FEDERATED: (rows / 1e3, 100 * accuracy), PLAIN: (central[:, 0] / 1e3, 100 * central[:, 1])}


def table(curves: dict[str, dict[str, Curve]]) -> str:
    """Parameters, rows seen, and the last test accuracies."""
    rows = [
        "| job | parameters | rounds | rows seen | FedAvg, 16 clients | plain loop | wall time |",
        "|---|" + "--:|" * 6,
    ]
    for model, lines_ in curves.items():
        with mpifl.open_run(RUNS / f"{model}.h5") as run:
            d, wall, rounds = run.model.size, run.attrs["wall_seconds"], len(run.aggregations)
        (seen, accuracy), (_, central) = lines_[FEDERATED], lines_[PLAIN]
        link = f"[{model}](../../jobs/torch/{model}.yaml): {TITLES[model]}"
        rows.append(f"| {link} | {d:,} | {rounds} | {seen[-1]:,.0f}k "
                    f"| {accuracy[-1]:.1f} | {central[-1]:.1f} | {wall:.0f} s |")  # fmt: skip
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(TITLES)}; none: all")
    parser.add_argument("--ranks", type=int, default=5)
    args = parser.parse_args()
    args.models = args.models or list(TITLES)
    if strange := set(args.models) - set(TITLES):
        parser.error(f"no such model: {', '.join(strange)}")
    RUNS.mkdir(parents=True, exist_ok=True)
    if "lstm" in args.models:
        subprocess.run([sys.executable, HERE / "speeches.py"], check=True)
    curves = {model: lines(model, args.ranks) for model in args.models}
    if list(curves) != list(TITLES):
        return 0
    panels = [Panel(TITLES[m], c, "thousand rows seen", "test accuracy (%)") for m, c in curves.items()]
    draw(RESULTS / "torch.png", panels, 3)
    page = RESULTS / "torch.md"
    before, begin, rest = page.read_text().partition("<!-- table -->\n")
    page.write_text(f"{before}{begin}{table(curves)}\n<!-- end -->{rest.partition('<!-- end -->')[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
