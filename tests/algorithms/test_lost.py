"""Lost clients: rounds that lose a member, and the limits of runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.ace import Ace
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import Clients
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.mifa import Mifa
from mpifl.algorithms.participation import Trigger
from tests.algorithms import test_state
from tests.algorithms.test_state import CASES, LONG, N, build
from tests.algorithms.world import World
from tests.quadratic_runs import close, optimum, random_quadratics
from tests.tiers import parameters

# -- a member drops out ------------------------------------------------------------------------------------------------
ROUNDS = [case for case in CASES if build(case).participation(Clients(np.ones(N, int)), 0)]
ROUNDS = [case for case in ROUNDS if "drop_percent" not in case]  # drawn among a round's members
PHASED = ("feddane", "inexact-dane", "f-svrg", "mime")
MEMBERS, LOST = [0, 1, 2, 2, 4], 1  # one drawn twice, one not at all


def world(case: str) -> World:
    x0, objectives = test_state.clients("float64")
    return World(build(case), list(objectives.values()), x0, samples=[1, 2, 3, 4, 5])


@pytest.mark.parametrize("after", [0, 2, 3], ids=["before", "between", "after"])
@pytest.mark.parametrize("case", parameters(ROUNDS, set(ROUNDS) - LONG))
def test_a_round_is_that_of_the_members_who_answered(case: str, after: int) -> None:
    """Some rounds of all, one of a few of whom one drops out before, between or after the others' answers: the server
    is where it would be had the round been begun without it, to rounding; so it is after one more of all the others."""
    full = [0, 1, 2, 3, 4]
    for first in (2, 3):  # of two phases, in the first or in the second
        one, other = world(case), world(case)
        for here, members in ((one, MEMBERS), (other, [i for i in MEMBERS if i != LOST])):
            for _ in range(first):
                here.round(full)
            here.round(members, *((LOST, after) if here is one else ()))
        compare(one, other)
        for here in (one, other):
            here.round([0, 2, 3, 4])
        compare(one, other)


def compare(one: World, other: World) -> None:
    for name, v in vars(one.server).items():
        if isinstance(v, np.ndarray):
            close(v, vars(other.server)[name], 2e-14)
    assert one.server.x.any()


def test_the_last_member_that_drops_out_leaves_nothing() -> None:
    """Nobody has answered; the round begins again with others."""
    one, other = world("fedavg-local_steps=3"), world("fedavg-local_steps=3")
    one.algorithm.begin_round(one.server, [0, 3])
    for i in (0, 3):
        one.algorithm.on_client_lost(one.server, i)
    assert one.server.weights == {}
    for here in (one, other):
        here.round([1, 2])
    compare(one, other)


def test_the_second_phase_does_not_count_on_who_was_lost_in_the_first() -> None:
    """Who dropped out of the phase of gradients is sent the model with their mean, should it ever be a member again."""
    for name in PHASED:
        here = world(f"{name}-local_steps=3")
        here.round([0, 1, 2], lost=1)
        here.algorithm.begin_round(here.server, [0, 1, 2])
        sent = {i: here.message(i).vectors for i in range(3)}
        assert [len(v) for v in sent.values()] == [1, 2, 1], name
        assert np.array_equal(sent[1][0], here.server.x) and np.array_equal(sent[1][1], sent[0][0])


# -- where a run ends without those that are lost ----------------------------------------------------------------------
STEP, LEFT, GONE = 0.1, [0, 2, 3], [1, 4]
CLIENTS = random_quadratics(3, 5)
EYE = np.eye(3)


def frozen(algorithm: Any, rounds: int) -> tuple[World, dict[int, np.ndarray]]:
    """Seven rounds of all clients, then of those that are left; what a table had then of the others, over the step."""
    here, order, held = World(algorithm, CLIENTS, np.ones(3)), [*range(5)], {}
    for r in range(rounds):
        if r == 7:
            order = LEFT
            for i in GONE:
                if "table" in vars(here.server):
                    held[i] = here.server.table[i] / algorithm.step_size
                algorithm.forget_client(here.server, i)
        if algorithm.participation(here.clients, 0):
            here.round(order)
            continue
        for i in order:
            here.arrival(i)
    return here, held


@pytest.mark.parametrize("M", [1, 3])
def test_area_keeps_the_memories_of_the_lost(M: int) -> None:
    """LOST.1: AREA: (n I - sum_left (I - alpha A_i)^M) x = sum_left (I - (I - alpha A_i)^M) c_i + sum_lost y_i; for M =
    1 x is the minimiser of sum_left f_i + sum_lost ||x - y_i||^2/(2 alpha), and not of sum_left f_i."""
    here, _ = frozen(Area(step_size=STEP, step_weights="one", local_steps=M), 900)
    y = sum(here.states[i].y for i in GONE)
    powers = {i: np.linalg.matrix_power(EYE - STEP * CLIENTS[i].matrix, M) for i in LEFT}
    left = 5 * EYE - sum(powers.values())
    close(here.server.x, np.linalg.solve(left, sum((EYE - powers[i]) @ CLIENTS[i].c for i in LEFT) + y), 1e-11)
    if M == 1:
        close(sum(CLIENTS[i].gradient(here.server.x) for i in LEFT) + (2 * here.server.x - y) / STEP, 0, 1e-10)
    assert np.abs(here.server.x - optimum([CLIENTS[i] for i in LEFT])).max() > 0.01


@pytest.mark.parametrize("lost", ["keep", "drop"])
@pytest.mark.parametrize("method", ["mifa", "ace", "ca2fl"])
def test_tables_keep_or_drop_who_is_lost(method: str, lost: str) -> None:
    """Quadratics, one gradient a contact: keep, sum_left grad f_i(x) + sum_lost grad f_i(where last heard) = 0; drop,
    the minimiser of sum_left f_i."""
    algorithm = {
        "mifa": Mifa(step_size=0.02, lost=lost),
        "ace": Ace(step_size=0.02, lost=lost),
        "ca2fl": FedBuff(step_size=0.02, calibrate=True, trigger=Trigger(every=1), lost=lost),
    }[method]
    here, held = frozen(algorithm, 2500)
    x = here.server.x
    gone = sum(held.values()) if lost == "keep" else 0
    close(sum(CLIENTS[i].gradient(x) for i in LEFT) + gone, 0, 1e-9)
    assert np.abs(sum(held.values())).max() > 0.1
