"""FedAvg against its formulas and fixed points."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.fedavg import FedAvg
from tests.quadratic_runs import close, drift_point, optimum, quadratics, random_quadratics, run


def test_FedAvg_1() -> None:
    """One local step, everybody, weights p: every round is x <- x - eta sum p_k grad f_k(x)."""
    clients = random_quadratics(1, 5)
    log = run(FedAvg(step_size=0.2, weights="samples"), clients, list(range(5)) * 12, x0=[1.0, -2.0, 0.5])
    x = np.array([1.0, -2.0, 0.5])
    for model in log.models:
        x = x - 0.2 * sum(o.samples * o.gradient(x) for o in clients) / sum(o.samples for o in clients)
        close(model, x)


@pytest.mark.parametrize("steps", [2, 10])
def test_FedAvg_2(steps: int) -> None:
    """1-D quadratics, Q local steps: the limit is sum k_i c_i / sum k_i, k_i = 1-(1-eta a_i)^Q, not the optimum."""
    a, c = np.array([1.0, 10.0, 3.0]), np.array([1.0, -1.0, 4.0])
    log = run(FedAvg(step_size=0.05, local_steps=steps), quadratics(a, c), [0, 1, 2] * 800)
    k = 1 - (1 - 0.05 * a) ** steps
    close(log.x, [k @ c / k.sum()])
    assert abs(log.x[0] - a @ c / a.sum()) > 0.05


def test_FedAvg_3() -> None:
    """f1 = x^2, f2 = -x^2: all points are optimal, x grows by ((1-2eta)^Q + (1+2eta)^Q)/2 a round, > 1 for Q > 1."""
    for steps in (1, 2, 3, 8):
        for eta in (0.1, 0.3):
            factor = ((1 - 2 * eta) ** steps + (1 + 2 * eta) ** steps) / 2
            log = run(FedAvg(step_size=eta, local_steps=steps), quadratics([2, -2], [0, 0]), [0, 1] * 3, x0=1.0)
            close(np.ravel(log.models), factor ** np.arange(1, 4))
            assert factor > 1 or steps == 1


def test_T1() -> None:
    """a = (1, 10), c = (1, -1), eta = 0.05, Q = 10: the limit as printed, while the optimum is -9/11."""
    log = run(FedAvg(step_size=0.05, local_steps=10), quadratics([1, 10], [1, -1]), [0, 1] * 200)
    close(log.x, [-0.4268843393694543])
    close(optimum(quadratics([1, 10], [1, -1])), [-0.8181818181818182])


@pytest.mark.parametrize(("steps", "factor"), [(1, 1.0), (2, 1.04), (3, 1.12), (8, 2.23379456)])
def test_T2(steps: int, factor: float) -> None:
    """The growth of x per round where f1 = x^2, f2 = -x^2, eta = 0.1, in printed numbers."""
    log = run(FedAvg(step_size=0.1, local_steps=steps), quadratics([2, -2], [0, 0]), [0, 1], x0=1.0)
    close(log.x, [factor])


def test_drift_point_in_several_dimensions() -> None:
    """With Q local steps and uniform weights the limit solves x = mean G_i^Q(x)."""
    clients = random_quadratics(3, 4)
    log = run(FedAvg(step_size=0.1, local_steps=8), clients, list(range(4)) * 100)
    close(log.x, drift_point(clients, 0.1, 8))


def test_s_fedavg_averages_its_cohort_plainly() -> None:
    """S-FedAvg: K of n without replacement, mean of K models, step alpha s_i/S."""
    clients = random_quadratics(4, 6)
    algorithm = FedAvg(step_size=2.0, step_weights="samples", cohort=2, local_steps=3)
    members = [algorithm.participation(_Clients(clients), 0).sample(r) for r in range(10)]
    log = run(algorithm, clients, [i for m in members for i in m])
    x = np.zeros(3)
    for model, cohort in zip(log.models, members, strict=True):
        assert len(set(cohort)) == 2
        x = np.mean([clients[i].steps(x, 2.0 * clients[i].share, 3) for i in cohort], axis=0)
        close(model, x)


def test_cohort_drawn_with_replacement_counts_repeats() -> None:
    """Sampling with probability p_k and 1/K each: a client drawn twice trains once and weighs 2/K."""
    clients = random_quadratics(5, 3)
    algorithm = FedAvg(step_size=0.1, cohort=3, sampling="samples")
    members = [algorithm.participation(_Clients(clients), 0).sample(r) for r in range(10)]
    assert any(len(set(m)) < 3 for m in members)
    log = run(algorithm, clients, [i for m in members for i in dict.fromkeys(m)])
    x = np.zeros(3)
    for model, cohort in zip(log.models, members, strict=True):
        x = np.mean([clients[i].steps(x, 0.1) for i in cohort], axis=0)
        close(model, x)


def test_weights_by_samples_are_of_the_cohort() -> None:
    """Uniform sampling without replacement, n_k-weighted: the members' weights sum to one."""
    clients = random_quadratics(6, 5)
    algorithm = FedAvg(step_size=0.1, cohort=3, weights="samples")
    cohort = algorithm.participation(_Clients(clients), 0).sample(0)
    log = run(algorithm, clients, cohort)
    s = np.array([clients[i].samples for i in cohort])
    close(log.x, s / s.sum() @ np.array([clients[i].steps(np.zeros(3), 0.1) for i in cohort]))


@pytest.mark.parametrize(("kind", "weight"), [("one", 1.0), ("samples", 0.75), ("uniform", 0.5), ("relative", 1.5)])
def test_step_weights(kind: str, weight: float) -> None:
    """The local step is alpha times 1, s_i/S, 1/n or n s_i/S."""
    clients = quadratics([1, 1], [8, 0], samples=[3, 1])
    log = run(FedAvg(step_size=0.25, step_weights=kind), clients, [0, 1])
    close(log.x, [0.25 * weight * 8 / 2])


def test_local_epochs_replace_local_steps() -> None:
    """Where epochs are given they decide the number of local steps."""
    log = run(FedAvg(step_size=0.1, local_steps=7, local_epochs=2), quadratics([1], [1]), [0])
    assert log.updates[0][4] == 2
    close(log.x, [1 - 0.9**2])


class _Clients:
    """What `rounds` asks of the clients."""

    def __init__(self, objectives: list) -> None:
        self.n = len(objectives)
        self.shares = np.array([o.share for o in objectives])
