"""FedSplit: FedDR with alpha = 2, no regulariser and all clients."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.feddr import FedDR
from mpifl.algorithms.fedsplit import FedSplit
from tests.algorithms.test_feddr import X0, exact, prox
from tests.quadratic_runs import close, optimum, random_quadratics, run


def test_by_hand_and_bit_for_bit_feddr() -> None:
    """FEDDR.1: z_i <- z_i + 2 (prox(2 X - z_i) - X), X <- mean z_i, from z_i = X = x^0; and bit for bit FedDR with
    alpha = 2."""
    clients, order = random_quadratics(1, 4), list(range(4)) * 25
    log = run(exact(kind=FedSplit), clients, order, x0=X0)
    z, x = [X0] * 4, X0
    for model in log.models:
        z = [z[i] + 2 * (prox(o, 2 * x - z[i], 0.5) - x) for i, o in enumerate(clients)]
        x = np.mean(z, axis=0)
        close(model, x)
    other = run(exact(kind=FedDR, alpha=2.0), clients, order, x0=X0)
    assert all((a == b).all() for a, b in zip(log.models, other.models, strict=True))


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_limit(weights: str) -> None:
    """The optimum, of the mean or of the mean by samples."""
    clients = random_quadratics(2, 5)
    log = run(exact(kind=FedSplit, weights=weights), clients, list(range(5)) * 150, x0=X0)
    close(log.x, optimum(clients, [o.samples for o in clients] if weights == "samples" else None))
