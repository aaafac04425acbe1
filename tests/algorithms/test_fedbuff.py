"""FedBuff: against FedAvg, its staleness weights, and its bias to fast clients."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.common.server_optimizers import Momentum
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from tests.quadratic_runs import close, quadratics, random_quadratics, run

CYCLE = [0, 0, 0, 1]


def plain(every: int = 1, reply: str = "before", **more: object) -> FedBuff:
    return FedBuff(trigger=Trigger(every=every), reply=reply, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize("curvature", [1.0, 4.0])
def test_the_end_of_a_cycle_without_latency(beta: float, curvature: float) -> None:
    """ASYNC.4: No latency, K_buf = 1, cycle 0,0,0,1, c_0 = 0: the cycle ends at beta c_1 / (1-(1-beta)^4), beta = eta
    a."""
    algorithm = plain(reply="deferred", step_size=beta / curvature)
    log = run(algorithm, quadratics([curvature] * 2, [0, 3]), rounds=[[i] for i in CYCLE] * 75)
    close(log.x, [beta * 3 / (1 - (1 - beta) ** 4)])


@pytest.mark.parametrize("reply", ["before", "after"])
@pytest.mark.parametrize("step", [0.1, 0.05, 0.02])
def test_gradients_that_arrive_balance_over_a_cycle(step: float, reply: str) -> None:
    """ASYNC.5: Periodic schedule, K_buf = 1: sum over the cycle of a_i (b_k - c_i) = 0 for any step, so not the optimum
    4/5."""
    a, c = np.array([1.0, 4.0]), np.array([0.0, 1.0])
    log = run(plain(reply=reply, step_size=step), quadratics(a, c), CYCLE * int(6 / step))
    cycle = np.array(log.order[-4:])
    close(np.sum(a[cycle] * (np.ravel(log.bases[-4:]) - c[cycle])), 0.0)
    assert log.x[0] == pytest.approx(4 / 7, abs=3 * step)
    assert log.x[0] < 0.75


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
T3, T4 = quadratics([1, 1], [0, 1]), quadratics([1, 4], [0, 1])


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


@pytest.mark.parametrize(("clients", "limit"), [(T3, 0.5), (T4, 0.8)], ids=["T3", "T4"])
def test_a_calibrated_buffer_of_two_has_no_bias(clients: list, limit: float) -> None:
    """CA2FL.1, CA2FL.2: rates 3:1 end at the optimum for K = 2, as for K = 1 in the common table."""
    close(run(ca2fl(2, step_size=0.1), clients, CYCLE * 220).x, [limit], 1e-10)


def test_calibrated_models_after_4_and_12_arrivals() -> None:
    """CA2FL.4, CA2FL.5: T4, K 1, eta .1: after 4 and 12 arrivals."""
    log = run(ca2fl(step_size=0.1), T4, CYCLE * 3)
    close(log.models[3], [0.4])
    close(log.models[11], [0.968096], 1e-6)


def test_a_client_twice_in_a_calibrated_buffer() -> None:
    """Its second difference is from its first update: the buffer has the last one in full."""
    clients = quadratics([1, 1], [4, 8])
    log = run(ca2fl(3, reply="before", step_size=0.5), clients, [0, 0, 1])
    close(log.x, [(2 + 4) / 3])
