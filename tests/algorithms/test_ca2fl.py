"""CA2FL: FedBuff with a table of last updates, which removes its bias to fast clients."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.common.server_optimizers import Momentum
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from tests.quadratic_runs import close, quadratics, random_quadratics, run

CYCLE = [0, 0, 0, 1]
T3, T4 = quadratics([1, 1], [0, 1]), quadratics([1, 4], [0, 1])


def ca2fl(every: int = 1, **more: object) -> FedBuff:
    return FedBuff(trigger=Trigger(every=every), calibrate=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("staleness", ["none", "inverse-sqrt"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_rule_by_hand(staleness: str, momentum: float) -> None:
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


def test_models_after_4_and_12_arrivals() -> None:
    """FL.4, FL.5: T4, K 1, eta .1: after 4 and 12 arrivals."""
    log = run(ca2fl(step_size=0.1), T4, CYCLE * 3)
    close(log.models[3], [0.4])
    close(log.models[11], [0.968096], 1e-6)


def test_a_client_twice_in_a_buffer() -> None:
    """Its second difference is from its first update: the buffer has the last one in full."""
    clients = quadratics([1, 1], [4, 8])
    log = run(ca2fl(3, reply="before", step_size=0.5), clients, [0, 0, 1])
    close(log.x, [(2 + 4) / 3])
