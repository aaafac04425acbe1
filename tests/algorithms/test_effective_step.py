"""The effective step: by how much one local gradient step of a client moves the global model, for every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms import names
from mpifl.algorithms.base import Algorithm, Clients
from mpifl.config.registry import FAMILIES
from mpifl.config.schema import Reader
from tests.algorithms.world import World

SAMPLES = [2, 3, 5]
SHARES = np.array(SAMPLES) / 10
GRADIENTS = np.array([[1.0, 0.0, 0.0, 2.0], [0.0, 1.0, 0.0, -3.0], [0.0, 0.0, 1.0, 5.0]])


class Linear:
    """f_i(x) = <g_i, x>: the gradient is the same everywhere."""

    def __init__(self, i: int) -> None:
        self.i, self.samples, self.share, self.clients = i, SAMPLES[i], float(SHARES[i]), len(SAMPLES)

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list[Any]:
        return [None] * steps

    def gradient(self, x: np.ndarray, rows: Any = None) -> np.ndarray:
        return GRADIENTS[self.i].copy()


@dataclass(frozen=True)
class Holder:
    algorithm: Algorithm


def method(**values: Any) -> Any:
    return Reader(Holder, {"algorithm": {"step_size": 0.5, **values}}, FAMILIES).read().algorithm


n, eta = 3, 0.5
CASES: list[tuple[dict[str, Any], Any]] = [  # a method, and its steps by hand
    ({"name": "area"}, eta * SHARES / n),
    ({"name": "area", "step_weights": "one"}, eta / n),
    ({"name": "async-fedavg", "trigger": {"every": 2}}, eta * SHARES / 2),
    ({"name": "async-fedavg", "trigger": {"every": 2}, "rule": "delta-over-buffer"}, eta * SHARES / 2),
    ({"name": "async-fedavg", "trigger": {"every": 2}, "rule": "delta-over-n"}, eta * SHARES / n),
    ({"name": "async-fedavg", "trigger": {"every": 2}, "rule": "mix-over-n"}, eta * SHARES / n),
    ({"name": "async-fedavg", "trigger": {"every": 2}, "rule": "server-memory"}, eta * SHARES / n),
    ({"name": "fedbuff", "trigger": {"every": 2}}, eta / 2),
    ({"name": "fedbuff", "trigger": {"every": 2}, "server_step": None}, eta * eta / 2),
    ({"name": "fedasync"}, eta * 0.6),
    ({"name": "async-sgd"}, eta),
    ({"name": "async-sgd", "step_weights": "relative"}, eta * n * SHARES),
    ({"name": "async-comm-sgd", "gap": 1}, eta / n),
    ({"name": "fedavg"}, eta / n),
    ({"name": "fedavg", "weights": "samples", "step_weights": "uniform"}, eta * SHARES / n),
    ({"name": "fedavg", "cohort": 2}, eta / 2),
    ({"name": "fedavg", "server_step": 3.0}, eta * 3 / n),
    ({"name": "fedavgm", "server_step": 3.0, "cohort": 2}, eta * 3 / 2),  # of the first step
    ({"name": "fedbuff", "trigger": {"every": 2}, "server_step": 3.0, "optimizer": "plain"}, eta * 3 / 2),
    ({"name": "fedprox"}, eta / n),
    ({"name": "fednova", "weights": "samples"}, eta * SHARES),
    ({"name": "fednova", "steps": [1, 1, 1], "normalise": False}, eta / n),
    ({"name": "proxskip"}, eta / n),
    ({"name": "apfl", "weights": "samples"}, eta * SHARES),
    ({"name": "scaffold", "server_step": 3.0}, eta * 3 / n),
    ({"name": "fedgate", "server_step": 3.0}, eta * 3 / n),
    ({"name": "vrl-sgd"}, eta / n),
    ({"name": "feddane"}, eta / n),
    ({"name": "inexact-dane", "weights": "samples"}, eta * SHARES),
    ({"name": "f-svrg"}, eta / n),
    ({"name": "mime", "momentum": 0.75}, eta * 0.25 / n),
    ({"name": "mime", "lite": True, "momentum": 0.75}, eta * 0.25 / n),
    ({"name": "asypfl", "indicators": "equal", "elastic": 0.0}, eta * SHARES),
]
ALSO = ["ca2fl", "fadas", "fedadam", "rescaled-asgd"]
UNDEFINED: list[dict[str, Any]] = [  # not a fixed multiple of the gradient
    {"name": "area", "step_weights": "one", "step_schedule": {"name": "strongly-convex", "mu": 1.0, "L": 2.0}},
    {"name": "async-fedavg", "trigger": {"period": 1.0}},
    {"name": "fednova", "steps": [1, 2, 3]},
    {"name": "fedbuff", "trigger": {"poisson": 1.0}},
    {"name": "fedbuff", "aggregation": "median"},
    {"name": "fedavg", "aggregation": "median"},
    {"name": "fedavg", "cohort": 2, "weights": "samples"},
    {"name": "asypfl", "step_schedule": {"name": "theorem-2", "mu": 1.0, "L": 2.0}},
    *({"name": name} for name in [*names(), *ALSO] if name not in {values["name"] for values, _ in CASES}),
]


@pytest.mark.parametrize(("values", "expected"), CASES, ids=str)
def test_the_global_model_moves_by_the_effective_steps(values: dict[str, Any], expected: Any) -> None:
    """x - x0 = -sum_i e_i g_i over the clients whose updates the first global step has; e_i by hand as well."""
    algorithm, x0 = method(**values), np.zeros(4)
    clients = Clients(np.array(SAMPLES))
    steps = algorithm.effective_steps(clients)
    assert steps.shape == (3,) and steps == pytest.approx(np.broadcast_to(expected, 3))
    world = World(algorithm, [Linear(i) for i in range(n)], x0)
    if cohort := algorithm.participation(clients, 0):
        members = cohort.sample(0)
        while not world.server.x.any():  # a phase that averages gradients moves nothing
            world.round(members)
    else:
        members = [*range(algorithm.aggregation_trigger().every)]
        for i in members:
            world.contact(i)
            world.receive(i)
        world.aggregate()
    assert world.server.x == pytest.approx(-(steps[members] @ GRADIENTS[members]), abs=1e-12)


@pytest.mark.parametrize("values", UNDEFINED, ids=str)
def test_no_number_where_there_is_none(values: dict[str, Any]) -> None:
    assert method(**values).effective_steps(Clients(np.array(SAMPLES))) is None
