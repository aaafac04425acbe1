"""A rank's clients computed together and one after another, in turn; medians of seconds, and of the pairs' ratios.

python benchmarks/batched.py [--clients 64] [--repeats 7] [--threads 1 2] [--cases mlp-64-32 ...] [--rules fedavg ...]

What is timed is one message to every client through `Worker.train_all`: drawing batches and the rule's own code too.
Data are random, 200 rows a client, float32. `apart` is the largest difference of the two sides' vectors, of the largest
entry: rounding, and in large models now and then an activation that rounding takes across a ReLU's corner.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from mpifl.algorithms.base import Algorithm, Message, Objective
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedprox import FedProx
from mpifl.client.worker import Worker
from mpifl.problems import ProblemConfig
from mpifl.problems.models.network import Network
from mpifl.problems.models.networks import Cnn, TorchMlp
from mpifl.problems.problem import HostedClients
from mpifl.problems.settings import Torch
from mpifl.problems.torch.batched import host_clients
from mpifl.problems.torch.examples import Examples
from mpifl.problems.torch.flat import Flat
from mpifl.problems.torch.module_objective import Shared, TorchObjective
from mpifl.problems.torch.module_problem import CPU

ROWS, CLASSES, STEP = 200, 10, 0.01
CASES: dict[str, tuple[Network, tuple[int, ...]]] = {
    "mlp-64-32": (TorchMlp(hidden=(32,)), (64,)),
    "mlp-60-32": (TorchMlp(hidden=(32,)), (60,)),
    "mlp-784-128": (TorchMlp(), (784,)),
    "mlp-784-512": (TorchMlp(hidden=(512,)), (784,)),
    "cnn-8x8": (Cnn(channels=(8, 16), hidden=32), (1, 8, 8)),
    "cnn-28x28": (Cnn(channels=(8, 16), hidden=32), (1, 28, 28)),
}
RULES: dict[str, Algorithm] = {
    "fedavg": FedAvg(step_size=STEP, local_steps=20),
    "fedavg, 5 epochs": FedAvg(step_size=STEP, local_epochs=5),
    "fedprox": FedProx(step_size=STEP, local_steps=20),
}


def clients(
    model: Network, shape: tuple[int, ...], n: int, batch: int, threads: int
) -> tuple[HostedClients, np.ndarray]:
    """n clients with random rows, and the first model."""
    torch.manual_seed(0)
    flat = Flat(model.build(shape, CLASSES, 0), CPU, torch.float32, True)
    settings = Torch(batched=True, threads=threads)
    config = ProblemConfig(model=model, batch_size=batch, clients=n, torch=settings)  # type: ignore[arg-type]
    shared, meta = Shared(flat, cross_entropy, CPU, config), {"samples": [ROWS] * n, "clients": n}
    rows = [Examples(torch.randn(ROWS, *shape), torch.randint(0, CLASSES, (ROWS,))) for _ in range(n)]
    objectives = {i: TorchObjective(shared, config, meta, i, 0, rows[i], None) for i in range(n)}
    return host_clients(shared, objectives, settings, {"transfers": "host"}), flat.values().numpy()


def contact(worker: Worker, x: np.ndarray, n: int, k: int) -> tuple[float, np.ndarray]:
    """Seconds of every client's answer to its k-th message, and the answers."""
    messages = [(i, Message((x,), round=k)) for i in range(n)]
    begin = time.perf_counter()
    updates = worker.train_all(messages)
    return time.perf_counter() - begin, np.array([u.vectors[0] for u in updates])


def compare(algorithm: Algorithm, held: HostedClients, x: np.ndarray, n: int, repeats: int) -> str:
    objectives: Mapping[int, Objective] = held.objectives
    workers = [Worker(algorithm, x, objectives, held.train_batch), Worker(algorithm, x, objectives)]
    pairs, apart = [], 0.0
    for k in range(repeats + 1):  # the first is the warm-up
        (together, a), (alone, b) = (contact(worker, x, n, k) for worker in workers)
        pairs.append((together, alone, alone / together))
        apart = max(apart, float(abs(a - b).max() / abs(b).max()))
    together, alone, ratio = (statistics.median(p[j] for p in pairs[1:]) for j in range(3))
    return f"{together:10.4f} {alone:10.4f} {ratio:8.2f} {apart:9.1e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument("--batches", type=int, nargs="+", default=[10, 32])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    args = parser.parse_args()
    print(f"{'case':12} {'rule':17} batch threads together s    alone s    ratio     apart")
    for threads in args.threads:
        torch.set_num_threads(threads)
        for case in args.cases:
            for batch in args.batches:
                held, x = clients(*CASES[case], args.clients, batch, threads)
                for rule in args.rules:
                    line = f"{case:12} {rule:17} {batch:5} {threads:7} "
                    if held.train_batch is None:
                        print(line, held.facts["batched"], flush=True)
                        break
                    print(line + compare(RULES[rule], held, x, args.clients, args.repeats), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
