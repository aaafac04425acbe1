"""FedPD: its dual identities, its three oracles against their printed forms, and rounds without communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pytest

from mpifl.algorithms.base import Clients, Message, State
from mpifl.algorithms.common.local_solver import Gd, Sarah
from mpifl.algorithms.fedpd import FedPD
from tests.algorithms.world import noisy
from tests.quadratic_runs import Quadratic, close, optimum, random_quadratics


def exact(eta: float, largest: float = 3.0, **more: object) -> FedPD:
    """FedPD whose local problems are solved to rounding; `largest`: the largest curvature of any f_i, in size."""
    options = {"step_size": 1 / (largest + 1 / eta), "local_steps": 5000, "accuracy": 1e-28, "solver": Gd(), **more}
    return FedPD(eta=eta, **options)  # type: ignore[arg-type]


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


# -- limits ------------------------------------------------------------------------------------------------------------


def test_weights_by_samples() -> None:
    """A server that averages with s_i/S instead of 1/n solves min sum (s_i/S) f_i."""
    clients = random_quadratics(9, 4)
    *_, (server, _, _) = islice(contacts(exact(0.5, weights="samples"), clients), 300)
    close(server.x, optimum(clients, [o.share for o in clients]))
    assert np.abs(server.x - optimum(clients)).max() > 1e-2


# -- Oracle I ----------------------------------------------------------------------------------------------------------
def test_oracle_1_steps() -> None:
    """FEDPD.6: x <- x - eta_1 (g(x) + lambda_i + (x - x_{0,i})/eta) from the old x_i, on batches of the own rounds."""
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
