"""asyncFedDR: its invariant, its limits without any bias to fast clients, and the step sizes of its theorem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from mpifl.algorithms.async_feddr import AsyncFedDR, delay_constant, largest_alpha, largest_eta
from mpifl.algorithms.base import Clients
from mpifl.algorithms.common.proximal import L1, Box, NoRegulariser
from mpifl.algorithms.participation import Reply
from tests.algorithms.test_feddr import X0, by_formula, exact, prox
from tests.quadratic_runs import Log, Picked, close, optimum, quadratics, random_quadratics, run
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


def test_printed_start_is_wrong() -> None:
    """xtilde^0 = 0 with xhat_i^0 = x^0: xtilde - mean xhat_i = -x^0 for ever, and the limit has grad f = -x^0/eta."""
    clients = random_quadratics(7, 3, low=1.0)
    algorithm = asynchronous(0.3, 1.0, 3.0)
    plain = algorithm.init_server

    def printed(x0: np.ndarray, c: Clients) -> Any:
        server = plain(x0, c)
        server.xtilde = 0 * x0
        return server

    object.__setattr__(algorithm, "init_server", printed)
    log = run(algorithm, clients, [0, 0, 1, 2] * 800, x0=X0)
    close(np.mean([o.gradient(log.x) for o in clients], axis=0), -X0 / 0.3)


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
def test_the_printed_closed_form_is_not_the_root(alpha: float, L: float, tau: int, n: int) -> None:
    """ASYNCDR.5: The closed form with 7 + 4c + 4c^2 is not the root of (9); with 7 + 12c + 4c^2 it is."""
    c = (2 * tau**2 - n) / n**2
    for coefficient, right in ((7 + 4 * c + 4 * c**2, False), (7 + 12 * c + 4 * c**2, True)):
        eta = (np.sqrt(16 - 8 * alpha - coefficient * alpha**2) - alpha) / (2 * L * (2 + (1 + c) * alpha))
        assert (abs(rho(eta, alpha, L, c)) < 1e-12) == right


def test_steps_of_the_theorem_converge() -> None:
    """alpha and eta just inside (8) and (9), round-robin arrivals of 6 clients with delays of 5."""
    clients = random_quadratics(8, 6, low=1.0)
    alpha = 0.9 * largest_alpha(5, 6)
    eta = 0.99 * largest_eta(alpha, 3.0, 5, 6)
    assert 0 < eta < 1 / 3
    log = run(asynchronous(eta, 1.0, 3.0, alpha=alpha), clients, list(range(6)) * 800, x0=X0)
    assert {k - update.version for k, (_, update) in enumerate(log.consumed) if k > 5} == {5}
    close(log.x, optimum(clients))


# -- replies -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnyReply(AsyncFedDR):
    reply: Reply = "after"  # type: ignore[assignment]


def test_why_other_replies_are_refused() -> None:
    """One client, f = 2 x^2, eta = 5, alpha = 1.95, no delay. FedDR multiplies x by 1 - alpha (1 - r), r = 1/21.
    Answered before, the roots of z^2 = (1 - alpha r) z + alpha (2 r - 1) have the product 1.76: it diverges.
    Deferred, every run is the one answered after."""
    clients = quadratics([4.0], [0.0])
    runs = {
        reply: run(exact(5.0, 4, 4, kind=AnyReply, alpha=1.95, reply=reply), clients, [0] * 60, x0=1.0).models
        for reply in ("after", "before", "deferred")
    }
    factor = 1 - 1.95 * (1 - 1 / 21)
    close(np.ravel(runs["after"])[1:], factor * np.ravel(runs["after"])[:-1])
    assert abs(runs["before"][-1][0]) > 1e5
    assert (np.array(runs["deferred"]) == np.array(runs["after"])).all()
