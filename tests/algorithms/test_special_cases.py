"""Methods that are one another: special cases whose models agree, event by event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms import find
from mpifl.algorithms.base import Algorithm
from mpifl.algorithms.common.indicators import Equal
from mpifl.algorithms.common.local_solver import Gd
from mpifl.algorithms.common.server_optimizers import Adam, Momentum
from mpifl.algorithms.common.splitting import AbsoluteAccuracy
from mpifl.algorithms.participation import Trigger
from tests.quadratic_runs import Quadratic, close, quadratics, random_quadratics, run

CLIENTS = random_quadratics(1, 4)
EQUAL = quadratics([2, 2, 2, 2], [1, 1, 1, 1])  # all updates are equal
ONCE = [2, 0, 3, 1]
ROUNDS = ONCE * 10
ANY = [*range(4), *np.random.default_rng(0).integers(0, 4, 60).tolist()]
COHORTS = [[0, 2], [1, 3], [0, 1], [2, 3], [3, 0], [1, 2]]


@dataclass(frozen=True)
class Pair:
    """Two methods whose models are the same for one order of arrivals, or for one list of cohorts."""

    id: str  # of docs/algorithms.md
    one: Algorithm
    other: Algorithm
    order: list[int] = field(default_factory=lambda: ROUNDS)
    cohorts: list[list[int]] | None = None
    tolerance: float = 1e-12  # 0: to the bit
    clients: list[Quadratic] = field(default_factory=lambda: CLIENTS)
    phases: int = 1  # aggregations of `one` for each of `other`


LOCAL: dict[str, Any] = {"step_size": 0.1, "local_steps": 3}
ALL: dict[str, Any] = {"trigger": Trigger(every=4), "reply": "deferred"}  # a round
EACH: dict[str, Any] = {"trigger": Trigger(every=1)}
SAMPLES: dict[str, Any] = {"weights": "samples"}
ONE: dict[str, Any] = {"step_weights": "one"}


def make(name: str, **options: Any) -> Algorithm:
    return find(name)(**options)


FEDAVG = make("fedavg", **LOCAL)
WEIGHTED = make("fedavg", **LOCAL, **SAMPLES)
ASYNC_SGD = make("async-sgd", step_size=0.1)


def exact(low: float, high: float) -> dict[str, Any]:
    """Local problems of these curvatures are solved to rounding."""
    return {"solver": Gd(), "step_size": 2 / (low + high), "local_steps": 200}


PAIRS = [
    # rounds of all clients
    Pair("ASFEDAVG.1", make("async-fedavg", **ONE, **LOCAL, **ALL), FEDAVG),
    Pair("FEDBUFF.1", make("fedbuff", **LOCAL, **ALL), FEDAVG),
    Pair("AREA.6", make("area", **ONE, **LOCAL, **ALL), FEDAVG),
    Pair("MIFA.1", make("mifa", **LOCAL), FEDAVG),
    Pair("CA2FL.3", make("fedbuff", calibrate=True, **LOCAL, **ALL), FEDAVG),
    Pair("APFL.1", make("apfl", mixing=0.3, adapt="step", **LOCAL, **SAMPLES), WEIGHTED, tolerance=0),
    Pair("ASYPFL.1", make("asypfl", mode="synchronous", indicators=Equal(), elastic=0.7, **LOCAL), WEIGHTED),
    Pair("NOVA.1", make("fednova", **LOCAL), FEDAVG),
    Pair("EXP.1", make("fedexp", epsilon=0.0, **LOCAL), FEDAVG, clients=EQUAL),
    Pair("EXP.2", make("fedexp", epsilon=1e9, **LOCAL), FEDAVG),
    Pair("OPT.1", make("fedavg", optimizer=Momentum(beta=0), server_step=1.0, **LOCAL), FEDAVG),
    Pair("OPT.4", make("fedavg", optimizer=Adam(beta1=0, beta2=1), server_step=2e-3, **LOCAL), FEDAVG),
    Pair("SKIP.1", make("proxskip", step_size=0.1), make("fedavg", step_size=0.1)),
    # a first round
    *(Pair(f"SCAFFOLD.6-{o}", make("scaffold", option=o, **LOCAL), FEDAVG, ONCE) for o in ("I", "II")),
    # corrections
    *(Pair(f"SCAFFOLD.5-{p}", make(kind, **LOCAL, weights=p), make("scaffold", **LOCAL, weights=p))
      for kind in ("fedgate", "vrl-sgd") for p in ("uniform", "samples")),
    Pair("SKIP.2", make("proxskip", step_size=0.1, period=3), make("vrl-sgd", **LOCAL)),
    Pair("FEDDANE.4", make("feddane", mu=0.7, correction=0.0, **LOCAL), make("fedprox", mu=0.7, **LOCAL), phases=2),
    Pair("FEDDANE.7", make("feddane", solver=Gd(), **LOCAL, **SAMPLES), make("f-svrg", **LOCAL, **SAMPLES)),
    # primal-dual methods and splitting
    Pair("FEDDR.2", make("feddr", alpha=1.0, eta=0.5, **exact(2.5, 5)), make("fedpd", eta=0.5, **exact(2.5, 5))),
    Pair("DYN.2", make("feddyn", alpha=2.0, **exact(2.5, 5)), make("fedpd", eta=0.5, **exact(2.5, 5))),
    Pair("DYN.3", make("feddyn", alpha=2.0, **exact(2.5, 5)), make("fedadmm", rho=2.0, **exact(2.5, 5))),
    Pair("DYN.4", make("feddyn", alpha=2.0, **exact(2.5, 5)),
         make("feddr", alpha=1.0, eta=0.5, **{**exact(2.5, 5), "accuracy": AbsoluteAccuracy(M=1e-28)})),
    Pair("ADMM.1", make("fedadmm", rho=2.0, eta=None, solver=Gd(), **LOCAL),
         make("feddr", alpha=1.0, eta=0.5, solver=Gd(), **LOCAL), cohorts=COHORTS),
    # arrivals one by one
    Pair("ASFEDAVG.2", make("async-fedavg", reply="deferred", **ONE, **LOCAL),
         make("fedbuff", reply="deferred", **LOCAL), cohorts=COHORTS),
    *(Pair(f"MEM.1-{r}-{k}", make("area", reply=r, trigger=Trigger(every=k), **LOCAL),
           make("async-fedavg", rule="server-memory", reply=r, trigger=Trigger(every=k), **LOCAL), ANY)
      for r in ("before", "after") for k in (1, 3)),
    Pair("MEM.1-deferred", make("area", **LOCAL, **ALL), make("async-fedavg", rule="server-memory", **LOCAL, **ALL)),
    *(Pair(f"FEDASYNC.1-{r}", make("fedasync", mixing=1.0, proximal=0.0, staleness="constant", reply=r, **LOCAL),
           make("async-fedavg", reply=r, **ONE, **LOCAL, **EACH), ANY, tolerance=0) for r in ("before", "after")),
    Pair("ACE.4", make("ace", step_size=0.1, fill="zero"), make("fedavg", step_size=0.1), [0] * 11,
         clients=CLIENTS[:1]),
    Pair("ACE.5", make("ace", step_size=0.1, delay_threshold=10**9), make("ace", step_size=0.1), ANY),
    Pair("ACED.1", make("ace", step_size=0.1, delay_threshold=0, fill="zero"), ASYNC_SGD, ANY),
    Pair("RM.1", make("async-sgd", step_size=0.1, step_rule="ringmaster", threshold=10**9), ASYNC_SGD, ANY,
         tolerance=0),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_models_agree(pair: Pair) -> None:
    order = None if pair.cohorts else pair.order
    repeated = pair.order * pair.phases if order else None
    one = run(pair.one, pair.clients, repeated, rounds=pair.cohorts, x0=1.5).models[pair.phases - 1 :: pair.phases]
    other = run(pair.other, pair.clients, order, rounds=pair.cohorts, x0=1.5).models
    assert len(one) == len(other) and np.abs(other[-1] - 1.5).max() > 1e-3
    if pair.tolerance:
        close(one, other, pair.tolerance)
    else:
        assert np.array_equal(one, other)
