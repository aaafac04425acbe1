"""asyncFedDR: its invariant, its limits without any bias to fast clients, and the step sizes of its theorem."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from mpifl.algorithms.async_feddr import AsyncFedDR, delay_constant, largest_alpha, largest_eta
from mpifl.algorithms.base import Clients
from mpifl.algorithms.common.proximal import L1, Box, NoRegulariser
from tests.algorithms.test_feddr import X0, by_formula, exact, prox
from tests.quadratic_runs import Log, Picked, close, optimum, random_quadratics, run
from tests.tiers import long

ORDER = np.random.default_rng(1).choice(4, 4000, p=[0.5, 0.25, 0.2, 0.05]).tolist()


def asynchronous(eta: float = 0.3, *ends: float, **more: Any) -> AsyncFedDR:
    return exact(eta, *ends, kind=AsyncFedDR, **{"alpha": 0.5, **more})


def test_without_delay_it_is_feddr_with_one_client_a_round() -> None:
    """ASYNCDR.1: No delay, each client sent the newest xbar: FedDR with one client a round, bit for bit, and by
    formula."""
    clients, order = random_quadratics(1, 4), ORDER[:60]
    fed = exact(0.3, alpha=1.2, regulariser=L1(tau=0.1))
    log = run(fed, clients, rounds=[[i] for i in order], x0=X0)
    algorithm = asynchronous(alpha=1.2, regulariser=L1(tau=0.1))
    server = algorithm.init_server(X0, Clients(np.ones(4, int)))
    states = [algorithm.init_client(X0, i) for i in range(4)]
    for i, model in zip(order, log.models, strict=True):
        algorithm.receive(server, i, algorithm.train(states[i], algorithm.message(server, i), clients[i]), 0)
        algorithm.aggregate(server)
        assert (algorithm.model(server) == model).all()

    def soft(v: np.ndarray) -> np.ndarray:
        return np.sign(v) * np.maximum(np.abs(v) - 0.03, 0)

    close(log.models, by_formula(clients, [[i] for i in order], 1.2, 0.3, prox_g=soft))


@pytest.mark.parametrize("g", [NoRegulariser(), Box(low=-0.2, high=0.3)], ids=lambda g: g.name)
def test_xtilde_is_the_mean_of_xhat(g: Any) -> None:
    """ASYNCDR.2: xtilde = mean xhat_i after every arrival, xhat_i that of client i's last upload, in any order."""
    clients, seen = random_quadratics(3, 4), []
    known = [X0] * 4

    def watch(log: Log) -> None:
        assert log.worker
        if len(log.consumed) > len(seen):
            i, update = log.consumed[-1]
            known[i] = known[i] + update.vectors[0]
            close(known[i], log.worker.states[i].xhat)
            seen.append(i)
        close(log.server.xtilde, np.mean(known, axis=0))

    run(asynchronous(regulariser=g), clients, clock=Picked(ORDER[:300]), watch=watch, x0=X0, stop_updates=300)
    assert len(seen) == 300


def test_messages_are_stale_and_answers_are_not() -> None:
    """A sender is answered with the xbar that its own update has entered; the others' messages grow old."""
    log = run(asynchronous(), random_quadratics(4, 4), ORDER[:200], x0=X0)
    staleness = [k - update.version for k, (_, update) in enumerate(log.consumed)]
    assert max(staleness) > 8
    assert len(log.models) == 200
    for k, (i, message) in enumerate(log.sent[4:]):
        assert i == ORDER[k] and message.version == k + 1
        assert (message.vectors[0] == log.models[k]).all()


@pytest.mark.parametrize("g", [long(NoRegulariser()), L1(tau=0.2)], ids=lambda g: g.name)
def test_unequal_rates_do_not_move_the_limit(g: Any) -> None:
    """ASYNCDR.3: Client 0 arrives ten times as often as client 3, and all messages are stale: the exact minimiser all
    the same."""
    clients = random_quadratics(5, 4, low=1.0)
    log = run(asynchronous(0.3, 1.0, 3.0, regulariser=g), clients, ORDER, x0=X0)
    slope = np.mean([o.gradient(log.x) for o in clients], axis=0)
    close(log.x, g.prox(log.x - 0.5 * slope, 0.5))
    if g.name == "none":
        close(log.x, optimum(clients))
        assert log.worker
        for i, state in log.worker.states.items():
            close(state.x, log.x)
            close(prox(clients[i], state.y, 0.3), log.x)


def test_weights() -> None:
    """p_i = s_i/S at the server alone: the minimiser of the weighted sum."""
    clients = random_quadratics(6, 4, low=1.0)
    log = run(asynchronous(0.3, 1.0, 3.0, weights="samples"), clients, ORDER, x0=X0)
    close(log.x, optimum(clients, [o.samples for o in clients]))


# -- steps -------------------------------------------------------------------------------------------------------------
CASES = [(0.5, 2.0, 1, 8), (0.9, 1.0, 2, 8), (0.5, 2.0, 4, 8), (0.7, 0.5, 10, 20), (0.3, 3.0, 30, 10)]


def rho(eta: float, alpha: float, L: float, c: float) -> float:
    """What (9) wants positive, as printed."""
    return 2 * (1 - alpha) - (2 + alpha) * L**2 * eta**2 - L * alpha * eta - alpha * (1 + eta**2 * L**2) * c


@pytest.mark.parametrize(("alpha", "L", "tau", "n"), CASES)
def test_the_largest_eta_is_the_root_of_9(alpha: float, L: float, tau: int, n: int) -> None:
    """ASYNCDR.4: The largest eta is the positive root of (9), found by SciPy; c = (2 tau^2 - n)/n^2, 0 where that is
    negative."""
    c = max(0.0, (2 * tau**2 - n) / n**2)
    assert delay_constant(tau, n) == c
    assert largest_alpha(tau, n) == 2 / (2 + c)
    root = brentq(rho, 0, 10 / L, (alpha, L, c), xtol=1e-15) if rho(0, alpha, L, c) > 0 else 0.0
    close(largest_eta(alpha, L, tau, n), root)
    if not c:  # (8)
        close(root, (np.sqrt(16 - 8 * alpha - 7 * alpha**2) - alpha) / (2 * L * (2 + alpha)))
    assert (root > 0) == (alpha < 2 / (2 + c))


@pytest.mark.parametrize(("alpha", "L", "tau", "n"), [case for case in CASES if 2 * case[2] ** 2 > case[3]][:2])
def test_the_printed_closed_form_is_no_root_of_9(alpha: float, L: float, tau: int, n: int) -> None:
    """ASYNCDR.5: The closed form with 7 + 4c + 4c^2 is not the root of (9); with 7 + 12c + 4c^2 it is."""
    c = delay_constant(tau, n)
    for coefficient, is_root in ((7 + 4 * c + 4 * c**2, False), (7 + 12 * c + 4 * c**2, True)):
        eta = (np.sqrt(16 - 8 * alpha - coefficient * alpha**2) - alpha) / (2 * L * (2 + (1 + c) * alpha))
        assert (abs(rho(eta, alpha, L, c)) < 1e-12) == is_root
