"""FedProx against FedAvg, its fixed points, and its stragglers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import pytest

from mpifl.algorithms.base import Clients
from mpifl.algorithms.common.local_solver import Gd, Sarah, Sgd, Svrg
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedprox import FedProx
from mpifl.rng import stream
from tests.algorithms.world import in_rounds
from tests.quadratic_runs import Quadratic, close, random_quadratics, run


@dataclass
class Noisy(Quadratic):
    """A quadratic of 12 rows whose gradients differ, with random batches of two; all rows together are the quadratic.

    Row r adds e_r + h_r x to the gradient, and the sums of e_r and h_r are zero.
    """

    def __post_init__(self) -> None:
        rng = np.random.default_rng(zlib.crc32(self.c.tobytes()))
        self.e, self.h = rng.standard_normal((2, 12, self.c.size))
        self.e -= self.e.mean(0)
        self.h -= self.h.mean(0)
        self.keys: list[int] = []  # of all batches so far

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list:
        self.keys.append(round)
        rng = stream(0, "batch", round=round)
        return [rng.choice(12, 2, replace=False) for _ in range(epochs * 6 if epochs else steps)]

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        exact = super().gradient(x)
        return exact if rows is None else exact + (self.e[rows] + 0.3 * self.h[rows] * x).mean(0)  # type: ignore[index]


def noisy(seed: int, n: int) -> list[Quadratic]:
    return [Noisy(o.a, o.c, o.samples, o.share, o.clients) for o in random_quadratics(seed, n)]


@pytest.mark.parametrize("solver", [Sgd(), Sgd(momentum=0.5), Gd(), Svrg(), Sarah()], ids=str)
@pytest.mark.parametrize(
    "more", [{}, {"cohort": 2, "weights": "samples"}, {"cohort": 4, "sampling": "samples"}], ids=str
)
def test_mu_0_is_fedavg_to_the_bit(solver: Sgd, more: dict) -> None:
    """FEDPROX.1: mu = 0 is FedAvg to the bit, with random batches, for every local solver and way of sampling."""
    options = {"step_size": 0.05, "local_steps": 5, "solver": solver, **more}
    with_mu = in_rounds(FedProx(mu=0.0, **options), noisy(1, 5), 8)[0]
    fedavg = in_rounds(FedAvg(**options), noisy(1, 5), 8)[0]
    assert len(fedavg.models) == 8 and np.array_equal(with_mu.models, fedavg.models)
    other = in_rounds(FedProx(mu=0.1, **options), noisy(1, 5), 8)[0]
    assert np.abs(np.array(other.models) - fedavg.models).max() > 1e-4


def test_step_is_w_minus_eta_times_gradient_and_proximal_term() -> None:
    """SGD: w <- w - eta (g(w) + mu (w - x)) from w = x, on the batches of the contact."""
    clients = noisy(2, 3)
    log = run(FedProx(mu=0.7, step_size=0.1, local_steps=4), clients, [0, 1, 2] * 5, x0=1.0)
    x = np.ones(3)
    for round, model in enumerate(log.models):
        ends = []
        for client in clients:
            w = x
            for rows in client.batches(round, 4):
                w = w - 0.1 * (client.gradient(w, rows) + 0.7 * (w - x))
            ends.append(w)
        x = np.mean(ends, axis=0)
        close(model, x)


# -- stragglers --------------------------------------------------------------------------------------------------------
def drawn(algorithm: FedProx, rounds: int, seed: int = 0, members: tuple[int, ...] = (1, 3, 4, 6, 8)) -> list[dict]:
    """The epochs of each round's members, as their messages say."""
    server = algorithm.init_server(np.zeros(2), Clients(np.ones(9, int), seed=seed))
    told = []
    for _ in range(rounds):
        algorithm.begin_round(server, list(members))
        told.append({i: algorithm.message(server, i) for i in sorted(set(members))})
    assert all(m.work == 1 for round in told for m in round.values())  # a straggler is slow: it takes the whole round
    return [{i: int(m.numbers[0]) for i, m in round.items()} for round in told]


@pytest.mark.parametrize(("drop", "slow"), [(0.2, 1), (0.25, 1), (0.5, 3), (0.7, 3), (0.9, 5), (1.0, 5)])
def test_stragglers(drop: float, slow: int) -> None:
    """K - round(K (1 - drop_percent)) of the K members run 1 to E - 1 epochs, the others E; drawn anew each round.

    With 0.25 and 0.7 of five members 3.75 and 1.5 are rounded to 4 and 2, and not down to 3 and 1."""
    told = drawn(FedProx(local_epochs=20, drop_percent=drop), 400)
    short = [{i: e for i, e in round.items() if e < 20} for round in told]
    assert {len(round) for round in short} == {slow} and {len(round) for round in told} == {5}
    epochs = [e for round in short for e in round.values()]
    assert set(epochs) == set(range(1, 20))
    error = ((19**2 - 1) / 12 / len(epochs)) ** 0.5  # standard error of the mean of uniform draws from 1..19
    assert abs(np.mean(epochs) - 10) < 5 * error
    if slow < 5:  # every member is one now and then
        assert {i for round in short for i in round} == {1, 3, 4, 6, 8}


def test_stragglers_are_a_function_of_the_seed() -> None:
    algorithm = FedProx(local_epochs=20, drop_percent=0.5)
    assert drawn(algorithm, 20) == drawn(algorithm, 20) != drawn(algorithm, 20, seed=1)


def test_stragglers_run_what_they_are_told() -> None:
    """The epochs of the message are the local steps on full batches, and the model is that many prox steps."""
    clients = random_quadratics(3, 4)
    log = run(FedProx(mu=0.5, step_size=0.1, local_epochs=6, drop_percent=0.5), clients, list(range(4)) * 10)
    told = [message.numbers for _, message in log.sent[:40]]
    assert [u.local_steps for _, u in log.consumed] == [int(e) for (e,) in told] and len(set(told)) > 3
    x = np.zeros(3)
    for round, model in enumerate(log.models):
        ends = []
        for i, client in enumerate(clients):
            w = x
            for _ in range(int(told[4 * round + i][0])):
                w = w - 0.1 * (client.gradient(w) + 0.5 * (w - x))
            ends.append(w)
        x = np.mean(ends, axis=0)
        close(model, x)


def test_no_straggler_without_drop_percent() -> None:
    """drop_percent 0: the message has no number, and a client runs local_epochs or local_steps as ever."""
    for kind in ({"local_epochs": 3}, {"local_steps": 3}):
        log = run(FedProx(**kind), random_quadratics(3, 2), [0, 1])  # type: ignore[arg-type]
        assert [m.numbers for _, m in log.sent[:2]] == [(), ()] and [u.local_steps for _, u in log.consumed] == [3, 3]


# -- what every method must do -----------------------------------------------------------------------------------------
