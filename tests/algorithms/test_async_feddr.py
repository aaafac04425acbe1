"""asyncFedDR: its invariant, its limits without any bias to fast clients, and the step sizes of its theorem."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from mpifl.algorithms.async_feddr import AsyncFedDR, delay_constant, largest_alpha, largest_eta
from mpifl.algorithms.base import Clients
from mpifl.algorithms.common.proximal import L1
from tests.algorithms.test_feddr import X0, by_formula, exact
from tests.quadratic_runs import close, optimum, random_quadratics, run

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
