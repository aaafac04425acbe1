"""Corrections of client drift, SCAFFOLD's, FedGATE's and VRL-SGD's: their sum, limits, and clients that go back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.base import Algorithm
from mpifl.algorithms.fedgate import FedGate
from mpifl.algorithms.vrl_sgd import VrlSgd
from mpifl.client.worker import Worker
from tests.algorithms.test_rollback import CLIENTS, VICTIM
from tests.algorithms.world import World, snapshot
from tests.quadratic_runs import Log, close, optimum, random_quadratics, run


# -- the sum, and limits with momentum ---------------------------------------------------------------------------------
@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedGate, {"server_step": 0.6}),
        (FedGate, {"server_step": 0.6, "levels": 1}),
        (FedGate, {"server_step": 0.6, "levels": 5}),
        (VrlSgd, {}),
        (VrlSgd, {"warm_up": True}),
    ],
    ids=str,
)
def test_corrections_sum_to_0_in_every_round(kind: type[Algorithm], options: dict[str, Any], weights: str) -> None:
    """FEDGATE.1, VRLSGD.1: the sum is weighted as the mean is, whatever gamma and quantiser."""
    clients = random_quadratics(1, 4)
    p = np.array([o.share for o in clients]) if weights == "samples" else np.full(4, 0.25)
    largest = []

    def watch(log: Log) -> None:
        assert log.worker and log.link
        if len(log.link.in_flight) == 4:  # all have begun the round
            deltas = np.array([log.worker.states[i].delta for i in range(4)])
            close(p @ deltas, np.zeros(3))
            largest.append(np.abs(deltas).max())

    algorithm = kind(step_size=0.05, local_steps=4, weights=weights, **options)  # type: ignore[call-arg]
    run(algorithm, clients, [0, 1, 2, 3] * 40, x0=1.0, watch=watch)
    assert len(largest) >= 39 and max(largest) > 0.5


# -- a client goes back to an earlier state ----------------------------------------------------------------------------
every_method = pytest.mark.parametrize(
    "algorithm",
    [FedGate(step_size=0.05, local_steps=4, server_step=0.7), VrlSgd(step_size=0.05, local_steps=4),
     VrlSgd(step_size=0.05, local_steps=4, warm_up=True)],
    ids=["fedgate", "vrl-sgd", "vrl-sgd-w"],
)  # fmt: skip


def delta_sum(here: World, n: int = 4) -> np.ndarray:
    """sum delta_i as the next round's messages make it."""
    here.algorithm.begin_round(here.server, list(range(n)))
    for i in range(n):
        here.contact(i)
    found = sum(here.states[i].delta for i in range(n))
    for i in range(n):
        here.receive(i)
    here.aggregate()
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("age", [1, 5])
@every_method
def test_delta_starts_again(algorithm: Algorithm, age: int) -> None:
    """A client of an older state in the middle of a round: from the next round on the sum of the delta_i is 0 again,
    and the limit is the optimum of all clients. Without `on_client_rollback` sum and limit stay wrong."""
    for told in (True, False):
        here, kept = World(algorithm, CLIENTS, np.ones(3)), []
        for _ in range(9):
            kept.append(snapshot(here.states[VICTIM]))
            close(delta_sum(here), 0)
        here.algorithm.begin_round(here.server, list(range(4)))
        for i in (0, 1, 2):
            here.contact(i)
        here.receive(0)
        here.states[VICTIM] = kept[-age]
        if told:
            here.algorithm.on_client_rollback(here.server, VICTIM)
        here.contact(VICTIM)
        here.contact(3)
        for i in (2, VICTIM, 3):
            here.receive(i)
        here.aggregate()
        sums = [delta_sum(here) for _ in range(600)]
        away = np.abs(here.server.x - optimum(CLIENTS)).max()
        if told:
            close(sums, 0)
            assert here.server.resets == 1 and away < 1e-11
        else:
            assert np.abs(sums[-1]).max() > 1e-4 < away


@pytest.mark.parametrize("kept_at", [0, 3, 6])
@every_method
def test_delta_is_0_in_the_round_of_a_move(algorithm: Algorithm, kept_at: int) -> None:
    """A client that moves in the middle of a round is sent that round's message: it takes plain gradient steps from x,
    whatever state it goes on from. With the next round all delta_i are 0, and then their sum."""
    here = World(algorithm, CLIENTS, np.ones(3))
    for r in range(7):
        if r == kept_at:  # 0: its first state
            kept = snapshot(here.states[VICTIM])
        close(delta_sum(here), 0)
    here.algorithm.begin_round(here.server, list(range(4)))
    for i in range(4):
        here.contact(i)
    here.receive(0)
    there = Worker(algorithm, np.ones(3), {VICTIM: CLIENTS[VICTIM]})
    there.states[VICTIM] = kept
    there.roll_back(VICTIM, [], None)
    here.states[VICTIM] = there.states[VICTIM]
    here.algorithm.on_client_rollback(here.server, VICTIM)
    x, (sent,) = here.server.x, here.contact(VICTIM).vectors
    y = CLIENTS[VICTIM].steps(x, 0.05, 4)
    close(sent, x - y if isinstance(algorithm, FedGate) else y)
    for i in (2, VICTIM, 3):
        here.receive(i)
    here.aggregate()
    here.algorithm.begin_round(here.server, list(range(4)))
    for i in range(4):
        here.contact(i)
        assert not here.states[i].delta.any() and here.states[i].resets == 1
        here.receive(i)
    here.aggregate()
    close([delta_sum(here) for _ in range(5)], 0)
    assert all(here.states[i].delta.any() for i in range(4))


def test_a_second_restart_reaches_states_from_before_the_first() -> None:
    here = World(FedGate(step_size=0.05, local_steps=4), CLIENTS, np.ones(3))
    kept = snapshot(here.states[VICTIM])
    for _ in range(2):
        for _ in range(4):
            delta_sum(here)
        here.states[VICTIM] = kept
        here.algorithm.on_client_rollback(here.server, VICTIM)
        delta_sum(here)
    close([delta_sum(here) for _ in range(5)], 0)
    assert here.server.resets == 2
