"""FedNova: its normalisation a_i, its limits on clients of unequal steps, and FedAvg where they are equal."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpifl.algorithms.common.local_solver import Gd, Sgd
from mpifl.algorithms.fednova import FedNova
from tests.quadratic_runs import Quadratic, close, quadratics, random_quadratics, run

T1 = quadratics([1, 10], [1, -1])
TAU = np.array([2, 10])


class Uneven(Quadratic):
    """As many batches an epoch as it has samples."""

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list[slice]:
        return [slice(None)] * (epochs * self.samples if epochs else steps)


def numbers(log: Any) -> list[float]:
    return [update.numbers[0] for _, update in log.consumed]


def limit(step: float, normalise: bool) -> np.ndarray:
    """sum k_i c_i / sum k_i, k_i = 1 - (1 - step a_i)^tau_i, over tau_i where the updates are normalised."""
    a, c = np.array([1, 10]), np.array([1, -1])
    k = (1 - (1 - step * a) ** TAU) / (TAU if normalise else 1)
    return np.array([k @ c / k.sum()])


def a_by_hand(beta: float, steps: int) -> float:
    """sum_j (1 - beta^j)/(1 - beta), j = 1 .. steps: what gradients of 1 add up to."""
    y = v = 0.0
    for _ in range(steps):
        v = beta * v + 1
        y += v
    return y


def test_weight_of_momentum() -> None:
    """NOVA.5, NOVA.6: Momentum .9 and 6 steps: 17.82969, from what a client sends; and in closed form."""
    log = run(FedNova(step_size=0.01, local_steps=6, solver=Sgd(momentum=0.9)), T1, [0, 1])
    close(numbers(log), [17.82969] * 2, 1e-5)
    for beta in (0.1, 0.5, 0.9):
        for steps in (1, 2, 6, 13):
            log = run(FedNova(step_size=0.01, local_steps=steps, solver=Gd(momentum=beta)), T1, [0, 1])
            close(numbers(log), [a_by_hand(beta, steps)] * 2)
            close(a_by_hand(beta, steps), (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta))


def test_weight_of_a_proximal_term() -> None:
    """NOVA.7: A proximal term: a_i = (1 - (1 - eta mu)^tau)/(eta mu), what gradients of 1 add up to; tau_eff: of the
    tau_i."""
    eta, mu = 0.05, 2.0
    y = 0.0
    for _ in range(6):
        y -= 1 + eta * mu * y
    log = run(FedNova(step_size=eta, local_steps=6, mu=mu), T1, [0, 1])
    close(numbers(log), [-y] * 2)
    close(-y, (1 - (1 - eta * mu) ** 6) / (eta * mu))
    sent = [update.vectors[0] for _, update in log.consumed]
    close(log.x, -6 * np.mean(sent, axis=0) / -y)


def test_rule_by_hand() -> None:
    """Unequal steps and weights, a cohort of two, a number for tau_eff."""
    clients, tau = random_quadratics(2, 3), [1, 3, 5]
    rounds = [[0, 2], [1, 2], [0, 1]]
    for tau_eff in ("mean", 2.5):
        algorithm = FedNova(step_size=0.1, steps=tau, weights="samples", tau_eff=tau_eff)
        log = run(algorithm, clients, x0=1.0, rounds=rounds)
        x, models = np.ones(3), []
        for members in rounds:
            s = sum(clients[i].samples for i in members)
            p = {i: clients[i].samples / s for i in members}
            factor = sum(p[i] * tau[i] for i in members) if tau_eff == "mean" else tau_eff
            x = x - factor * sum(p[i] * (x - clients[i].steps(x, 0.1, tau[i])) / tau[i] for i in members)
            models.append(x)
        close(log.models, models, 1e-10)
        work = [(i, m.work, *m.numbers) for i, m in log.sent]
        assert all(w == t == tau[i] for i, w, t in work)


def test_epochs_on_unequal_shards() -> None:
    """tau_i are the steps that the epochs had: 2 and 10."""
    clients = quadratics([1, 10], [1, -1], samples=[1, 5], kind=Uneven)
    log = run(FedNova(step_size=0.01, local_epochs=2), clients, [0, 1] * 500)
    assert [row[4] for row in log.updates[:2]] == [2, 10] and numbers(log)[:2] == [2.0, 10.0]
    close(log.x, limit(0.01, True), 1e-9)
