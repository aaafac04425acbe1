"""SCAFFOLD, FedGATE and FedCOMGATE, VRL-SGD, ProxSkip: their corrections of client drift, and clients that go back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.base import Algorithm
from mpifl.algorithms.common.local_solver import Sgd
from mpifl.algorithms.fedgate import FedGate, quantise
from mpifl.algorithms.proxskip import ProxSkip
from mpifl.algorithms.scaffold import Scaffold
from mpifl.algorithms.vrl_sgd import VrlSgd
from mpifl.client.worker import Worker
from mpifl.rng import stream
from tests.algorithms.test_rollback import CLIENTS, VICTIM
from tests.algorithms.world import Passes, World, in_rounds, snapshot
from tests.quadratic_runs import Log, Quadratic, close, optimum, quadratics, random_quadratics, run

# -- SCAFFOLD ----------------------------------------------------------------------------------------------------------
TWICE = {"cohort": 3, "sampling": "samples"}
WEIGHTED = {**TWICE, "weights": "samples"}
HALF = {"cohort": 2, "server_step": 0.5}


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize(
    "more", [{}, {"cohort": 2}, {"server_step": 0.5}, HALF, TWICE, {**TWICE, "weights": "samples"}], ids=str
)
def test_scaffold_by_hand(option: Any, more: dict[str, Any]) -> None:
    """SCAFFOLD.4: Both options, all clients or some, any eta_g. A client that is drawn twice counts twice in the mean
    of dy and once in c, which stays the mean of the c_i. (The limits are in `table.py`.)"""
    clients = random_quadratics(12, 4)
    log, drawn = in_rounds(Scaffold(step_size=0.05, local_steps=3, option=option, **more), clients, 30, x0=1.0)
    assert (sum(len({*m}) < len(m) for m in drawn) > 5) == ("sampling" in more)
    w = np.array([o.samples if "weights" in more else 1 for o in clients])
    x, c, ci = np.ones(3), np.zeros(3), np.zeros((4, 3))
    for model, members in zip(log.models, drawn, strict=True):
        dy, new = {}, ci.copy()
        for i in {*members}:
            y, seen = x, []
            for _ in range(3):
                seen.append(clients[i].gradient(y))
                y = y - 0.05 * (seen[-1] - ci[i] + c)
            dy[i], new[i] = y - x, seen[0] if option == "I" else np.mean(seen, axis=0)
        x = x + more.get("server_step", 1.0) * np.average([dy[i] for i in members], axis=0, weights=w[members])
        ci, c = new, np.average(new, axis=0, weights=w)
        close(model, x)
    close(log.server.c, c)


@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize(
    "more", [{"step_weights": "relative"}, {"local_epochs": 2}, {"local_epochs": 2, "step_weights": "samples"}], ids=str
)
def test_c_i_is_the_mean_of_the_local_gradients(more: dict, beta: float) -> None:
    """Option II: c_i+ is the mean of the gradients along the way, for any step and number of steps of client i.

    With momentum gradient j of Q is in the velocities of the Q - j + 1 steps from its own on, and weighs
    1 + beta + ... + beta^(Q-j)."""
    samples = [2, 3, 7]
    clients = [Passes(o.a, o.c, s, s / 12, 3) for o, s in zip(random_quadratics(11, 3), samples, strict=True)]
    log = run(Scaffold(step_size=0.05, local_steps=4, solver=Sgd(momentum=beta), **more), clients, [0, 1, 2] * 6)
    factors = {"relative": [0.5, 0.75, 1.75], "samples": [1 / 6, 1 / 4, 7 / 12]}.get(more.get("step_weights"), [1] * 3)
    counts = [2 * s for s in samples] if "local_epochs" in more else [4, 4, 4]
    x, c, ci = np.zeros(3), np.zeros(3), np.zeros((3, 3))
    for round in range(6):
        dys, dcs = [], []
        for i, o in enumerate(clients):
            y, v, seen = x, np.zeros(3), []
            for j in range(counts[i]):
                seen.append(o.matrix @ (y - o.c) + (-1) ** (j % o.samples) / (1 + j % o.samples))
                v = beta * v + seen[-1] - ci[i] + c
                y = y - 0.05 * factors[i] * v
            shares = [sum(beta**m for m in range(counts[i] - j)) for j in range(counts[i])]
            dys.append(y - x)
            dcs.append(np.average(seen, axis=0, weights=shares) - ci[i])
            j, update = log.consumed[3 * round + i]
            assert (j, update.local_steps) == (i, counts[i])
            close(update.vectors, (dys[i], dcs[i]))
        x, c, ci = x + np.mean(dys, 0), c + np.mean(dcs, 0), ci + dcs
        close(log.models[round], x)


# -- FedGATE and VRL-SGD -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "algorithm",
    [*(FedGate(step_size=0.05, local_steps=5, server_step=gamma) for gamma in (1.0, 0.7, 1.3)),
     *(VrlSgd(step_size=0.05, local_steps=5, warm_up=warm_up) for warm_up in (False, True))],
    ids=["fedgate", "fedgate-0.7", "fedgate-1.3", "vrl-sgd", "vrl-sgd-w"],
)  # fmt: skip
def test_delta_by_hand(algorithm: Any) -> None:
    """With Dbar sent in clear: what the client finds from two server models is the same. With warm-up the first period
    is a step of gradient descent, and sets delta_i = g_i - mean g at x_0."""
    clients, warm_up = random_quadratics(2, 4), getattr(algorithm, "warm_up", False)
    log = run(algorithm, clients, [2, 0, 3, 1] * 40, x0=1.0)
    x, delta = np.ones(3), np.zeros((4, 3))
    for round, model in enumerate(log.models):
        w, steps = np.tile(x, (4, 1)), 1 if warm_up and not round else 5
        for i, client in enumerate(clients):
            for _ in range(steps):
                w[i] = w[i] - 0.05 * (client.gradient(w[i]) - delta[i])
        mean = w.mean(0)
        delta += (mean - w) / (0.05 * steps)
        x = x + getattr(algorithm, "server_step", 1.0) * (mean - x)
        close(model, x)
    assert [row[4] for row in log.updates[:8]] == [1 if warm_up else 5] * 4 + [5] * 4


@pytest.mark.parametrize("levels", [1, 4, 100])
def test_the_quantiser_is_unbiased_and_rounds_to_a_neighbouring_level(levels: int) -> None:
    """Multiples of max|v|/levels, next to v, and equal to v in the mean over the draws."""
    v = np.array([0.3, -1.7, 0.0, 0.05, 1.1])
    unit = 1.7 / levels
    draws = np.array([quantise(v, levels, stream(0, "test", round=r)) for r in range(4000)])
    close(draws / unit, np.round(draws / unit), 1e-9)  # the quotient rounds
    assert (np.abs(draws - v) < unit * (1 + 1e-9)).all()
    # each entry's variance is at most unit^2/4, so 5 standard errors of the mean are 2.5 unit/sqrt(4000)
    assert (np.abs(draws.mean(0) - v) < 2.5 * unit / 4000**0.5).all()
    assert (draws[:, 1] == draws[0, 1]).all()  # the largest is on a level
    close(quantise(0 * v, levels, stream(0, "test")), 0 * v)


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


# -- ProxSkip ----------------------------------------------------------------------------------------------------------
def by_coins(clients: Sequence[Quadratic], gamma: float, p: float, k: Sequence[int], x0: Any) -> list[np.ndarray]:
    """As printed, coin by coin: the models after each communication."""
    n = len(clients)
    x, h = [np.array(x0, float)] * n, [0 * np.array(x0, float)] * n
    models = []
    for count in k:
        for step in range(count):
            x = [x[i] - gamma * (clients[i].gradient(x[i]) - h[i]) for i in range(n)]
            if step == count - 1:
                mean = sum(x) / n
                h = [h[i] + p / gamma * (mean - x[i]) for i in range(n)]
                x = [mean] * n
        models.append(x[0])
    return models


def test_rule_by_coins() -> None:
    """In three dimensions, with the coins of the run's seed. SKIP.4, SKIP.5: the rule as printed in numbers, on T1,
    gamma .1, p .25, k = 3, 1, 6, 4: after the first and the fourth communication."""
    first, _, _, fourth = by_coins(quadratics([1, 10], [1, -1]), 0.1, 0.25, [3, 1, 6, 4], [0.0])
    close([*first, *fourth], [-0.3645, -0.849313], 1e-6)
    clients = random_quadratics(1, 4)
    log = run(ProxSkip(step_size=0.2, probability=0.3), clients, [0, 1, 2, 3] * 12, x0=1.0, seed=7)
    steps = np.reshape([row[4] for row in log.updates], (12, 4))
    assert (np.ptp(steps, axis=1) == 0).all() and len({*steps[:, 0]}) > 3  # one coin for all clients
    close(log.models, by_coins(clients, 0.2, 0.3, steps[:, 0].tolist(), np.ones(3)), 1e-10)
    assert [m.work for i, m in log.sent if i == 0][:12] == steps[:, 0].tolist()


# -- a client goes back to an earlier state ----------------------------------------------------------------------------
def delta_sum(here: World) -> np.ndarray:
    """sum delta_i as the next round's messages make it."""
    here.algorithm.begin_round(here.server, list(range(4)))
    for i in range(4):
        here.contact(i)
    found = sum(here.states[i].delta for i in range(4))
    for i in range(4):
        here.receive(i)
    here.aggregate()
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("rolled_back", [True, False])
@pytest.mark.parametrize("kept_at", [0, 3, 6])
@pytest.mark.parametrize(
    "algorithm",
    [FedGate(step_size=0.05, local_steps=4, server_step=0.7), VrlSgd(step_size=0.05, local_steps=4),
     VrlSgd(step_size=0.05, local_steps=4, warm_up=True), ProxSkip(step_size=0.05, period=4)],
    ids=["fedgate", "vrl-sgd", "vrl-sgd-w", "proxskip"],
)  # fmt: skip
def test_delta_starts_again_after_a_move(algorithm: Algorithm, kept_at: int, rolled_back: bool) -> None:
    """A client goes on from an older state in the middle of a round: with the next round all delta_i are 0, and then
    their sum; the limit is the optimum of all clients. So it is a second time, from a state before the first. Rolled
    back as a rank does it, it takes plain gradient steps from the round's x, whatever state it goes on from."""
    here = World(algorithm, CLIENTS, np.ones(3))
    for r in range(7):
        if r == kept_at:  # 0: its first state
            kept = snapshot(here.states[VICTIM])
        close(delta_sum(here), 0)
    for resets in (1, 2):
        here.algorithm.begin_round(here.server, list(range(4)))
        for i in range(4):
            here.contact(i)
        here.receive(0)
        there = Worker(algorithm, np.ones(3), {VICTIM: CLIENTS[VICTIM]})
        there.states[VICTIM] = snapshot(kept)
        if rolled_back:
            there.roll_back(VICTIM, [], None)
        here.states[VICTIM] = there.states[VICTIM]
        here.algorithm.on_client_rollback(here.server, VICTIM)
        x, (sent,) = here.server.x, here.contact(VICTIM).vectors
        y = CLIENTS[VICTIM].steps(x, 0.05, 4)
        if rolled_back:
            close(sent, x - y if isinstance(algorithm, FedGate) else y)
        for i in (2, VICTIM, 3):
            here.receive(i)
        here.aggregate()
        here.algorithm.begin_round(here.server, list(range(4)))
        for i in range(4):
            here.contact(i)
            assert not here.states[i].delta.any() and here.states[i].resets == resets == here.server.resets
            here.receive(i)
        here.aggregate()
        close([delta_sum(here) for _ in range(5)], 0)
        assert all(here.states[i].delta.any() for i in range(4))
    close([delta_sum(here) for _ in range(600)], 0)
    close(here.server.x, optimum(CLIENTS), 1e-11)
