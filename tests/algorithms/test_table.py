"""One row for each algorithm and test problem: where it must end. A new algorithm is a new row."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mpifl.algorithms import names
from mpifl.algorithms.area import Area
from mpifl.algorithms.async_fedavg import AsyncFedAvg
from mpifl.algorithms.base import Algorithm
from mpifl.algorithms.fedasync import FedAsync
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from mpifl.links.clocks import VirtualClock
from mpifl.links.delays import Fixed
from tests.loops import close, quadratics, run


@dataclass(frozen=True)
class Row:
    """An algorithm on 1-D quadratics a_i/2 (x - c_i)^2, and the server's model after so many updates, within accuracy.

    Clients answer after fixed seconds under the virtual clock, ties to the lower client: (1, 3) arrive as 0,0,0,1.
    """

    id: str
    algorithm: Algorithm
    a: tuple[float, ...]  # curvatures
    c: tuple[float, ...]  # optima
    seconds: tuple[float, ...]
    updates: int
    limit: float  # the optimum, or the stated bias
    accuracy: float
    optimum: float

    @property
    def name(self) -> str:
        return type(self.algorithm).__module__.rsplit(".", 1)[1].replace("_", "-")


EVERY = Trigger(every=1)
EQUAL = {"a": (1.0, 1.0), "c": (0.0, 1.0), "seconds": (1.0, 3.0), "optimum": 0.5}  # T3
UNEQUAL = {"a": (1.0, 4.0), "c": (0.0, 1.0), "seconds": (1.0, 3.0), "optimum": 0.8}  # T4
DRIFT = {"a": (1.0, 10.0), "c": (1.0, -1.0), "seconds": (1.0, 1.0), "optimum": -9 / 11}  # T1

# Steps of 0.01: a biased model then swings about its limit, by less than the accuracy, as clients come and go.
ROWS = [
    Row("fedavg-T1-one-step", FedAvg(step_size=0.05), **DRIFT, updates=400, limit=-9 / 11, accuracy=1e-12),
    Row("fedavg-T1-drift", FedAvg(step_size=0.05, local_steps=10), **DRIFT, updates=200, limit=-0.4268843393694543,
        accuracy=1e-12),
    Row("fedavg-T4", FedAvg(step_size=0.2), **UNEQUAL, updates=200, limit=0.8, accuracy=1e-12),
    Row("async-fedavg-T3-biased", AsyncFedAvg(step_size=0.01, step_weights="one", trigger=EVERY), **EQUAL,
        updates=2000, limit=1 / 4, accuracy=0.02),
    Row("fedbuff-T3-biased", FedBuff(step_size=0.01, trigger=EVERY), **EQUAL, updates=2000, limit=1 / 4,
        accuracy=0.02),
    Row("fedbuff-T4-biased", FedBuff(step_size=0.01, trigger=EVERY), **UNEQUAL, updates=1200, limit=4 / 7,
        accuracy=0.02),
    Row("fedbuff-T1-equal-rates", FedBuff(step_size=0.05, local_steps=10, trigger=Trigger(every=2)), **DRIFT,
        updates=400, limit=-0.4268843393694543, accuracy=1e-12),
    Row("fedasync-T3-biased", FedAsync(step_size=0.01, proximal=0.0, staleness="constant"), **EQUAL, updates=4000,
        limit=1 / 4, accuracy=0.02),
    Row("area-T1", Area(step_size=0.05, step_weights="one"), **DRIFT, updates=1200, limit=-9 / 11, accuracy=1e-12),
    Row("area-T1-drift", Area(step_size=0.05, step_weights="one", local_steps=10), **DRIFT, updates=400,
        limit=-0.4268843393694543, accuracy=1e-12),
    Row("area-T3-unbiased", Area(step_size=0.5, step_weights="one"), **EQUAL, updates=800, limit=0.5, accuracy=1e-12),
    Row("area-T4-unbiased", Area(step_size=0.2, step_weights="one", trigger=Trigger(every=2)), **UNEQUAL, updates=1600,
        limit=0.8, accuracy=1e-12),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_limit_in_process(row: Row) -> None:
    """The model ends at the stated optimum or bias, and a biased one is not at the optimum."""
    clock = VirtualClock(Fixed(seconds=list(row.seconds)).bind(len(row.a), 0))
    log = run(row.algorithm, quadratics(row.a, row.c), clock=clock, stop_updates=row.updates)
    close(log.x, [row.limit], row.accuracy)
    assert abs(row.limit - row.optimum) > 5 * row.accuracy or row.limit == row.optimum


def test_every_algorithm_has_a_row() -> None:
    assert {row.name for row in ROWS} == set(names())
