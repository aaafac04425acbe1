"""Server optimisers of FedAvg and FedProx by hand; those of FedBuff are in `test_schedules.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.common.server_optimizers import Adagrad, Adam, AmsGrad, Momentum, Plain, Yogi
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.fedprox import FedProx
from mpifl.algorithms.participation import Trigger
from tests.quadratic_runs import close, quadratics, random_quadratics, run

ALL = [Plain(), Momentum(), Adagrad(), Adam(), Yogi(), AmsGrad()]


class ByHand:
    """An optimiser of d coordinates, one by one with Python's floats."""

    def __init__(self, optimizer: Any, d: int) -> None:
        self.optimizer, self.name = optimizer, optimizer.name
        self.tau, v0 = getattr(optimizer, "tau", 0.0), getattr(optimizer, "v0", 0.0)
        self.m, self.v = [0.0] * d, [self.tau**2 if v0 is None else v0] * d
        self.top = list(self.v)

    def change(self, ds: np.ndarray, eta: float) -> np.ndarray:
        """By how much x moves with the mean update d."""
        return np.array([eta * self.direction(k, d) for k, d in enumerate(ds.tolist())])

    def direction(self, k: int, d: float) -> float:
        o, square, v = self.optimizer, d**2, self.v
        if self.name == "plain":
            return d
        if self.name == "momentum":
            self.m[k] = o.beta * self.m[k] + d
            return self.m[k]
        self.m[k] = o.beta1 * self.m[k] + (1 - o.beta1) * d
        if self.name == "adagrad":
            v[k] += square
        elif self.name == "yogi":
            v[k] -= (1 - o.beta2) * square * ((v[k] > square) - (v[k] < square))
        else:
            v[k] = o.beta2 * v[k] + (1 - o.beta2) * square
        self.top[k] = max(self.top[k], v[k])
        return self.m[k] / ((self.top[k] if self.name == "amsgrad" else v[k]) ** 0.5 + self.tau)


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)
@pytest.mark.parametrize(("method", "more"), [(FedAvg, {}), (FedProx, {"mu": 0.0})], ids=["fedavg", "fedprox"])
def test_rounds_by_hand(method: Any, more: dict[str, float], optimizer: Any) -> None:
    """d = mean y_i - x of a round, in several dimensions, from a start other than 0."""
    clients = random_quadratics(1, 4)
    algorithm = method(step_size=0.1, local_steps=3, server_step=0.3, optimizer=optimizer, **more)
    log = run(algorithm, clients, list(range(4)) * 6, x0=1.0)
    x, by_hand = np.ones(3), ByHand(optimizer, 3)
    for model in log.models:
        x = x + by_hand.change(np.mean([c.steps(x, 0.1, 3) for c in clients], axis=0) - x, 0.3)
        close(model, x, 1e-10)


def test_delays_make_steps_smaller() -> None:
    """FADAS.4, FADAS.5: eta = .1, tau_max = 20, tau_c = 8: printed .05, the code .005; no change up to tau_c, or
    without one."""
    cap = FedBuff(server_step=0.1, delay_threshold=8)
    scale = FedBuff(server_step=0.1, delay_threshold=8, delay_rule="scale")
    assert cap.eta_g(20) == 0.05
    assert scale.eta_g(20) == 0.005
    for tau in range(9):
        assert cap.eta_g(tau) == scale.eta_g(tau) == FedBuff(server_step=0.1).eta_g(10**6) == 0.1
    assert cap.eta_g(9) == 0.1  # below 1/tau_max the printed form does nothing
    assert scale.eta_g(9) == 0.1 / 9


def test_an_empty_buffer_changes_nothing() -> None:
    """A timed aggregation without updates takes no step, not even one of the momentum."""
    algorithm = FedBuff(step_size=0.5, trigger=Trigger(period=0.4), optimizer=Momentum())
    log = run(algorithm, quadratics([1], [1]), [0] * 3)
    counts = np.diff([0, *(row[1] for row in log.aggregations)])
    assert (counts == 0).sum() >= 3
    assert np.array_equal(np.diff([0.0, *np.ravel(log.models)]) != 0, counts > 0)
