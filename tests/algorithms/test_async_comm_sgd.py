"""AsyncCommSGD: its rule, its equal pace, and how it relates to FedAvg and asynchronous SGD."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.async_comm_sgd import AsyncCommSgd
from mpifl.algorithms.async_fedavg import AsyncFedAvg
from mpifl.algorithms.async_sgd import AsyncSgd
from mpifl.algorithms.base import Clients
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from mpifl.errors import ConfigError
from mpifl.scheduling.delays import Speed
from mpifl.scheduling.live import VirtualClock
from tests.quadratic_runs import Log, Quadratic, close, optimum, quadratics, random_quadratics, run

CYCLE = [0, 0, 0, 1]


def fixed(gap: int | list[int], step: float, **more: object) -> AsyncCommSgd:
    return AsyncCommSgd(step_size=step, gap=gap, draw="fixed", **more)  # type: ignore[arg-type]


def timed(algorithm: AsyncCommSgd, clients: list, **stop: float) -> Log:
    """Run by time: a local step takes 1 s, an exchange next to nothing."""
    speed = Speed(compute=1.0, exchange=1e-6)
    n = len(clients)
    return run(algorithm, clients, clock=VirtualClock(speed.contact_times(n, 0), speed.split_times(n, 0)), **stop)  # type: ignore[arg-type]


@pytest.mark.parametrize("reply", ["before", "after"])
@pytest.mark.parametrize("draw", ["fixed", "uniform"])
def test_rule(draw: str, reply: str) -> None:
    """x <- x + (1/n)(y - base), y after the drawn number of local steps, by hand and in a stale order."""
    clients = random_quadratics(1, 3)
    order = np.random.default_rng(0).integers(0, 3, 40).tolist()
    algorithm = AsyncCommSgd(step_size=0.1, gap=[2, 5, 3], draw=draw, reply=reply)
    log = run(algorithm, clients, order, x0=1.0)
    x, bases, contacts, taken = np.ones(3), [np.ones(3)] * 3, [0, 0, 0], []
    for k, i in enumerate(order):
        steps = algorithm.steps(0, i, contacts[i])
        taken.append(steps)
        contacts[i] += 1
        new = x + (clients[i].steps(bases[i], 0.1, steps) - bases[i]) / 3
        bases[i] = new if reply == "after" else x
        x = new
        close(log.models[k], x)
    assert [row[4] for row in log.updates] == taken
    assert draw == "uniform" or taken == [[2, 5, 3][i] for i in order]


@pytest.mark.parametrize("step", [0.1, 0.03])
def test_T3_has_no_bias_by_rates(step: float) -> None:
    """Gaps 1 and 3, so that client 0 comes three times as often with a third of the steps. The cycle balances
    k_i (c_i - b) with k_i = 1 - (1-step)^gap_i, exactly; AS-FedAvg on the same schedule has the cycle mean 1/4."""
    clients, c = quadratics([1, 1], [0, 1]), np.array([0.0, 1.0])
    log = run(fixed([1, 3], step), clients, CYCLE * int(16 / step))
    k = 1 - (1 - step) ** np.array([1, 3])
    bases, cycle = np.ravel(log.bases[-4:]), np.array(CYCLE)
    close(np.sum(k[cycle] * (c[cycle] - bases)), 0.0)
    assert log.x[0] == pytest.approx(1 / 2, abs=step)
    replace = AsyncFedAvg(step_size=step, step_weights="one", trigger=Trigger(every=1), reply="before")
    close(np.mean(run(replace, clients, CYCLE * int(24 / step)).bases[-4:]), 0.25)


@pytest.mark.parametrize(("a", "limit", "biased"), [((1, 1), 1 / 2, 1 / 4), ((1, 4), 4 / 5, 4 / 7)])
def test_T3_and_T4_in_the_limit_of_small_steps(a: tuple, limit: float, biased: float) -> None:
    """As the step goes to 0 (extrapolated) the model is at the optimum, and FedBuff's at the rate-weighted point."""
    clients = quadratics(a, [0, 1])
    close(optimum(clients), [limit])
    for algorithm, end in ((lambda s: fixed([1, 3], s), limit),
                           (lambda s: FedBuff(step_size=s, trigger=Trigger(every=1)), biased)):  # fmt: skip
        ends = [float(np.mean(run(algorithm(s), clients, CYCLE * int(5 / s)).bases[-4:])) for s in (0.02, 0.01)]
        assert 2 * ends[1] - ends[0] == pytest.approx(end, abs=1e-3)


def test_equal_pace_by_the_clock() -> None:
    """Gaps 1 and 3 by time: arrivals 0,0,0,1, and at all times both clients have taken as many steps as seconds passed,
    but for the contact under way; drawn gaps likewise."""
    clients = quadratics([1, 1], [0, 1])
    log = timed(fixed([1, 3], 0.01), clients, stop_time=1500.5)
    assert sorted(log.order[:4]) == CYCLE
    assert log.x[0] == pytest.approx(1 / 2, abs=0.01)
    drawn = AsyncCommSgd(step_size=0.01, gap=[1, 7])
    for each in (log, timed(drawn, clients, stop_time=1500.5)):
        taken = np.zeros(2)
        for row in each.updates:
            taken[row[1]] += row[4]
            assert abs(taken[row[1]] - row[0]) < 0.01  # the exchanges are in the time
        assert np.ptp(taken) <= 7


def test_drawn_gaps_by_the_clock_have_no_bias() -> None:
    """T4 with gaps of 1 to 3 and 1 to 9: the mean model ends at 4/5, within the noise of the draws and the step."""
    log = timed(AsyncCommSgd(step_size=0.002, gap=[3, 9]), quadratics([1, 4], [0, 1]), stop_time=6000.0)
    assert np.mean(log.models[len(log.models) // 2 :]) == pytest.approx(0.8, abs=0.01)
    assert log.order.count(0) > 2 * log.order.count(1)


def test_gaps() -> None:
    """Drawn from 1 to gap, each about as often, by (seed, client, contact) alone."""
    algorithm = AsyncCommSgd(gap=4)
    draws = np.array([[algorithm.steps(7, i, k) for k in range(2000)] for i in range(2)])
    for row in draws:
        counts = np.bincount(row, minlength=5)
        assert counts[0] == 0
        assert len(counts) == 5
        assert (np.abs(counts[1:] - 500) < 5 * np.sqrt(2000 * 0.25 * 0.75)).all()  # five standard deviations
    assert (draws[0] != draws[1]).any()
    assert [algorithm.steps(8, 0, k) for k in range(50)] != draws[0, :50].tolist()
    assert AsyncCommSgd(gap=4, draw="fixed").steps(7, 1, 3) == 4


@pytest.mark.parametrize("gap", [4, [1, 5, 2]])
def test_all_at_once_is_fedavg(gap: int | list[int]) -> None:
    """Deferred replies and an aggregation of all: a FedAvg round in which client i takes gap_i steps."""
    clients = random_quadratics(2, 3)
    log = run(fixed(gap, 0.1, reply="deferred", trigger=Trigger(every=3)), clients, [2, 0, 1] * 20, x0=1.0)
    x, gaps = np.ones(3), [gap] * 3 if isinstance(gap, int) else gap
    for model in log.models:
        x = np.mean([o.steps(x, 0.1, g) for o, g in zip(clients, gaps, strict=True)], axis=0)
        close(model, x)
    if gap == 4:
        close(log.models, run(FedAvg(step_size=0.1, local_steps=4), clients, [2, 0, 1] * 20, x0=1.0).models)


def test_gap_one_is_asynchronous_sgd() -> None:
    """One step a contact: asynchronous SGD with the step eta/n."""
    clients = random_quadratics(3, 4)
    order = np.random.default_rng(1).integers(0, 4, 60).tolist()
    one = run(fixed(1, 0.2), clients, order, x0=1.0)
    close(one.models, run(AsyncSgd(step_size=0.05), clients, order, x0=1.0).models)


def test_what_is_sent() -> None:
    """Down x and the number of steps, which is the work of the contact as well; up one vector."""
    log = run(AsyncCommSgd(gap=6), random_quadratics(6, 3), [0, 1, 2] * 4)
    assert {len(m.vectors) for _, m in log.sent} == {1} == {AsyncCommSgd.vectors_down}
    assert {len(u.vectors) for _, u in log.consumed} == {1} == {AsyncCommSgd.vectors_up}
    assert all(m.numbers == (m.work,) for _, m in log.sent)
    assert len({m.work for _, m in log.sent}) > 1


def test_float32_stays() -> None:
    algorithm = AsyncCommSgd(step_size=0.1, gap=3)
    x0 = np.ones(3, np.float32)
    server, client = algorithm.init_server(x0, Clients(np.array([1, 2]))), algorithm.init_client(x0, 0)
    objective = Quadratic(np.ones(3, np.float32), np.zeros(3, np.float32))
    for _ in range(2):
        update = algorithm.train(client, algorithm.message(server, 0), objective)
        algorithm.receive(server, 0, update, 0)
        algorithm.aggregate(server)
        assert {v.dtype for v in (*update.vectors, server.x, server.sum)} == {x0.dtype}


@pytest.mark.parametrize(
    ("key", "value"), [("gap", 0), ("gap", 2**31 + 1), ("gap", [3, 0]), ("draw", "normal"), ("step_size", 0.0)]
)
def test_wrong_values(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        AsyncCommSgd(**{key: value})  # type: ignore[arg-type]


def test_a_list_of_gaps_has_one_for_each_client() -> None:
    AsyncCommSgd(gap=[1, 2, 3]).validate(3)
    with pytest.raises(ConfigError, match="gap"):
        AsyncCommSgd(gap=[1, 2]).validate(3)
