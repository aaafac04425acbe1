"""SCAFFOLD: its control variates, its limits, and how it relates to FedAvg, FedGATE and VRL-SGD."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.common.local_solver import Sgd
from mpifl.algorithms.scaffold import Scaffold
from tests.algorithms.world import Passes, in_rounds
from tests.quadratic_runs import close, optimum, random_quadratics, run


@pytest.mark.parametrize("server_step", [1.0, 0.5])
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("cohort", [2, 4])
def test_rounds_by_hand(option: str, cohort: int, server_step: float) -> None:
    """SCAFFOLD.4: Both options, all clients or some, any eta_g: by hand, iterate by iterate, and the optimum in the
    end."""
    clients = random_quadratics(4, 4, low=1.5)
    eta, steps, rounds = 0.05, 5, 400
    algorithm = Scaffold(step_size=eta, local_steps=steps, cohort=cohort, option=option, server_step=server_step)
    log, drawn = in_rounds(algorithm, clients, rounds, x0=1.0)
    x, c, ci = np.ones(3), np.zeros(3), np.zeros((4, 3))
    for model, members in zip(log.models[:30], drawn[:30], strict=True):
        dx, dc = np.zeros(3), np.zeros(3)
        for i in members:
            y = x
            for _ in range(steps):
                y = y - eta * (clients[i].gradient(y) - ci[i] + c)
            new = clients[i].gradient(x) if option == "I" else ci[i] - c + (x - y) / (steps * eta)
            dx, dc, ci[i] = dx + (y - x) / len(members), dc + (new - ci[i]) / len(members), new
        x, c = x + server_step * dx, c + len(members) / 4 * dc
        close(model, x)
    close(log.x, optimum(clients))


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


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_a_client_drawn_twice(weights: str) -> None:
    """It counts twice in the mean of dy and once in c, which stays the mean of the c_i."""
    clients = random_quadratics(12, 4)
    samples = np.array([o.samples for o in clients])
    p = samples / samples.sum() if weights == "samples" else np.full(4, 0.25)
    algorithm = Scaffold(step_size=0.05, local_steps=3, cohort=3, sampling="samples", weights=weights)
    log, drawn = in_rounds(algorithm, clients, 30)
    assert sum(len(set(m)) < 3 for m in drawn) > 5
    x, c, ci = np.zeros(3), np.zeros(3), np.zeros((4, 3))
    for model, members in zip(log.models, drawn, strict=True):
        ends, dc = {}, np.zeros((4, 3))
        for i in set(members):
            y, seen = x, []
            for _ in range(3):
                seen.append(clients[i].gradient(y))
                y = y - 0.05 * (seen[-1] - ci[i] + c)
            ends[i], dc[i] = y, np.mean(seen, axis=0) - ci[i]
        x = np.average([ends[i] for i in members], axis=0, weights=samples[members] if weights == "samples" else None)
        ci = ci + dc
        c = p @ ci
        close(model, x)
    close(log.server.c, c)
