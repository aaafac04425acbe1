"""AS-FedAvg: its reading of the buffer, its variants, and its bias to fast clients."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.async_fedavg import AsyncFedAvg
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from tests.quadratic_runs import close, quadratics, random_quadratics, run

ROUNDS = [[0, 2], [1, 3], [0, 1], [2, 3], [3, 0], [1, 2]]


def plain(rule: str = "replace", every: int = 1, reply: str = "before", step: float = 0.1, **more: int) -> AsyncFedAvg:
    trigger = Trigger(every=every)
    return AsyncFedAvg(step_size=step, step_weights="one", rule=rule, trigger=trigger, reply=reply, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("reply", ["before", "after", "deferred"])
def test_ASFEDAVG_1(reply: str) -> None:
    """Delta = n: the first aggregation is a round of FedAvg; with deferred replies every one is."""
    clients = random_quadratics(1, 5)
    order = [3, 0, 4, 1, 2]
    log = run(plain(every=5, reply=reply, local_steps=3), clients, order * 4, x0=1.0)
    fedavg = run(FedAvg(step_size=0.1, local_steps=3), clients, order * 4, x0=1.0)
    close(log.models[0], fedavg.models[0])
    if reply == "deferred":
        close(log.models, fedavg.models)


def test_ASFEDAVG_2() -> None:
    """Without staleness `replace` is FedBuff with eta_g = 1, and `delta-over-n` takes Delta/n times that step."""
    clients = random_quadratics(2, 4)
    replace = run(plain(reply="deferred", local_steps=2), clients, rounds=ROUNDS, x0=1.0)
    fedbuff = run(FedBuff(step_size=0.1, local_steps=2, reply="deferred"), clients, rounds=ROUNDS, x0=1.0)
    close(replace.models, fedbuff.models)
    over_n = run(plain("delta-over-n", reply="deferred", local_steps=2), clients, rounds=ROUNDS, x0=1.0)
    x = np.ones(3)
    for members, model in zip(ROUNDS, over_n.models, strict=True):
        step = np.mean([clients[i].steps(x, 0.1, 2) for i in members], axis=0) - x
        close(model, x + 2 / 4 * step)
        x = model


def test_ASFEDAVG_3() -> None:
    """Delta = 1 and reply after: each client gets its own model back, and nothing is ever mixed."""
    clients = random_quadratics(3, 3)
    order = [0, 1, 0, 2, 2, 0, 1, 2, 1, 0]
    own = [np.zeros(3)] * 3
    log = run(plain(reply="after"), clients, order)
    for i, model in zip(order, log.models, strict=True):
        own[i] = clients[i].steps(own[i], 0.1)
        close(model, own[i])


@pytest.mark.parametrize("step", [0.1, 0.5])
@pytest.mark.parametrize("rule", ["replace", "delta-over-n", "delta-over-buffer"])
def test_ASYNC_1(rule: str, step: float) -> None:
    """Equal curvature, rates 3:1, optima 0 and 1: the models trained on have the cycle mean 1/4, not 1/2."""
    log = run(plain(rule, step=step), quadratics([1, 1], [0, 1]), [0, 0, 0, 1] * 400)
    close(np.mean(log.bases[-4:]), 0.25)


@pytest.mark.parametrize("step", [0.1, 0.5])
@pytest.mark.parametrize("name", ["async-fedavg", "fedbuff", "delta-over-n"])
def test_T3(name: str, step: float) -> None:
    """As ASYNC.1 for the methods of the problem's table; AREA's row is test_area.test_T3."""
    fedbuff = FedBuff(step_size=step, trigger=Trigger(every=1), reply="before")
    algorithm = fedbuff if name == "fedbuff" else plain("replace" if name == "async-fedavg" else name, step=step)
    log = run(algorithm, quadratics([1, 1], [0, 1]), [0, 0, 0, 1] * 400)
    close(np.mean(log.bases[-4:]), 0.25)


def test_T3_zero_latency() -> None:
    """Every upload is trained on the newest model, alpha = 0.5: the server ends each cycle at 8/15."""
    for algorithm in (plain(step=0.5, reply="deferred"), FedBuff(step_size=0.5, reply="deferred")):
        log = run(algorithm, quadratics([1, 1], [0, 1]), rounds=[[0], [0], [0], [1]] * 30)
        close(log.x, [8 / 15])


@pytest.mark.parametrize("every", [2, 3, 4])
def test_bias_with_a_buffer(every: int) -> None:
    """The bias to fast clients is the same for any Delta."""
    log = run(plain(every=every), quadratics([1, 1], [0, 1]), [0, 0, 0, 1] * 600)
    close(np.mean(log.bases[-12:]), 0.25)


def test_variants_follow_their_formulas() -> None:
    """replace, delta-over-n, delta-over-buffer, mix-over-n and server-memory, computed by hand in a stale order."""
    clients, every, n = random_quadratics(4, 4), 3, 4
    order = [0, 1, 0, 0, 3, 2, 1, 1, 0, 2, 3, 3, 0, 1, 2]
    for rule in ("replace", "delta-over-n", "delta-over-buffer", "mix-over-n", "server-memory"):
        log = run(plain(rule, every, local_steps=2), clients, order, x0=1.0)
        x = np.ones(3)
        bases, buffer, last = [x] * n, [], [x] * n
        models = []
        for i in order:
            w = clients[i].steps(bases[i], 0.1, 2)
            buffer.append((w, bases[i]))
            last[i], bases[i] = w, x
            if len(buffer) == every:
                x = {
                    "replace": np.mean([w for w, _ in buffer], axis=0),
                    "delta-over-n": x + sum(w - b for w, b in buffer) / n,
                    "delta-over-buffer": x + sum(w - b for w, b in buffer) / every,
                    "mix-over-n": x + sum(w - x for w, _ in buffer) / n,
                    "server-memory": np.mean(last, axis=0),
                }[rule]
                buffer = []
                models.append(x)
        close(log.models, models)


def test_an_empty_buffer_changes_nothing() -> None:
    """A timed aggregation that finds no update leaves the model as it is."""
    for rule in ("replace", "delta-over-n", "delta-over-buffer", "mix-over-n", "server-memory"):
        algorithm = AsyncFedAvg(step_size=0.5, step_weights="one", rule=rule, trigger=Trigger(period=0.25))
        log = run(algorithm, quadratics([1], [1]), [0, 0, 0, 0])
        assert len(log.models) == 15  # at 0.25 .. 3.75; updates at 1, 2, 3
        close(log.models[4], log.models[6])
        assert log.models[10] != log.models[11]
