"""FedPD: its dual identities, its three oracles against their printed forms, and rounds without communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
from scipy.optimize import minimize

from mpifl.algorithms.base import Clients, Message, State
from mpifl.algorithms.common.local_solver import Gd, Sarah, Sgd
from mpifl.algorithms.fedpd import FedPD
from tests.algorithms.test_fedprox import Noisy, noisy
from tests.quadratic_runs import Quadratic, close, optimum, quadratics, random_quadratics, run


def exact(eta: float, largest: float = 3.0, **more: object) -> FedPD:
    """FedPD whose local problems are solved to rounding; `largest`: the largest curvature of any f_i, in size."""
    options = {"step_size": 1 / (largest + 1 / eta), "local_steps": 5000, "accuracy": 1e-28, "solver": Gd(), **more}
    return FedPD(eta=eta, **options)  # type: ignore[arg-type]


def prox(client: Quadratic, eta: float, v: np.ndarray) -> np.ndarray:
    """argmin f_i(x) + ||x - v||^2/(2 eta), by a linear solve."""
    return np.linalg.solve(eta * client.matrix + np.eye(v.size), eta * client.matrix @ client.c + v)


def contacts(
    algorithm: FedPD, clients: Sequence[Quadratic], x0: np.ndarray | float = 0.0, seed: int = 0
) -> Iterator[tuple[State, list[State], list[Message]]]:
    """The server's state after each aggregation, the clients' states, and the messages of that contact."""
    x0 = np.full(clients[0].c.size, x0) if np.isscalar(x0) else np.asarray(x0)
    everybody = list(range(len(clients)))
    server = algorithm.init_server(x0, Clients(np.array([o.samples for o in clients]), seed=seed))
    states = [algorithm.init_client(x0, i) for i in everybody]
    for round in range(10**6):
        algorithm.begin_round(server, everybody)
        messages = [algorithm.message(server, i)._replace(round=round, version=round) for i in everybody]
        for i in everybody:
            algorithm.receive(server, i, algorithm.train(states[i], messages[i], clients[i]), 0)
        algorithm.aggregate(server)
        yield server, states, messages


# -- dual identities ---------------------------------------------------------------------------------------------------
def test_exact_duals_are_gradients() -> None:
    """FEDPD.1, FEDPD.4: with an exact oracle lambda_i = -grad f_i(x_i), and what is uploaded is
    x_i - eta grad f_i(x_i); here with p = 0.5."""
    clients, eta = random_quadratics(1, 4), 0.4
    algorithm = exact(eta, skip=0.5)
    for server, states, _ in islice(contacts(algorithm, clients, 1.0), 20):
        gradients = [o.gradient(s.x) for o, s in zip(clients, states, strict=True)]
        close([s.lam for s in states], -np.array(gradients))
        close(server.x, np.mean([s.x - eta * g for s, g in zip(states, gradients, strict=True)], axis=0))


def test_exact_duals_balance() -> None:
    """FEDPD.2: p = 0, exact: sum_i (lambda_i + (x_i - x_0)/eta) = 0 after each aggregation."""
    clients, eta = random_quadratics(2, 4), 0.3
    for server, states, _ in islice(contacts(exact(eta), clients, 1.0), 20):
        close(sum(s.lam + (s.x - server.x) / eta for s in states), np.zeros(3))


ORACLES = {
    "gd": {"solver": Gd(), "step_size": 0.07, "local_steps": 3},
    "sgd": {"solver": Sgd(), "step_size": 0.05, "local_steps": 4},
    "sgd, epochs": {"solver": Sgd(momentum=0.5), "step_size": 0.05, "local_epochs": 1},
    "vr": {"solver": Sarah(), "gamma": 0.6, "refresh": 3, "local_steps": 5},
}
any_oracle = pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)


@any_oracle
def test_the_mean_dual_is_the_last_move(oracle: dict) -> None:
    """FEDPD.3, FEDPD.5: p = 0, any oracle: mean lambda^{r+1} = (xbar^{r+1} - xbar^r)/eta, xbar the mean of the x_i, and
    x_0^{r+1} = 2 xbar^{r+1} - xbar^r."""
    eta, old = 0.3, np.ones(3)
    for server, states, _ in islice(contacts(FedPD(eta=eta, **oracle), noisy(3, 4), 1.0), 30):
        new = np.mean([s.x for s in states], axis=0)
        close(np.mean([s.lam for s in states], axis=0), (new - old) / eta)
        close(server.x, 2 * new - old)
        old = new


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("oracle", ["gd", "vr"])
def test_limit_is_the_optimum_whatever_the_oracle_leaves(oracle: str) -> None:
    """p = 0: few local steps, and the estimate of Oracle II on random batches, cost no accuracy in the limit."""
    clients = noisy(6, 4)
    *_, (server, states, _) = islice(contacts(FedPD(eta=0.1, **ORACLES[oracle]), clients), 1500)  # type: ignore[arg-type]
    x = optimum(clients)
    close(server.x, x)
    close([s.lam for s in states], [-o.gradient(x) for o in clients])


def test_without_communication_clients_take_proximal_steps() -> None:
    """FEDPD.6: p = 1, exact: x_i <- prox_{eta f_i}(x_i) round after round, which tends to the client's own optimum.

    No job has p = 1: a client is told here that the next communication is 7, and then 400, rounds away.
    """
    eta, (client,) = 0.4, random_quadratics(7, 1)
    algorithm = exact(eta)
    for rounds in (7, 400):
        x = np.array([1.0, -2.0, 0.5])
        state = algorithm.init_client(x, 0)
        update = algorithm.train(state, Message((x,), (rounds,)), client)
        for _ in range(rounds):
            x = prox(client, eta, x)
        close(state.x, x)
        close(update.vectors[0], x - eta * client.gradient(x))
    close(state.x, client.c)


def test_skipped_rounds_stay_off_the_optimum() -> None:
    """FEDPD.7: p = 0.5 under heterogeneity: the iterates are those of the exact proximal maps between the
    communications that the server drew, and stay away from the optimum; with p = 0 they reach it."""
    clients, eta = random_quadratics(8, 4), 0.4
    x_star = optimum(clients)
    distances, x_0 = [], np.zeros(3)
    lam = [np.zeros(3)] * 4
    for server, _, messages in islice(contacts(exact(eta, skip=0.5), clients), 150):
        ends = []
        for i, client in enumerate(clients):
            own = x_0
            for _ in range(int(messages[0].numbers[0])):
                x_i = prox(client, eta, own - eta * lam[i])
                lam[i] = lam[i] + (x_i - own) / eta
                own = x_i + eta * lam[i]
            ends.append(own)
        x_0 = np.mean(ends, axis=0)
        close(server.x, x_0)
        distances.append(np.abs(server.x - x_star).max())
    assert np.median(distances[50:]) > 1e-2
    *_, (server, _, _) = islice(contacts(exact(eta), clients), 150)
    close(server.x, x_star)


@pytest.mark.parametrize("eta", [0.1, 0.3, 0.45])
def test_where_all_points_are_optimal(eta: float) -> None:
    """FEDPD.8: f1 = x^2, f2 = -x^2, exact, x^0 = 1: x_0^1 = (1 + 4 eta^2)/(1 - 4 eta^2), then for
    ever 1/(1 - 4 eta^2)."""
    log = run(exact(eta, 2.0), quadratics([2, -2], [0, 0]), [0, 1] * 12, x0=1.0)
    limit = 1 / (1 - 4 * eta**2)
    close(np.ravel(log.models), [(1 + 4 * eta**2) * limit] + [limit] * 11)


def test_weights_by_samples() -> None:
    """A server that averages with s_i/S instead of 1/n solves min sum (s_i/S) f_i."""
    clients = random_quadratics(9, 4)
    *_, (server, _, _) = islice(contacts(exact(0.5, weights="samples"), clients), 300)
    close(server.x, optimum(clients, [o.share for o in clients]))
    assert np.abs(server.x - optimum(clients)).max() > 1e-2


# -- Oracle I ----------------------------------------------------------------------------------------------------------
def test_oracle_1_steps() -> None:
    """x <- x - eta_1 (g(x) + lambda_i + (x - x_{0,i})/eta) from the old x_i, on batches of the client's own rounds."""
    (client,) = noisy(10, 1)
    algorithm = FedPD(eta=0.3, step_size=0.05, local_steps=4)
    state, x = algorithm.init_client(np.ones(3), 0), np.ones(3)
    lam, round = np.zeros(3), 0
    for rounds, x_0 in ((1, np.ones(3)), (3, np.array([0.2, 0.4, -1.0])), (2, np.array([-0.5, 1.0, 0.0]))):
        update = algorithm.train(state, Message((x_0,), (rounds,)), client)
        for _ in range(rounds):
            for rows in client.batches(round, 4):
                x = x - 0.05 * (client.gradient(x, rows) + lam + (x - x_0) / 0.3)
            lam = lam + (x - x_0) / 0.3
            x_0 = x + 0.3 * lam
            round += 1
        close(state.x, x)
        close(state.lam, lam)
        close(update.vectors[0], x_0)
        assert update.local_steps == 4 * rounds


@pytest.mark.parametrize("eps_1", [1e-2, 1e-5, 1e-9])
def test_oracle_1_stops_at_its_accuracy(eps_1: float) -> None:
    """gd takes the steps that it needs for ||grad L_i||^2 <= eps_1, and no more; never more than Q."""
    (client,) = random_quadratics(11, 1)
    eta, x_0 = 0.4, np.array([2.0, -1.0, 0.0])
    for most in (500, 3):
        algorithm = FedPD(eta=eta, step_size=0.1, local_steps=most, solver=Gd(), accuracy=eps_1)
        state = algorithm.init_client(np.ones(3), 0)
        update = algorithm.train(state, Message((x_0,), (1,)), client)
        x, steps = np.ones(3), 0
        while (g := client.gradient(x) + (x - x_0) / eta) @ g > eps_1 and steps < most:
            x, steps = x - 0.1 * g, steps + 1
        assert update.local_steps == steps
        close(state.x, x)
    assert steps == 3


# -- Oracle II ---------------------------------------------------------------------------------------------------------
def one_step(**options: float) -> tuple[np.ndarray, ...]:
    """x^q, x_{0,i}, lambda_i, g of a client, and the x that one step of Oracle II makes of them; eta = 0.3."""
    x, x_0, lam, g = np.random.default_rng(1).standard_normal((4, 3))
    algorithm = FedPD(eta=0.3, refresh=5, solver=Sarah(), **options)  # type: ignore[arg-type]
    state = State(x=x, lam=lam, g=g, r=2)
    algorithm.train(state, Message((x_0,), (1,)), random_quadratics(12, 1)[0])
    return x, x_0, lam, g, state.x


@pytest.mark.parametrize("gamma", [0.1, 0.3, 5.0])
def test_a_step_of_oracle_2_minimises_its_model(gamma: float) -> None:
    """FEDPD.9: The step minimises <g + lambda_i, x> + ||x - x^q||^2/(2 gamma) + ||x - x_{0,i}||^2/(2 eta)."""
    x, x_0, lam, g, new = one_step(gamma=gamma)

    def slope(y: np.ndarray) -> np.ndarray:
        return g + lam + (y - x) / gamma + (y - x_0) / 0.3

    def value(y: np.ndarray) -> float:
        return float((g + lam) @ y + (y - x) @ (y - x) / (2 * gamma) + (y - x_0) @ (y - x_0) / 0.6)

    close(slope(new), np.zeros(3), 1e-11)  # its terms are up to 1e1
    curvature = (1 / gamma + 1 / 0.3) * np.eye(3)
    found = minimize(value, np.zeros(3), jac=slope, hess=lambda y: curvature, method="trust-exact", tol=1e-13)
    close(new, found.x)
    close(new, (0.3 * x + gamma * x_0 - 0.3 * gamma * (g + lam)) / (0.3 + gamma))


def test_large_gamma_is_a_step_of_eta() -> None:
    """FEDPD.10: gamma -> infinity: the step is x_{0,i} - eta (g + lambda_i), which is step_size = eta."""
    for limit in ({"gamma": 1e18}, {"gamma": 1e300}, {"step_size": 0.3}):
        _, x_0, lam, g, new = one_step(**limit)
        close(new, x_0 - 0.3 * (g + lam))


@pytest.mark.parametrize("refresh", [1, 4])
def test_oracle_2_as_printed(refresh: int) -> None:
    """FEDPD.11: Oracle II as printed, closed form and estimate carried over the rounds, is steps eta gamma/(eta +
    gamma) along the gradient of L_i, on random batches and over contacts of several rounds."""
    eta, gamma, (client,) = 0.3, 3.0, noisy(13, 1)
    algorithm = FedPD(eta=eta, gamma=gamma, refresh=refresh, local_steps=5, solver=Sarah())
    same = FedPD(eta=eta, step_size=eta * gamma / (eta + gamma), refresh=refresh, local_steps=5, solver=Sarah())
    state, twin = algorithm.init_client(np.ones(3), 0), same.init_client(np.ones(3), 0)
    x, lam, g, r = np.ones(3), np.zeros(3), np.zeros(3), 0
    for rounds, x_0 in ((1, np.ones(3)), (3, np.array([0.2, 0.4, -1.0])), (5, np.array([-0.5, 1.0, 0.0]))):
        message = Message((x_0,), (rounds,))
        update = algorithm.train(state, message, client)
        same.train(twin, message, client)
        for _ in range(rounds):
            if r % refresh == 0:
                g = client.gradient(x)
            for rows in client.batches(r, 5):
                new = (eta * x + gamma * x_0 - eta * gamma * (g + lam)) / (eta + gamma)
                g = g + client.gradient(new, rows) - client.gradient(x, rows)  # type: ignore[arg-type]
                x = new
            lam = lam + (x - x_0) / eta
            x_0 = x + eta * lam
            r += 1
        close(state.x, x)
        close(twin.x, x)
        close(update.vectors[0], x_0)
        if refresh > 1:
            close(state.g, g)


@dataclass
class Curved(Quadratic):
    """f(x) = sum a log cosh(x - c): not a quadratic."""

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        return self.a * np.tanh(x - self.c)


@pytest.mark.parametrize("refresh", [2, 7, 10**6])
def test_full_batches_keep_the_estimate_exact(refresh: int) -> None:
    """FEDPD.12: Oracle II with full-batch differences, gamma = 10 eta: g is grad f_i at the present x_i, for any I."""
    clients = quadratics([[1, 2], [3, 0.5], [0.2, 4]], [[1, -1], [2, 0.3], [-1, 0.2]], kind=Curved)
    algorithm = FedPD(eta=0.15, gamma=1.5, refresh=refresh, local_steps=4, skip=0.3, solver=Sarah())
    for _, states, _ in islice(contacts(algorithm, clients, 1.0), 40):
        for client, state in zip(clients, states, strict=True):
            close(state.g, client.gradient(state.x))


# -- rounds without communication --------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.25, 0.5, 0.9])
def test_rounds_to_the_next_communication_are_geometric(p: float) -> None:
    """P(k) = p^(k-1) (1 - p): a round communicates with probability 1 - p. Of 3000 draws, within 5 standard errors."""
    draws = 3000
    server = (algorithm := FedPD(skip=p)).init_server(np.zeros(1), Clients(np.ones(2, int)))
    told = []
    for _ in range(draws):
        algorithm.begin_round(server, [0, 1])
        told.append(int(algorithm.message(server, 0).numbers[0]))
    for k in range(1, 4):
        law = p ** (k - 1) * (1 - p)
        assert abs(told.count(k) / draws - law) < 5 * (law * (1 - law) / draws) ** 0.5
    assert abs(np.mean(told) - 1 / (1 - p)) < 5 * p**0.5 / (1 - p) / draws**0.5


def test_the_coin_belongs_to_the_seed() -> None:
    algorithm, clients = FedPD(skip=0.5), random_quadratics(15, 2)
    told = [[m[0].work for _, _, m in islice(contacts(algorithm, clients, seed=seed), 30)] for seed in (0, 0, 1)]
    assert told[0] == told[1] != told[2]


@pytest.mark.parametrize("period", [1, 2, 5])
def test_period(period: int) -> None:
    """Every R-th round communicates, and R contacts of one round without averaging are one contact of R rounds."""
    clients = random_quadratics(16, 3)
    runs = islice(contacts(FedPD(eta=0.3, step_size=0.1, solver=Gd(), period=period), clients), 10)
    alone = FedPD(eta=0.3, step_size=0.1, solver=Gd())
    states, x = [alone.init_client(np.zeros(3), i) for i in range(3)], np.zeros(3)
    for server, _, messages in runs:
        assert {m.work for m in messages} == {period}
        ends = []
        for state, client in zip(states, clients, strict=True):
            own = x
            for _ in range(period):
                (own,) = alone.train(state, Message((own,), (1,)), client).vectors
            ends.append(own)
        x = np.mean(ends, axis=0)
        close(server.x, x)


def test_each_local_round_has_batches_of_its_own() -> None:
    """The keys of the random batches count the client's rounds, communicated or not."""
    clients = noisy(17, 2)
    *_, (_, states, _) = islice(contacts(FedPD(eta=0.3, skip=0.5), clients), 25)
    for client, state in zip(clients, states, strict=True):
        assert isinstance(client, Noisy)
        assert client.keys == list(range(state.r)) and state.r > 35


# -- what every method must do -----------------------------------------------------------------------------------------
