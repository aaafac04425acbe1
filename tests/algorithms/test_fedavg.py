"""FedAvg against its formulas and fixed points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.fedavg import FedAvg
from tests.algorithms.world import in_rounds
from tests.quadratic_runs import close, random_quadratics, run


def test_one_local_step_is_gradient_descent() -> None:
    """FedAvg.1: One local step, everybody, weights p: every round is x <- x - eta sum p_k grad f_k(x)."""
    clients = random_quadratics(1, 5)
    log = run(FedAvg(step_size=0.2, weights="samples"), clients, list(range(5)) * 12, x0=[1.0, -2.0, 0.5])
    x = np.array([1.0, -2.0, 0.5])
    for model in log.models:
        x = x - 0.2 * sum(o.samples * o.gradient(x) for o in clients) / sum(o.samples for o in clients)
        close(model, x)


@pytest.mark.parametrize(
    ("options", "twice"),
    [
        ({"cohort": 2, "step_weights": "samples"}, False),  # S-FedAvg: the plain mean of K models, step alpha s_i/S
        ({"cohort": 3, "weights": "samples"}, False),  # the members' weights n_k add up to 1
        ({"cohort": 3, "sampling": "samples"}, True),  # with replacement: a client drawn twice weighs 2/K
    ],
    ids=["s-fedavg", "samples", "replacement"],
)
def test_cohorts_by_hand(options: dict[str, Any], twice: bool) -> None:
    """x <- the weighted mean of the members' models after three local steps."""
    clients = random_quadratics(4, 4)
    algorithm = FedAvg(step_size=0.1, local_steps=3, **options)
    log, members = in_rounds(algorithm, clients, 10)
    assert any(len(set(m)) < len(m) for m in members) == twice
    x = np.zeros(3)
    for model, drawn in zip(log.models, members, strict=True):
        ends = [clients[i].steps(x, 0.1 * (clients[i].share if "step_weights" in options else 1), 3) for i in drawn]
        x = np.average(ends, axis=0, weights=[clients[i].samples if "weights" in options else 1 for i in drawn])
        close(model, x)
