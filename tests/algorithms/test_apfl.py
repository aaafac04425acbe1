"""APFL: the shared model is FedAvg's; the personal one and its weight against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.apfl import APFL
from mpifl.algorithms.base import Message, State
from tests.quadratic_runs import Log, Quadratic, close, random_quadratics, run

START = np.array([1.0, -2.0, 0.5])
ORDER = [0, 1, 2, 3]


def states(log: Log) -> list[State]:
    assert log.worker
    return list(log.worker.states.values())


def test_mixing_1_is_gradient_descent_on_the_own_objective() -> None:
    """APFL.2: alpha = 1: v_i is gradient descent on f_i alone, and ends at its optimum."""
    clients = random_quadratics(2, 4)
    algorithm = APFL(mixing=1.0, step_size=0.2, local_steps=2)
    log = run(algorithm, clients, ORDER * 3, x0=START)
    for o, state in zip(clients, states(log), strict=True):
        close(state.v, o.steps(START, 0.2, 8))  # three rounds, and the one under way
        close(algorithm.personal_model(state), state.v)
    log = run(algorithm, clients, ORDER * 150, x0=START)
    close([state.v for state in states(log)], [o.c for o in clients])


def contact(adapt: str, steps: int, alpha: float = 0.4, eta: float = 0.05) -> tuple[Quadratic, State, APFL]:
    """One contact from w = START, v = (2, 1, -1)."""
    (o,) = random_quadratics(4, 1)
    algorithm = APFL(mixing=alpha, adapt=adapt, step_size=eta, local_steps=steps)
    state = State(v=np.array([2.0, 1.0, -1.0]), w=START, alpha=alpha)
    algorithm.train(state, Message((START,)), o)
    return o, state, algorithm


def expected(o: Quadratic, steps: int, adapting: int, alpha: float = 0.4, eta: float = 0.05) -> tuple:
    """v, w and alpha, with d/d alpha f(alpha v + (1 - alpha) w) by central differences, exact for quadratics."""
    v, w = np.array([2.0, 1.0, -1.0]), START
    for step in range(steps):

        def loss(share: float, v: np.ndarray = v, w: np.ndarray = w) -> float:
            return o.loss(share * v + (1 - share) * w)

        slope = (loss(alpha + 0.5) - loss(alpha - 0.5)) / 1.0
        mixed = alpha * v + (1 - alpha) * w
        v = v - eta * alpha * o.matrix @ (mixed - o.c)
        w = o.steps(w, eta)
        if step < adapting:
            alpha = min(max(alpha - eta * slope, 0), 1)
    return v, w, alpha


@pytest.mark.parametrize(("adapt", "adapting"), [("step", 4), ("round", 1), ("never", 0)])
def test_alpha_steps_along_the_derivative(adapt: str, adapting: int) -> None:
    """APFL.3: alpha steps along the derivative of f(alpha v + (1 - alpha) w): at every local step, or at a contact's
    first."""
    o, state, algorithm = contact(adapt, 4)
    v, w, alpha = expected(o, 4, adapting)
    close(state.alpha, alpha)
    close(state.v, v)
    close(state.w, w)
    close(algorithm.personal_model(state), alpha * v + (1 - alpha) * w)
    assert isinstance(state.alpha, float)
    assert (alpha != 0.4) == (adapting > 0)


@pytest.mark.parametrize(("kind", "power"), [("relative", 1), ("one", 0)])
def test_step_weights(kind: str, power: int) -> None:
    """relative: w_i, v_i and alpha_i all step by eta n s_i/S."""
    clients = random_quadratics(5, 3)
    total = sum(o.samples for o in clients)
    assert len({o.samples for o in clients}) > 1
    algorithm = APFL(mixing=0.4, adapt="step", step_size=0.05, local_steps=4, step_weights=kind)
    for o in clients:
        state = State(v=np.array([2.0, 1.0, -1.0]), w=START, alpha=0.4)
        update = algorithm.train(state, Message((START,)), o)
        v, w, alpha = expected(o, 4, 4, eta=0.05 * (3 * o.samples / total) ** power)
        close(state.v, v)
        close(update.vectors[0], w)
        close(state.alpha, alpha)


def test_alpha_stays_in_0_to_1() -> None:
    assert contact("round", 1, eta=50.0)[1].alpha in (0.0, 1.0)
    ends = set()
    for seed in range(8):
        (o,) = random_quadratics(seed, 1)
        state = State(v=-START, w=START, alpha=0.5)
        APFL(adapt="step", step_size=20.0).train(state, Message((START,)), o)
        ends.add(state.alpha)
    assert ends == {0.0, 1.0}
