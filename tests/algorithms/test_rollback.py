"""Rollback of a client: its state is made consistent with the server, and the message after it resends what it lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms import find, names
from mpifl.algorithms.area import Area
from mpifl.algorithms.base import State
from mpifl.algorithms.common.local_solver import Gd
from mpifl.algorithms.common.splitting import AbsoluteAccuracy
from mpifl.algorithms.feddane import FedDANE
from mpifl.client.worker import Worker
from tests.algorithms.world import World, snapshot
from tests.quadratic_runs import close, optimum, random_quadratics
from tests.tiers import parameters

CLIENTS = random_quadratics(8, 4)
VICTIM = 1
EXACT: dict[str, Any] = {
    "solver": Gd(),
    "accuracy": AbsoluteAccuracy(M=1e-26),
    "alpha": 1.0,
    "eta": 0.4,
    "step_size": 0.2,
}
INCREMENTAL: dict[str, dict[str, Any]] = {
    "area": {"step_size": 0.2, "step_weights": "one"},
    "async-feddr": {**EXACT, "alpha": 0.5},
    "fedadmm": {"rho": 1.0, "eta": None, "step_size": 0.2, "local_steps": 3},
    "feddr": EXACT,
    "feddyn": {"alpha": 1.0, "step_size": 0.2, "local_steps": 3},
    "fedsplit": {k: v for k, v in EXACT.items() if k != "alpha"},
    "scaffold": {"step_size": 0.1, "local_steps": 3},
}


def contact(here: World, i: int) -> None:
    """One contact and its consequences: of a method with rounds, a round of one."""
    if here.algorithm.participation(here.clients, 0):
        here.round([i])
    else:
        here.arrival(i)


def corrected(here: World, kept: State, pending: Any, consumed: list[Any]) -> State:
    """The checkpoint's state on another rank: minus the update not consumed then, plus all consumed since."""
    there = Worker(here.algorithm, np.ones(3), {VICTIM: CLIENTS[VICTIM]})
    there.states[VICTIM] = kept
    sums = [sum(v[k] for v in consumed) for k, name in enumerate(here.algorithm.increment_of) if name]
    there.roll_back(VICTIM, sums if consumed else [], pending)
    return there.states[VICTIM]


def holds(here: World) -> None:
    """The method's invariant between the server and the clients as the server knows them."""
    states, s, n = here.received_states.values(), here.server, len(here.received_states)
    if isinstance(here.algorithm, Area):
        close(s.x + s.u / n, np.mean([c.y for c in states], axis=0))
    elif here.algorithm.increment_of == ("xhat",):
        close(s.xtilde, np.mean([c.xhat for c in states], axis=0))
        for c in states:
            close(c.xhat, 2 * c.x - c.y)
    elif here.algorithm.increment_of == ("z",):
        close(s.x, np.mean([c.z for c in states], axis=0))
        for c in states:
            close(c.z, c.w + c.lam / here.algorithm.rho)
    elif here.algorithm.increment_of == ("q",):
        close(s.h, -here.algorithm.alpha * np.mean([c.q for c in states], axis=0))
    else:
        close(s.c, np.mean([c.c for c in states], axis=0))


@pytest.mark.parametrize(
    ("fate", "since"),
    parameters(
        [("consumed", 0), ("consumed", 3), ("never consumed", 0), ("none", 0), ("none", 3)],
        [("consumed", 3), ("never consumed", 0)],
    ),
)
@pytest.mark.parametrize("name", INCREMENTAL)
def test_increments_after_a_rollback(name: str, fate: str, since: int) -> None:
    """A checkpoint of a client whose update is under way (or not), more of its updates consumed, its death while the
    next one is in flight: the vectors sent as increments are as of the last update consumed, the invariant
    holds, and the run ends at the optimum of all clients."""
    here, rng = World(find(name)(**INCREMENTAL[name]), CLIENTS, np.ones(3)), np.random.default_rng(1)
    rounds = here.algorithm.participation(here.clients, 0)
    for i in rng.permutation([0, 0, 1, 1, 2, 3, 3]).tolist():
        contact(here, i)
    pending = None
    if rounds and fate != "none":
        here.algorithm.begin_round(here.server, [VICTIM, 2])
    if fate != "none":
        pending = here.contact(VICTIM)
    kept, sums = snapshot(here.states[VICTIM]), []
    if fate == "consumed":
        if rounds:
            here.contact(2)
            here.receive(2)
        sums.append(here.receive(VICTIM).vectors)
        here.aggregate()
    for _ in range(since):
        contact(here, 0)
        if rounds:
            here.algorithm.begin_round(here.server, [VICTIM])
        here.contact(VICTIM)
        sums.append(here.receive(VICTIM).vectors)
        here.aggregate()
    if fate != "never consumed":
        if rounds:
            here.algorithm.begin_round(here.server, [VICTIM, 2])
        here.contact(VICTIM)  # never arrives
    here.in_flight.clear()
    state = corrected(here, kept, pending, sums)
    for name_ in filter(None, here.algorithm.increment_of):
        close(getattr(state, name_), getattr(here.received_states[VICTIM], name_))
    here.states[VICTIM] = here.received_states[VICTIM] = state
    holds(here)
    here.algorithm.on_client_rollback(here.server, VICTIM)
    if rounds:  # the round goes on with a fresh message
        if fate == "none" or since:
            here.contact(2)
        if 2 in here.in_flight:
            here.receive(2)
        here.contact(VICTIM)
        here.receive(VICTIM)
        here.aggregate()
    else:
        contact(here, VICTIM)
    holds(here)
    for k in range(1200):
        if rounds:
            here.round(range(4))
        else:
            contact(here, k % 4)
    close(here.server.x, optimum(CLIENTS), 1e-9)


def test_which_methods_send_increments() -> None:
    assert {name for name in names() if find(name).increment_of} == INCREMENTAL.keys()
    for name in INCREMENTAL:
        assert len(find(name).increment_of) == find(name).vectors_up


# -- phases, and methods that need nothing -----------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["feddane", "inexact-dane", "f-svrg", "mime"])
def test_rollback_between_two_phases(name: str) -> None:
    """It is sent x beside the mean gradient: with its first state it then answers as it would have, bit for bit."""
    more = {"momentum": 0.5} if name == "mime" else {}
    one, other = (World(find(name)(step_size=0.1, local_steps=3, **more), CLIENTS, np.ones(3)) for _ in range(2))
    for here in (one, other):
        for _ in range(5):  # the next phase is of solutions
            here.round(range(4))
        here.algorithm.begin_round(here.server, [0, 1, 2, 3])
    expected = one.contact(VICTIM)
    other.states[VICTIM] = other.algorithm.init_client(np.ones(3), VICTIM)
    other.algorithm.on_client_rollback(other.server, VICTIM)
    assert np.array_equal(other.contact(VICTIM).vectors[0], expected.vectors[0])
    assert len(other.message(VICTIM).vectors) == len(other.message(0).vectors) + 1
    assert len(other.message(VICTIM).vectors) <= other.algorithm.vectors_down


@pytest.mark.parametrize("name", ["feddane", "inexact-dane", "f-svrg", "mime"])
def test_rollback_after_its_gradient(name: str) -> None:
    """Its answer of the first phase stays in the mean; what it was sent then it has no more."""
    here = World(find(name)(step_size=0.1, local_steps=3), CLIENTS, np.ones(3))
    here.algorithm.begin_round(here.server, [0, 1, 2, 3])
    for i in (VICTIM, 0):
        here.contact(i)
        here.receive(i)
    here.states[VICTIM] = here.algorithm.init_client(np.zeros(3), VICTIM)
    here.algorithm.on_client_rollback(here.server, VICTIM)
    for i in (2, 3):
        here.contact(i)
        here.receive(i)
    here.aggregate()
    here.algorithm.begin_round(here.server, [0, 1, 2, 3])
    assert [len(here.message(i).vectors) for i in range(4)] == [1, 2, 1, 1]


def test_pipelined_memory_of_a_first_state() -> None:
    """A client that has no gradient to remember takes no correction, whenever that is."""
    here = World(FedDANE(step_size=0.1, local_steps=3, variant="pipelined-memory", mu=0.5), CLIENTS, np.ones(3))
    for _ in range(4):
        here.round(range(4))
    here.states[VICTIM] = here.algorithm.init_client(np.ones(3), VICTIM)
    update = here.contact(VICTIM)
    y = x = here.server.x
    for _ in range(3):
        y = y - 0.1 * (CLIENTS[VICTIM].gradient(y) + 0.5 * (y - x))
    close(update.vectors[0], y)
