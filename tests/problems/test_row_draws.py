"""Data sets that draw random numbers when they are asked for a row, as for augmentation."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mpifl import problems
from mpifl.problems import ComputeResources, ProblemConfig
from mpifl.rng import stream

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402

GENERATORS = {
    "torch": lambda: float(torch.randn(())),
    "NumPy": lambda: float(np.random.standard_normal()),
    "Python": lambda: random.gauss(0, 1),
}


class Noisy:
    """Rows (k + noise, 0), with noise that is drawn each time that a row is read."""

    def __init__(self, generator: str, rows: int) -> None:
        self.generator, self.rows = generator, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, k: int) -> Any:
        return [k + GENERATORS[self.generator]()], [0.0]


def problem(generator: str = "torch", test: str = "torch") -> Any:
    module = nn.Linear(1, 1, bias=False)
    return module, mse_loss, [Noisy(generator, s) for s in (6, 9, 4)], Noisy(test, 5)


def noise(generator: str, seed: int) -> float:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    return GENERATORS[generator]()


def states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize("generator", ["torch", "NumPy", "Python"])
def test_rows_are_drawn_anew_in_each_contact_under_a_seed_for_each(generator: str) -> None:
    """The gradient of mean (w z)^2 is 2 w mean z^2, z = k + noise; the noise belongs to (seed, client, round, row)."""
    config = ProblemConfig(entry=f"{__name__}:problem", options={"generator": generator})
    loaded = problems.load(config)
    shards: dict[int, Any] = {i: [] for i in range(3)}
    found = {}
    for meta in (loaded.meta, {**loaded.meta}):  # in the process of rank 0, and on another rank
        objective: Any = problems.host(config.model, config.settings, meta, shards, 7, ComputeResources()).objectives[1]
        for round_ in (0, 3):
            objective.begin_round(round_)
            before = states()
            rows = np.array([4, 1, 4])
            (gradient,) = objective.gradient(np.array([0.5], np.float32), rows)
            assert states() == before
            seeds = stream(7, "row", 1, round_).integers(2**63, size=9)
            z = np.array([k + noise(generator, int(seeds[k])) for k in rows])
            assert gradient == pytest.approx(np.mean(z**2), rel=1e-5)
            found.setdefault(round_, gradient)
            assert objective.loss(np.array([0.5], np.float32), rows) == pytest.approx(np.mean(z**2) / 4, rel=1e-5)
    assert found[0] != found[3]


def test_losses_of_the_server_are_those_of_one_draw() -> None:
    """Whatever the run's seed and however often they are measured; also of the test rows."""
    config = ProblemConfig(entry=f"{__name__}:problem", options={"generator": "NumPy"}, validation_split=0.4)
    losses = []
    for seed in (1, 1, 2):
        loaded = problems.load(config)
        loaded.initial(seed)
        found = loaded.evaluate(np.array([0.5], np.float32))
        losses.append((found["train_loss"], found["test_loss"], found["validation_loss"]))
    assert losses[0] == losses[1] == losses[2]
    rows = [k + noise("torch", int(s)) for k, s in enumerate(stream(0, "test rows").integers(2**63, size=5))]
    assert losses[0][1] == pytest.approx(np.mean(np.square(rows)) / 4, rel=1e-5)
