"""Server optimisers of FedAvg, FedProx and FedBuff: against formulas, printed figures, and each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.base import State
from mpifl.algorithms.common.server_optimizers import Adagrad, Adam, AmsGrad, Momentum, Plain, Yogi
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.fedprox import FedProx
from mpifl.algorithms.participation import Trigger
from tests.quadratic_runs import Log, close, drift_point, quadratics, random_quadratics, run

T1 = quadratics([1, 10], [1, -1])
STEP, Q = 0.05, 10  # of T1's figures
KBAR = np.mean([1 - (1 - STEP * a) ** Q for a in (1, 10)])  # mean y_i - x = kbar (point - x)
POINT = drift_point(T1, STEP, Q)
ALL = [Plain(), Momentum(), Adagrad(), Adam(), Yogi(), AmsGrad()]
OPTIMIZERS = pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)


def rounds(count: int, optimizer: Any = None, eta: float = 0.1, clients: Any = T1, **more: Any) -> Log:
    """Rounds of FedAvg with all clients, and T1's local steps."""
    algorithm = FedAvg(step_size=STEP, local_steps=Q, server_step=eta, optimizer=optimizer, **more)
    return run(algorithm, clients, list(range(len(clients))) * count)


def by_hand(optimizer: Any, eta: float, ds: Any, x: Any, count: int) -> np.ndarray:
    """The iterates x_1 .. x_count of an optimiser along d = ds(x), coordinate by coordinate with Python's floats."""
    name, tau = optimizer.name, getattr(optimizer, "tau", 0.0)
    v0 = getattr(optimizer, "v0", 0.0)
    models, x = [], list(np.atleast_1d(x))
    m, v = [0.0] * len(x), [tau**2 if v0 is None else v0] * len(x)
    top = list(v)
    for _ in range(count):
        d = np.atleast_1d(ds(np.array(x))).tolist()
        for k in range(len(x)):
            if name == "plain":
                x[k] += eta * d[k]
                continue
            if name == "momentum":
                m[k] = optimizer.beta * m[k] + d[k]
                x[k] += eta * m[k]
                continue
            m[k] = optimizer.beta1 * m[k] + (1 - optimizer.beta1) * d[k]
            square = d[k] ** 2
            if name == "adagrad":
                v[k] += square
            elif name == "yogi":
                v[k] -= (1 - optimizer.beta2) * square * ((v[k] > square) - (v[k] < square))
            else:
                v[k] = optimizer.beta2 * v[k] + (1 - optimizer.beta2) * square
            top[k] = max(top[k], v[k])
            x[k] += eta * m[k] / ((top[k] if name == "amsgrad" else v[k]) ** 0.5 + tau)
        models.append(list(x))
    return np.array(models)


@OPTIMIZERS
@pytest.mark.parametrize("method", [FedAvg, FedProx])
def test_rounds_by_hand(method: type, optimizer: Any) -> None:
    """d = mean y_i - x of a round, in several dimensions, from a start other than 0."""
    clients = random_quadratics(1, 4)
    more = {"mu": 0.0} if method is FedProx else {}
    algorithm = method(step_size=0.1, local_steps=3, server_step=0.3, optimizer=optimizer, **more)
    log = run(algorithm, clients, list(range(4)) * 6, x0=1.0)
    mean = lambda x: np.mean([c.steps(x, 0.1, 3) for c in clients], axis=0) - x  # noqa: E731
    close(log.models, by_hand(optimizer, 0.3, mean, np.ones(3), 6), 1e-10)


@OPTIMIZERS
def test_buffers_by_hand(optimizer: Any) -> None:
    """d = (1/K) sum s(tau) (y_i - base_i) of a buffer, in a stale order, with the delay-adaptive step."""
    clients, every, threshold = random_quadratics(3, 4), 3, 1
    order = [0, 0, 0, 1, 0, 3, 2, 1, 1, 0, 2, 3, 3, 0, 1, 2, 3, 0]
    algorithm = FedBuff(step_size=0.1, local_steps=2, server_step=0.7, staleness="inverse-sqrt", optimizer=optimizer,
                        trigger=Trigger(every=every), delay_threshold=threshold, delay_rule="scale")  # fmt: skip
    log = run(algorithm, clients, order, x0=1.0)
    x, version, buffer, taus, models, smaller = np.ones(3), 0, [], [], [], 0
    bases = [(x, 0)] * 4
    state: list[np.ndarray] = []  # the mean updates so far: the optimiser is run through all of them again
    etas: list[float] = []
    for i in order:
        base, then = bases[i]
        taus.append(version - then)
        buffer.append((clients[i].steps(base, 0.1, 2) - base) / np.sqrt(1 + version - then))
        if len(buffer) == every:
            late = max(taus) > threshold
            smaller += late
            etas.append(0.7 / max(taus) if late else 0.7)
            state.append(sum(buffer) / every)
            x, version = path(optimizer, etas, state, np.ones(3)), version + 1
            buffer, taus = [], []
            models.append(x)
        bases[i] = x, version
    close(log.models, models, 1e-10)
    assert 0 < smaller < len(models)


def iterates(optimizer: Any, eta: float, count: int, x0: Any = 0.0) -> np.ndarray:
    """(count, 1) x_1, x_2, .. of rounds on T1, of the optimiser alone, without a server loop."""
    server, models = State(x=np.zeros(1) + x0), []
    optimizer.init(server)
    for _ in range(count):
        server.x = optimizer.step(server, KBAR * (POINT - server.x), eta)
        models.append(server.x)
    return np.array(models)


def path(optimizer: Any, etas: list[float], ds: list[np.ndarray], x0: np.ndarray) -> np.ndarray:
    """x after the steps along given mean updates, with steps that differ: from by_hand's with a step of 1."""
    queue = iter(ds)
    unit = by_hand(optimizer, 1.0, lambda x: next(queue), x0, len(ds))
    return x0 + sum(eta * step for eta, step in zip(etas, np.diff([x0, *unit], axis=0), strict=True))


# -- FADAS' delays -----------------------------------------------------------------------------------------------------
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


def test_the_delay_is_the_largest_of_this_buffer() -> None:
    """A stale update of an earlier buffer does not make later steps smaller."""
    algorithm = FedBuff(step_size=0.1, trigger=Trigger(every=1), delay_threshold=2, delay_rule="scale", reply="after")
    log = run(algorithm, quadratics([1, 1], [1, 1]), [0, 0, 0, 1, 0])
    taus = [row[3] for row in log.updates]
    assert taus == [0, 0, 0, 3, 1]
    steps = np.diff([0.0, *np.ravel(log.models)])
    bases = np.ravel(log.bases)
    close(steps, 0.1 * (1 - bases) / [1, 1, 1, 3, 1])


# -- null, weights, robust rules, memory -------------------------------------------------------------------------------


def test_an_empty_buffer_changes_nothing() -> None:
    """A timed aggregation without updates takes no step, not even one of the momentum."""
    algorithm = FedBuff(step_size=0.5, trigger=Trigger(period=0.4), optimizer=Momentum())
    log = run(algorithm, quadratics([1], [1]), [0] * 3)
    models = [0.0, *np.ravel(log.models)]
    counts = np.diff([0, *(row[1] for row in log.aggregations)])
    assert (counts == 0).sum() >= 3
    assert all(np.diff(models)[counts == 0] == 0)
    assert all(np.diff(models)[counts > 0] != 0)
