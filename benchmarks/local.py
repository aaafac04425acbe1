"""Local training as a client does it against a plain torch loop of the same steps, in turn; the ratios' medians.

python benchmarks/local.py [--repeats 15] [--threads 1] [--models torch-logistic cnn char-lstm lstm]

The plain loop is torch.optim.SGD on the module, its rows taken with the same numbers; both end with the same bits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from mpifl.algorithms.base import Message, Objective, State
from mpifl.algorithms.fedavg import FedAvg
from mpifl.problems import ProblemConfig
from mpifl.problems.models import MODELS
from mpifl.problems.settings import Torch
from mpifl.problems.torch.examples import Examples
from mpifl.problems.torch.flat import Flat
from mpifl.problems.torch.module_objective import Shared, TorchObjective
from mpifl.problems.torch.module_problem import CPU, seeded

CASES: dict[str, dict[str, Any]] = {  # shape of a row, classes, vocabulary, batch, steps of one contact
    "torch-logistic": {"shape": (784,), "classes": 10, "vocabulary": 0, "batch": 32, "steps": 100},
    "torch-mlp": {"shape": (784,), "classes": 10, "vocabulary": 0, "batch": 32, "steps": 100},
    "cnn": {"shape": (1, 28, 28), "classes": 62, "vocabulary": 0, "batch": 20, "steps": 8},
    "char-lstm": {"shape": (80,), "classes": 80, "vocabulary": 80, "batch": 10, "steps": 6},
    "lstm": {"shape": (25,), "classes": 2, "vocabulary": 10000, "batch": 10, "steps": 20},
}
ROWS, STEP = 400, 0.01


class Case:
    """A client with random rows, and a plain copy of its module."""

    def __init__(self, name: str, threads: int) -> None:
        case = CASES[name]
        self.batch, self.steps, shape, vocabulary = case["batch"], case["steps"], case["shape"], case["vocabulary"]
        model = MODELS[name]()
        torch.set_num_threads(threads)
        config = ProblemConfig(model=model, batch_size=self.batch, clients=1, torch=Torch(threads=threads))  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(0)
        x = (
            torch.randint(0, vocabulary, (ROWS, *shape), generator=generator)
            if vocabulary
            else torch.randn(ROWS, *shape)
        )
        y = torch.randint(0, case["classes"], (ROWS,), generator=generator)
        build = lambda: model.build(shape, case["classes"], vocabulary)  # noqa: E731
        flat = Flat(seeded(0, build), CPU, torch.float32, True)
        self.x0: np.ndarray = flat.values().numpy()
        meta = {"samples": [ROWS], "clients": 1}
        shared = Shared(flat, cross_entropy, CPU, config)
        self.objective: Objective = TorchObjective(shared, config, meta, 0, 0, Examples(x, y), None)
        self.x, self.y, self.module, self.start = x, y, seeded(0, build), seeded(0, build).state_dict()
        self.algorithm = FedAvg(step_size=STEP, local_steps=self.steps)
        self.batches = [torch.from_numpy(rows) for rows in self.objective.batches(0, self.steps)]

    def client(self) -> tuple[float, np.ndarray]:
        """Seconds of a contact, and the model that it ends with."""
        begin = time.perf_counter()
        update = self.algorithm.train(State(), Message((self.x0,)), self.objective)
        return time.perf_counter() - begin, update.vectors[0]

    def plain(self) -> tuple[float, np.ndarray]:
        """Likewise, of the plain loop."""
        self.module.load_state_dict(self.start)
        optimiser = torch.optim.SGD(self.module.parameters(), STEP)
        self.module.train()
        begin = time.perf_counter()
        for rows in self.batches:
            optimiser.zero_grad()
            cross_entropy(self.module(self.x[rows]), self.y[rows]).backward()
            optimiser.step()
        seconds = time.perf_counter() - begin
        return seconds, torch.cat([p.detach().reshape(-1) for p in self.module.parameters()]).numpy()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    args = parser.parse_args()
    for name in args.models:
        case = Case(name, args.threads)
        same = all(np.array_equal(case.client()[1], case.plain()[1]) for _ in range(2))
        pairs = [(case.client()[0], case.plain()[0]) for _ in range(args.repeats)]
        ratios = [client / plain for client, plain in pairs]
        step = statistics.median(plain for _, plain in pairs) / case.steps
        row = {"model": name, "d": case.x0.size, "batch": case.batch, "plain_ms_a_step": round(1e3 * step, 3)}
        ratio = round(statistics.median(ratios), 3)
        print(json.dumps({**row, "median_ratio": ratio, "same_bits": same}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
