"""FedAMP: the attention step against the gradient it stands for, and the limit against numerical minimisation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from mpifl.algorithms.base import Clients, State, Update
from mpifl.algorithms.fedamp import FedAMP
from tests.algorithms.world import World
from tests.quadratic_runs import close, random_quadratics, run

START = np.array([1.0, -2.0, 0.5])


def attention(w: np.ndarray, sigma: float) -> complex:
    """A(W) = sum over pairs of 1 - exp(-||w_i - w_j||^2 / sigma), also for complex w."""
    gaps = [((w[i] - w[j]) ** 2).sum() for i in range(len(w)) for j in range(i)]
    return sum(1 - np.exp(-t / sigma) for t in gaps)


def slope(w: np.ndarray, sigma: float) -> np.ndarray:
    """The gradient of A(W) by complex steps, which have no rounding error to speak of."""
    result = np.empty_like(w)
    for place in np.ndindex(*w.shape):
        moved = w.astype(complex)
        moved[place] += 1e-30j
        result[place] = attention(moved, sigma).imag / 1e-30
    return result


def messages(algorithm: FedAMP, w: np.ndarray) -> tuple[np.ndarray, State]:
    """u of every client after a round that ended with the models w (n, d)."""
    n = len(w)
    server = algorithm.init_server(np.zeros(w.shape[1]), Clients(np.arange(1, n + 1)))
    algorithm.begin_round(server, list(range(n)))
    for i in range(n):
        algorithm.receive(server, i, Update((w[i],), 1), 0)
    algorithm.aggregate(server)
    return np.array([algorithm.message(server, i).vectors[0] for i in range(n)]), server


MODELS = np.random.default_rng(1).standard_normal((5, 3))


@pytest.mark.parametrize(("sigma", "alpha"), [(1.0, 0.2), (4.0, 1.0), (30.0, None)])
def test_attention_is_a_gradient_step(sigma: float, alpha: float | None) -> None:
    """FEDAMP.1: The rows of xi sum to 1, none is negative, and U = W - (alpha/2) grad A(W); null: alpha = sigma/n."""
    algorithm = FedAMP(sigma=sigma, attention_step=alpha)
    xi = algorithm.attend(MODELS)
    close(xi.sum(1), np.ones(5))
    assert (xi >= 0).all()
    u, _ = messages(algorithm, MODELS)
    close(u, MODELS - (alpha or sigma / 5) / 2 * slope(MODELS, sigma))


def test_messages_have_the_mean_of_the_models() -> None:
    """FEDAMP.2: The mean of the u_i is the mean of the w_i; the model that is evaluated is that mean, weighted if asked
    for."""
    u, server = messages(FedAMP(sigma=4.0), MODELS)
    close(u.mean(0), MODELS.mean(0))
    close(server.x, MODELS.mean(0))
    _, server = messages(FedAMP(sigma=4.0, weights="samples"), MODELS)
    close(server.x, np.arange(1, 6) @ MODELS / 15)


@pytest.mark.parametrize("attention", ["exponential", "cosine"])
def test_identical_models_are_sent_back(attention: str) -> None:
    """FEDAMP.3: Identical models are sent back as they are."""
    w = np.tile(START, (4, 1))
    close(messages(FedAMP(attention=attention), w)[0], w)


AXES = np.array([[2.0, 0.0, 0.0], [-3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5]])  # cosines 1, 0 and -1


@pytest.mark.parametrize("models", [MODELS, AXES[:2], AXES[:3], AXES], ids=len)
@pytest.mark.parametrize("sigma", [0.5, 3.0, 700.0, 800.0, 1e5])
def test_heurfedamp(sigma: float, models: np.ndarray) -> None:
    """xi_ii as given; the others share the rest by exp(sigma cos(w_i, w_j)), also where that overflows."""
    n, unit = len(models), models / np.linalg.norm(models, axis=1, keepdims=True)
    xi = FedAMP(attention="cosine", sigma=sigma, self_weight=0.3).attend(models)
    close(np.diag(xi), np.full(n, 0.3))
    for i in range(n):
        others = [j for j in range(n) if j != i]
        logs = sigma * unit[others] @ unit[i]
        close(xi[i, others], 0.7 * np.exp(logs - logsumexp(logs)), 1e-9)


def test_one_round() -> None:
    """A client takes its steps on F_i + lambda/(2 alpha) ||w - u_i||^2 from u_i, each from its own u_i."""
    clients = random_quadratics(3, 3)
    alpha, lam, eta = 0.5, 0.8, 0.1
    algorithm = FedAMP(sigma=2.0, attention_step=alpha, proximal=lam, step_size=eta, local_steps=3)
    here, w = World(algorithm, clients, START), np.tile(START, (3, 1))
    for _ in range(4):
        u, _ = messages(algorithm, w)
        for i, o in enumerate(clients):
            y = u[i]
            for _ in range(3):
                y = y - eta * (o.matrix @ (y - o.c) + lam / alpha * (y - u[i]))
            w[i] = y
        here.round(range(3))
        close(here.server.x, w.mean(0))
        close([algorithm.personal_model(here.states[i]) for i in range(3)], w)


@pytest.mark.parametrize("sigma", [1.0, 800.0])
def test_heurfedamp_alone_and_from_zero(sigma: float) -> None:
    """One client has xi = 1 and is sent its own model; zero models are as like as any others: equal weights."""
    algorithm = FedAMP(attention="cosine", sigma=sigma, self_weight=0.3)
    close(algorithm.attend(np.array([START])), [[1.0]])
    close(algorithm.attend(np.zeros((1, 3))), [[1.0]])
    close(messages(algorithm, np.array([START]))[0], [START])
    close(algorithm.attend(np.zeros((4, 3))), np.full((4, 4), 0.7 / 3) + np.eye(4) * (0.3 - 0.7 / 3))
    close(messages(algorithm, np.zeros((4, 3)))[0], np.zeros((4, 3)))
    o = random_quadratics(6, 1)
    kinds = {"attention": "cosine", "proximal": 0.0, "step_size": 0.1, "local_steps": 3}
    close(run(FedAMP(**kinds), o, [0] * 4, x0=START).x, o[0].steps(START, 0.1, 12))  # type: ignore[arg-type]


def test_the_largest_step_is_allowed() -> None:
    """alpha (n-1)/sigma <= 1, also where the quotient is rounded."""
    for n in range(2, 40):
        FedAMP(attention_step=0.7 / (n - 1), sigma=0.7).validate(n)
        FedAMP().validate(n)
