"""MIFA: the table of last updates, FedAvg's drift point, and its narrow stability."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.base import Clients
from mpifl.algorithms.mifa import Mifa
from mpifl.config import read
from mpifl.errors import ConfigError
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Fixed
from tests.mpi.cases import SMALL, job
from tests.quadratic_runs import close, quadratics, random_quadratics, run

T1 = quadratics([1, 10], [1, -1])


@pytest.mark.parametrize("schedule", ["constant", "inverse"])
def test_rule_by_hand(schedule: str) -> None:
    """Two of four clients a round after one of all; the table has updates over their factors, the step the present."""
    clients = random_quadratics(1, 4)
    rng = np.random.default_rng(0)
    rounds = [[0, 1, 2, 3], *(sorted(rng.choice(4, 2, replace=False).tolist()) for _ in range(9))]
    log = run(Mifa(step_size=0.2, local_steps=2, step_schedule=schedule), clients, rounds=rounds, x0=1.0)
    x, table, models = np.ones(3), np.zeros((4, 3)), []
    for t, members in enumerate(rounds):
        factor = 1 if schedule == "constant" else 1 / (t + 1)
        for i in members:
            table[i] = (x - clients[i].steps(x, 0.2 * factor, 2)) / factor
        x = x - factor * table.sum(0) / 4
        models.append(x)
    close(log.models, models, 1e-10)


def test_fill() -> None:
    """wait: the first round has all clients, the others a cohort; zero: cohorts from the first, D_i = 0 until heard."""
    clients = Clients(np.ones(5, int))
    wait, zero = (Mifa(cohort=2, fill=fill).participation(clients, 0) for fill in ("wait", "zero"))
    assert [len(wait.sample(r)) for r in range(4)] == [5, 2, 2, 2]
    assert [len(zero.sample(r)) for r in range(4)] == [2, 2, 2, 2]
    x = np.ones(3)
    four = random_quadratics(3, 4)
    log = run(Mifa(step_size=0.1, fill="zero"), four, rounds=[[1], [3]], x0=1.0)
    D1 = 0.1 * four[1].gradient(x)
    close(log.models[0], x - D1 / 4)
    close(log.models[1], x - D1 / 4 - (D1 + 0.1 * four[3].gradient(log.models[0])) / 4)


def test_the_sum_is_the_table() -> None:
    """After every n-th update the sum is computed anew: no rounding error lasts."""
    log = run(Mifa(step_size=0.1), random_quadratics(4, 3), rounds=[[0, 1, 2], *([[0], [1], [2]] * 7)], x0=1.0)
    assert np.array_equal(log.server.total, sum(log.server.table.values()))


# -- rounds of a given length ------------------------------------------------------------------------------------------
def by_period(algorithm: Mifa, updates: int, seconds: tuple[float, float] = (0.5, 1.5)) -> list:
    """The models after each round of 1 s; client 1 answers in every other one."""
    return run(algorithm, T1, clock=VirtualClock(Fixed(seconds=list(seconds)).contact_times(2, 0)), x0=0.0,
               stop_updates=updates).models  # fmt: skip


def test_a_round_ends_without_those_that_have_not_answered() -> None:
    """Client 1's update of x_0 arrives in round 2, and it is answered then; the next one arrives in round 4."""
    step = {"step_size": 0.05, "local_steps": 3, "period": 1.0}

    def D(i: int, x: np.ndarray) -> np.ndarray:
        return x - T1[i].steps(x, 0.05, 3)

    zero = by_period(Mifa(fill="zero", **step), 7)
    x = [np.zeros(1)]
    for own, other in ((0, None), (1, 0), (2, 0), (3, 2)):
        x.append(x[-1] - (D(0, x[own]) + (0 if other is None else D(1, x[other]))) / 2)
    close(zero, x[1:5])
    wait = by_period(Mifa(**step), 6)
    close(wait[0], x[0])
    close(wait[1], x[0] - (D(0, x[0]) + D(1, x[0])) / 2)


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"cohort": 3}, r"cohort=3: with period every client takes part as it answers; expected null"),
        (
            {"sampling": "samples"},
            r"sampling=samples: with period every client takes part as it answers; expected uniform",
        ),
    ],
)
def test_rounds_by_time_have_no_cohort(more: dict, key: str) -> None:
    values = {"name": "x", **job({"name": "mifa", "period": 1.0, **more}, SMALL)}
    with pytest.raises(ConfigError, match=rf"^algorithm\.{key}$"):
        read.load(values)
    clock = {**values["clock"], "availability": {"name": "renewal", "cohort_from": "available"}}
    with pytest.raises(
        ConfigError,
        match="cohort_from=available: the algorithm is mifa, and its rounds need every client; expected all",
    ):
        read.load({**values, "clock": clock, "algorithm": {"name": "mifa", "period": 1.0}})
