"""Methods that are one another: special cases whose models agree, event by event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.ace import Ace
from mpifl.algorithms.apfl import APFL
from mpifl.algorithms.area import Area
from mpifl.algorithms.async_comm_sgd import AsyncCommSgd
from mpifl.algorithms.async_fedavg import AsyncFedAvg
from mpifl.algorithms.async_sgd import AsyncSgd
from mpifl.algorithms.asypfl import AsyPFL
from mpifl.algorithms.base import Algorithm
from mpifl.algorithms.common.indicators import Equal
from mpifl.algorithms.common.local_solver import Gd, Sgd
from mpifl.algorithms.common.robust import Clip, Median
from mpifl.algorithms.common.server_optimizers import Adam, Momentum, Plain
from mpifl.algorithms.common.splitting import AbsoluteAccuracy
from mpifl.algorithms.f_svrg import FSVRG
from mpifl.algorithms.fedadmm import FedADMM
from mpifl.algorithms.fedasync import FedAsync
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.feddane import FedDANE
from mpifl.algorithms.feddr import FedDR
from mpifl.algorithms.feddyn import FedDyn
from mpifl.algorithms.fedexp import FedExP
from mpifl.algorithms.fedgate import FedGate
from mpifl.algorithms.fednova import FedNova
from mpifl.algorithms.fedpd import FedPD
from mpifl.algorithms.fedprox import FedProx
from mpifl.algorithms.mifa import Mifa
from mpifl.algorithms.mime import Mime
from mpifl.algorithms.participation import Trigger
from mpifl.algorithms.proxskip import ProxSkip
from mpifl.algorithms.scaffold import Scaffold
from mpifl.algorithms.vrl_sgd import VrlSgd
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
FEDAVG = FedAvg(**LOCAL)


def exact(low: float, high: float) -> dict[str, Any]:
    """Local problems of these curvatures are solved to rounding."""
    return {"solver": Gd(), "step_size": 2 / (low + high), "local_steps": 200}


PAIRS = [
    # rounds of all clients
    Pair("ASFEDAVG.1", AsyncFedAvg(**ONE, **LOCAL, **ALL), FEDAVG),
    Pair("FEDBUFF.1", FedBuff(**LOCAL, **ALL), FEDAVG),
    Pair("AREA.6", Area(**ONE, **LOCAL, **ALL), FEDAVG),
    Pair("MIFA.1", Mifa(**LOCAL), FEDAVG),
    Pair("CA2FL.3", FedBuff(calibrate=True, **LOCAL, **ALL), FEDAVG),
    Pair("AsyncCommSGD", AsyncCommSgd(step_size=0.1, gap=3, draw="fixed", **ALL), FEDAVG),
    Pair("APFL.1", APFL(mixing=0.3, adapt="step", **LOCAL, **SAMPLES), FedAvg(**LOCAL, **SAMPLES), tolerance=0),
    Pair("ASYPFL.1", AsyPFL(mode="synchronous", indicators=Equal(), elastic=0.7, **LOCAL), FedAvg(**LOCAL, **SAMPLES)),
    Pair("NOVA.1", FedNova(**LOCAL), FEDAVG),
    Pair("NOVA.1-samples", FedNova(**LOCAL, **SAMPLES), FedAvg(**LOCAL, **SAMPLES)),
    Pair("NOVA.1-momentum", FedNova(solver=Sgd(momentum=0.9), **LOCAL), FedAvg(solver=Sgd(momentum=0.9), **LOCAL)),
    Pair("EXP.1", FedExP(epsilon=0.0, **LOCAL), FEDAVG, clients=EQUAL),
    Pair("EXP.2", FedExP(epsilon=1e9, **LOCAL), FEDAVG),
    Pair("MimeLite", Mime(lite=True, **LOCAL), FEDAVG),
    Pair("clip", FedAvg(aggregation=Clip(norm=1e3), **LOCAL), FEDAVG),
    Pair("OPT.1", FedAvg(optimizer=Momentum(beta=0), server_step=1.0, **LOCAL), FEDAVG),
    Pair("OPT.4", FedAvg(optimizer=Adam(beta1=0, beta2=1), server_step=2e-3, **LOCAL), FEDAVG),
    Pair("SKIP.1", ProxSkip(step_size=0.1), FedAvg(step_size=0.1)),
    # first rounds
    *(Pair(f"ASFEDAVG.1-{r}", AsyncFedAvg(**ONE, **LOCAL, **{**ALL, "reply": r}), FEDAVG, ONCE)
      for r in ("before", "after")),
    *(Pair(f"FEDBUFF.1-{r}", FedBuff(**LOCAL, **{**ALL, "reply": r}), FEDAVG, ONCE) for r in ("before", "after")),
    *(Pair(f"SCAFFOLD.6-{o}", Scaffold(option=o, **LOCAL), FEDAVG, ONCE) for o in ("I", "II")),
    Pair("FedGATE", FedGate(**LOCAL), FEDAVG, ONCE),
    # corrections
    *(Pair(f"SCAFFOLD.5-{p}", kind(**LOCAL, weights=p), Scaffold(**LOCAL, weights=p))
      for kind in (FedGate, VrlSgd) for p in ("uniform", "samples")),
    Pair("SKIP.2", ProxSkip(step_size=0.1, period=3), VrlSgd(**LOCAL)),
    Pair("FEDDANE.4", FedDANE(mu=0.7, correction=0.0, **LOCAL), FedProx(mu=0.7, **LOCAL), phases=2),
    Pair("FEDDANE.7", FedDANE(solver=Gd(), **LOCAL, **SAMPLES), FSVRG(**LOCAL, **SAMPLES)),
    Pair("FEDDANE.7-Mime", Mime(**LOCAL, **SAMPLES), FSVRG(**LOCAL, **SAMPLES)),
    # primal-dual methods and splitting
    Pair("FEDDR.2", FedDR(alpha=1.0, eta=0.5, **exact(2.5, 5)), FedPD(eta=0.5, **exact(2.5, 5))),
    Pair("DYN.2", FedDyn(alpha=2.0, **exact(2.5, 5)), FedPD(eta=0.5, **exact(2.5, 5))),
    Pair("DYN.3", FedDyn(alpha=2.0, **exact(2.5, 5)), FedADMM(rho=2.0, **exact(2.5, 5))),
    Pair("DYN.4", FedDyn(alpha=2.0, **exact(2.5, 5)),
         FedDR(alpha=1.0, eta=0.5, **{**exact(2.5, 5), "accuracy": AbsoluteAccuracy(M=1e-28)})),
    Pair("ADMM.1", FedADMM(rho=2.0, eta=None, solver=Gd(), **LOCAL),
         FedDR(alpha=1.0, eta=0.5, solver=Gd(), **LOCAL), cohorts=COHORTS),
    # arrivals one by one
    Pair("ASFEDAVG.2", AsyncFedAvg(reply="deferred", **ONE, **LOCAL), FedBuff(reply="deferred", **LOCAL),
         cohorts=COHORTS),
    *(Pair(f"MEM.1-{r}-{k}", Area(reply=r, trigger=Trigger(every=k), **LOCAL),
           AsyncFedAvg(rule="server-memory", reply=r, trigger=Trigger(every=k), **LOCAL), ANY)
      for r in ("before", "after") for k in (1, 3)),
    Pair("MEM.1-deferred", Area(**LOCAL, **ALL), AsyncFedAvg(rule="server-memory", **LOCAL, **ALL)),
    *(Pair(f"FEDASYNC.1-{r}", FedAsync(mixing=1.0, proximal=0.0, staleness="constant", reply=r, **LOCAL),
           AsyncFedAvg(reply=r, **ONE, **LOCAL, **EACH), ANY, tolerance=0) for r in ("before", "after")),
    *(Pair(f"FedBuff of one-{r}", AsyncSgd(step_size=0.1, reply=r, step_weights="relative"),
           FedBuff(step_size=0.1, reply=r, step_weights="relative", **EACH), ANY) for r in ("before", "after")),
    Pair("AsyncCommSGD of one step", AsyncCommSgd(step_size=0.2, gap=1, draw="fixed"), AsyncSgd(step_size=0.05), ANY),
    Pair("ACE.5", Ace(step_size=0.1, delay_threshold=10**9), Ace(step_size=0.1), ANY),
    Pair("ACED.1", Ace(step_size=0.1, delay_threshold=0, fill="zero"), AsyncSgd(step_size=0.1), ANY),
    Pair("RM.1", AsyncSgd(step_size=0.1, step_rule="ringmaster", threshold=10**9), AsyncSgd(step_size=0.1), ANY,
         tolerance=0),
    # without an option, and with the option that changes nothing
    Pair("OPT.1-plain", FedAvg(optimizer=Momentum(beta=0), **LOCAL), FedAvg(optimizer=Plain(), **LOCAL), tolerance=0),
    Pair("server step", FedAvg(server_step=0.3, **LOCAL), FedAvg(server_step=0.3, optimizer=Plain(), **LOCAL),
         tolerance=0),
    Pair("plain-FedProx", FedProx(optimizer=Plain(), **LOCAL), FedProx(**LOCAL)),
    Pair("plain-FedBuff", FedBuff(optimizer=Plain(), **LOCAL), FedBuff(**LOCAL), ANY),
    Pair("median", FedBuff(server_step=0.5, optimizer=Adam(), aggregation=Median(), **LOCAL, **ALL),
         FedAvg(server_step=0.5, optimizer=Adam(), aggregation=Median(), **LOCAL)),
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
