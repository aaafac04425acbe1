"""FedBuff: against FedAvg, its staleness weights, and its bias to fast clients."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.common.server_optimizers import Momentum
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from tests.quadratic_runs import close, quadratics, random_quadratics, run


def plain(every: int = 1, reply: str = "before", **more: object) -> FedBuff:
    return FedBuff(trigger=Trigger(every=every), reply=reply, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("staleness", ["none", "inverse-sqrt"])
@pytest.mark.parametrize("server_step", [0.5, None])
def test_rule(staleness: str, server_step: float | None) -> None:
    """x <- x - eta_g (1/K) sum s(tau) (base - y), in a stale order, by hand; eta_g = eta_l where it is not given."""
    clients, every = random_quadratics(3, 4), 3
    order = [0, 0, 0, 1, 0, 3, 2, 1, 1, 0, 2, 3, 3, 0, 1, 2, 3, 0]
    algorithm = plain(every, step_size=0.1, local_steps=2, staleness=staleness, server_step=server_step)
    log = run(algorithm, clients, order, x0=1.0)
    x, version = np.ones(3), 0
    bases, buffer, models, delays = [(x, 0)] * 4, [], [], []
    for i in order:
        base, then = bases[i]
        tau = version - then
        delays.append(tau)
        weight = 1.0 if staleness == "none" else 1 / np.sqrt(1 + tau)
        buffer.append(weight * (base - clients[i].steps(base, 0.1, 2)))
        bases[i] = x, version
        if len(buffer) == every:
            x, version = x - (server_step or 0.1) * sum(buffer) / every, version + 1
            buffer = []
            models.append(x)
    close(log.models, models)
    assert [row[3] for row in log.updates] == delays
    assert max(delays) > 1


def test_a_timed_buffer_takes_the_mean_of_what_it_holds() -> None:
    """An empty buffer changes nothing, two updates count half each."""
    log = run(FedBuff(step_size=0.5, trigger=Trigger(period=2.5)), quadratics([1, 1], [1, 3]), [0, 1, 0, 1, 0, 1])
    assert [row[1] for row in log.aggregations] == [2, 5]
    close(log.models[0], [(0.5 * 1 + 0.5 * 3) / 2])


# -- CA2FL: with a table of last updates -------------------------------------------------------------------------------


def ca2fl(every: int = 1, **more: object) -> FedBuff:
    return FedBuff(trigger=Trigger(every=every), calibrate=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("staleness", ["none", "inverse-sqrt"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_calibrated_rule_by_hand(staleness: str, momentum: float) -> None:
    """buffer += s (D_i - h_i), h_i <- D_i at each arrival; x <- x - eta_g (h + buffer/K), h <- mean h_i afterwards;
    also with a server optimiser, d = -(h + buffer/K)."""
    clients, every = random_quadratics(1, 4), 3
    order = [0, 0, 0, 1, 0, 3, 2, 1, 1, 0, 2, 3, 3, 0, 1, 2, 3, 0, 0, 1, 1]
    more = {"optimizer": Momentum(beta=momentum)} if momentum else {}
    log = run(ca2fl(every, step_size=0.1, local_steps=2, staleness=staleness, server_step=0.5, **more), clients, order,
              x0=1.0)  # fmt: skip
    x, version, m = np.ones(3), 0, np.zeros(3)
    bases, own, h, buffer, models, count = [(x, 0)] * 4, np.zeros((4, 3)), np.zeros(3), np.zeros(3), [], 0
    for i in order:
        base, then = bases[i]
        D = base - clients[i].steps(base, 0.1, 2)
        buffer = buffer + (D - own[i]) / (np.sqrt(1 + version - then) if staleness != "none" else 1)
        own[i] = D
        count += 1
        if count == every:
            m = momentum * m + h + buffer / every
            x, version = x - 0.5 * m, version + 1
            h, buffer, count = own.mean(0), np.zeros(3), 0
            models.append(x)
        bases[i] = x, version
    close(log.models, models, 1e-10)


def test_a_client_twice_in_a_calibrated_buffer() -> None:
    """Its second difference is from its first update: the buffer has the last one in full."""
    clients = quadratics([1, 1], [4, 8])
    log = run(ca2fl(3, reply="before", step_size=0.5), clients, [0, 0, 1])
    close(log.x, [(2 + 4) / 3])
