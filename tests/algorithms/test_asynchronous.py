"""Asynchronous methods: figures, limits, drawn numbers of steps, empty buffers, lost clients; Ringleader's rounds. The
other rules by hand are in `test_schedules.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.ace import Ace
from mpifl.algorithms.async_comm_sgd import AsyncCommSgd
from mpifl.algorithms.async_fedavg import AsyncFedAvg
from mpifl.algorithms.async_sgd import AsyncSgd
from mpifl.algorithms.base import Clients
from mpifl.algorithms.common.server_optimizers import Momentum
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from mpifl.algorithms.ringleader import Ringleader
from mpifl.errors import ConfigError
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Fixed, Speed
from tests.algorithms.test_schedules import RULES
from tests.algorithms.world import World
from tests.quadratic_runs import Log, close, optimum, quadratics, random_quadratics, run

CYCLE = [0, 0, 0, 1]
FILL = [0, 1]  # one arrival of each client at x_0
T3, T4 = quadratics([1, 1], [0, 1]), quadratics([1, 4], [0, 1])


def in_cycles(algorithm: Any, clients: list, updates: int) -> Log:
    """The cycle 0,0,0,1 by a clock in which client 1 takes three times as long."""
    fixed = Fixed(seconds=[1.0, 3.0])
    clock = VirtualClock(fixed.contact_times(2, 0))
    return run(algorithm, clients, clock=clock, rates=fixed.rates(2, 0), stop_updates=updates)


# -- ACE and ACED ------------------------------------------------------------------------------------------------------
def test_ace_in_numbers() -> None:
    """ACE.2, ACE.3: T4, eta .1, x_0 = 0: after 4 and 12 arrivals."""
    log = run(Ace(step_size=0.1), T4, FILL + CYCLE * 3)
    close(log.models[3], [0.751])
    close(log.models[11], [1.083064], 1e-6)


@pytest.mark.parametrize(
    ("threshold", "mean"), [(0, 0.25), (2, 0.126544), (6, 0.5)], ids=["ACED.0T3", "ACED.2T3", "ACED.3T3"]
)
def test_the_bias_depends_on_the_threshold(threshold: int, mean: float) -> None:
    """ACED.0, ACED.2, ACED.3: T3, eta .05, mean of x over a cycle: the threshold must exceed the slowest client's age,
    else the bias is back; with 2 it is worse than without memory, since the slow client then counts in company only."""
    log = run(Ace(step_size=0.05, delay_threshold=threshold), T3, FILL + CYCLE * 150)
    close(np.mean(log.models[-4:]), mean, 1e-6)


def test_a_client_lost_before_it_was_heard() -> None:
    """The others do not wait for it, and the mean is over them."""
    clients = random_quadratics(7, 3)
    here = World(Ace(step_size=0.1), clients, np.ones(3))
    assert not any(here.arrival(i) for i in (0, 2))
    here.algorithm.on_client_lost(here.server, 1)
    assert here.arrival(0)
    close(here.server.x, 1 - 0.1 * (clients[0].gradient(np.ones(3)) + clients[2].gradient(np.ones(3))) / 2)


# -- AsyncCommSGD ------------------------------------------------------------------------------------------------------
def test_equal_pace_by_the_clock() -> None:
    """A local step takes 1 s, an exchange next to nothing: at all times both clients have taken as many steps as
    seconds passed, but for the contact under way, with fixed gaps 1 and 3 and with drawn ones."""
    speed = Speed(compute=1.0, exchange=1e-6)
    for draw, gap in (("fixed", 3), ("uniform", 7)):
        clock = VirtualClock(speed.contact_times(2, 0), speed.split_times(2, 0))
        log = run(AsyncCommSgd(step_size=0.01, gap=[1, gap], draw=draw), T3, clock=clock, stop_time=1500.5)
        taken = np.zeros(2)
        for row in log.updates:
            taken[row[1]] += row[4]
            assert abs(taken[row[1]] - row[0]) < 0.01  # the exchanges are in the time
        assert np.ptp(taken) <= gap
        if draw == "fixed":
            assert log.x[0] == pytest.approx(1 / 2, abs=0.01)


def test_gaps_are_drawn_equally_often_by_seed_client_and_contact() -> None:
    """Drawn from 1 to gap, each about as often, by (seed, client, contact) alone."""
    algorithm = AsyncCommSgd(gap=4)
    draws = np.array([[algorithm.steps(7, i, k) for k in range(2000)] for i in range(2)])
    for row in draws:
        counts = np.bincount(row, minlength=5)
        assert counts[0] == 0 and len(counts) == 5
        assert (np.abs(counts[1:] - 500) < 5 * np.sqrt(2000 * 0.25 * 0.75)).all()  # five standard deviations
    assert (draws[0] != draws[1]).any()
    assert [algorithm.steps(8, 0, k) for k in range(50)] != draws[0, :50].tolist()


# -- buffers, by time or with late updates -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options", [*({"rule": rule, "step_weights": "one"} for rule in RULES), {}, {"optimizer": Momentum()}]
)
def test_an_empty_buffer_changes_nothing(options: dict[str, Any]) -> None:
    """A timed aggregation without updates takes no step, not even one of the momentum."""
    kind: Any = AsyncFedAvg if "rule" in options else FedBuff
    log = run(kind(step_size=0.5, trigger=Trigger(period=0.4), **options), quadratics([1], [1]), [0] * 3)
    counts = np.diff([0, *(row[1] for row in log.aggregations)])
    assert (counts == 0).sum() >= 3
    moved = np.diff([0.0, *np.ravel(log.models)]) != 0
    assert not moved[counts == 0].any() and moved[counts > 0].any()


def test_a_timed_buffer_takes_the_mean_of_what_it_holds() -> None:
    """Of two updates each counts half."""
    log = run(FedBuff(step_size=0.5, trigger=Trigger(period=2.5)), quadratics([1, 1], [1, 3]), [0, 1, 0, 1, 0, 1])
    assert [row[1] for row in log.aggregations] == [2, 5]
    close(log.models[0], [(0.5 * 1 + 0.5 * 3) / 2])


def test_delays_make_steps_smaller() -> None:
    """FADAS.4, FADAS.5: eta = .1, tau_max = 20, tau_c = 8: printed .05, the code .005; no change up to tau_c, or
    without one."""
    for rule, at_9, at_20 in (("cap", 0.1, 0.05), ("scale", 0.1 / 9, 0.005)):  # cap: 0.1 is below 1/9
        algorithm = FedBuff(server_step=0.1, delay_threshold=8, delay_rule=rule)
        assert [algorithm.eta_g(tau) for tau in (0, 8, 9, 20)] == [0.1, 0.1, at_9, at_20]
    assert FedBuff(server_step=0.1).eta_g(10**6) == 0.1


# -- asynchronous SGD --------------------------------------------------------------------------------------------------
class CountsDiscarded(AsyncSgd):
    """Ringmaster, if discarded gradients made versions too."""

    def ready(self, server: Any) -> bool:
        if not server.applies:
            server.step = 0 * server.step
        return True


def test_discarded_gradients_make_no_version() -> None:
    """RM.3: R = 1, two clients in turn: of 200 gradients the 100 of client 0 are applied, none of client 1. RM.4: if
    discarded ones counted, all would be too late after the first step."""
    ringmaster: dict[str, Any] = {"step_size": 0.1, "step_rule": "ringmaster", "threshold": 1}
    log = run(AsyncSgd(**ringmaster), T3, FILL * 100)
    assert len(log.aggregations) == 100
    assert [row[1] for row in log.updates if row[3] < 1] == [0] * 100
    log = run(CountsDiscarded(**ringmaster), quadratics([1, 1], [1, 1]), FILL * 100)
    assert len(log.aggregations) == 200 and np.count_nonzero(np.diff([0.0, *np.ravel(log.models)])) == 1


@pytest.mark.parametrize(("rule", "accuracy"), [("rates", 1e-12), ("times", 1e-8), ("counts", 0.02)])
def test_rescaled_steps_are_inversely_proportional_to_the_update_rates(rule: str, accuracy: float) -> None:
    """Cycle 0,0,0,1: factors 1/(2 q_i) = 2/3 (RS.g0) and 2 (RS.g1), exactly by rates and by times once both are heard;
    by counts in the limit, so that the mean step is gamma."""
    log = in_cycles(AsyncSgd(step_size=0.001, rescale=rule), quadratics([1, 1], [1, 1]), 160)
    factors = np.diff([0.0, *np.ravel(log.models)]) / (0.001 * (1 - np.ravel(log.bases)))
    assert log.order[-4:] == CYCLE
    close(factors[-4:], [0.666667] * 3 + [2.0], accuracy + 1e-6)
    close(factors[-4:].mean(), 1, accuracy)


def test_rates_and_times_that_are_not_there() -> None:
    """A delay model without rates is refused; contacts that take no time are equally fast."""
    with pytest.raises(
        ConfigError, match=r"clock.delay and clock.availability give no rates; expected times or counts"
    ):
        AsyncSgd(rescale="rates").init_server(np.zeros(1), Clients(np.ones(2, int)))
    clock = VirtualClock(lambda i, k: 0.0)
    assert np.isfinite(run(AsyncSgd(step_size=0.1, rescale="times"), T4, clock=clock, stop_updates=400).x).all()


# -- Ringleader --------------------------------------------------------------------------------------------------------
def by_rounds(clients: list, order: list[int], step: float, x0: np.ndarray) -> tuple[list, list[int]]:
    """The models, and the delay of each gradient that entered a step's table, in steps since its model."""
    n, x, k = len(clients), x0, 0
    bases, G = [(x0, 0)] * n, [[] for _ in range(n)]
    later: list[list] = [[] for _ in range(n)]
    served: set[int] = set()
    models, delays = [], []
    for i in order:
        g = (clients[i].gradient(bases[i][0]), bases[i][1])
        if i in served:
            later[i].append(g)
            continue
        G[i].append(g)
        if not all(G):
            continue
        x = x - step / n * sum(np.mean([v for v, _ in own], axis=0) for own in G)
        delays += [k - then for own in G for _, then in own]
        k += 1
        models.append(x)
        bases[i] = (x, k)
        served.add(i)
        if len(served) == n:
            G, later, served = later, [[] for _ in range(n)], set()
    return models, delays


@pytest.mark.parametrize("seed", range(2))
def test_ringleader_by_hand(seed: int) -> None:
    """RL.1: random arrivals of four clients, some much faster than others; the delay is at most 2 n - 2."""
    clients = random_quadratics(seed, 4)
    order = np.random.default_rng(seed).choice(4, 120, p=[0.5, 0.3, 0.15, 0.05]).tolist()
    log = run(Ringleader(step_size=0.1), clients, order, x0=1.0)
    models, delays = by_rounds(clients, order, 0.1, np.ones(3))
    close(log.models, models, 1e-10)
    assert len(models) >= 8 and max(delays) <= 2 * 4 - 2


def test_ringleader_in_numbers() -> None:
    """RL.4, RL.5, RL.6: T4, seconds (1, 3), gamma .05: x_2 = .2, x_4 = .37, delay 2."""
    log = in_cycles(Ringleader(step_size=0.05), T4, 40)
    close(log.models[1], [0.2])
    close(log.models[3], [0.37])
    assert max(by_rounds(T4, log.order, 0.05, np.zeros(1))[1]) == 2


@pytest.mark.parametrize("before", [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 0], [0, 1, 2, 3, 0, 1]], ids=len)
def test_a_client_that_ringleader_loses(before: list[int]) -> None:
    """Lost in phase 1, or after some steps of phase 2: it is left out of n, a round that waited for it alone goes on,
    and the limit is that of the others."""
    clients = random_quadratics(10, 4)
    here = World(Ringleader(step_size=0.15), clients, np.ones(3))
    for i in before:
        here.arrival(i)
    here.algorithm.on_client_lost(here.server, 3)
    order = np.random.default_rng(len(before)).choice(3, 3000, p=[0.5, 0.3, 0.2]).tolist()
    assert sum(here.arrival(i) for i in order) > 500
    close(here.server.x, optimum(clients[:3]), 1e-9)


def test_a_client_that_was_rolled_back_is_sent_the_model() -> None:
    here: Any = World(Ringleader(step_size=0.1), random_quadratics(11, 3), np.ones(3))
    here.arrival(0)
    assert here.message(0).vectors == ()
    here.states[0] = here.algorithm.init_client(np.zeros(3), 0)
    here.algorithm.on_client_rollback(here.server, 0)
    (x,) = here.message(0).vectors
    assert np.array_equal(x, here.server.x)
