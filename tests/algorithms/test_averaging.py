"""FedAvg, FedProx with its stragglers, FedNova, FedExP and MIFA against their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.base import Clients
from mpifl.algorithms.common.local_solver import Gd, Sarah, Sgd, Svrg
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedexp import FedExP
from mpifl.algorithms.fednova import FedNova
from mpifl.algorithms.fedprox import FedProx
from mpifl.algorithms.mifa import Mifa
from mpifl.config import read
from mpifl.errors import ConfigError
from mpifl.scheduling.clocks import VirtualClock
from mpifl.scheduling.delays import Fixed
from tests.algorithms.world import OPTIMIZERS, ByHand, World, in_rounds, noisy
from tests.mpi.cases import SMALL, intermittent, job
from tests.quadratic_runs import Quadratic, close, quadratics, random_quadratics, run

T1 = quadratics([1, 10], [1, -1])


# -- FedAvg ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "twice"),
    [
        ({"local_steps": 1, "weights": "samples"}, False),  # FedAvg.1: gradient descent on the weighted mean
        ({"cohort": 2, "step_weights": "samples"}, False),  # S-FedAvg: the plain mean of K models, step alpha s_i/S
        ({"cohort": 3, "weights": "samples"}, False),  # the members' weights n_k add up to 1
        ({"cohort": 3, "sampling": "samples"}, True),  # with replacement: a client drawn twice weighs 2/K
    ],
    ids=["gradient-descent", "s-fedavg", "samples", "replacement"],
)
def test_fedavg_by_hand(options: dict[str, Any], twice: bool) -> None:
    """x <- the weighted mean of the members' models after their local steps."""
    clients = random_quadratics(4, 4)
    algorithm = FedAvg(**{"step_size": 0.1, "local_steps": 3, **options})
    log, members = in_rounds(algorithm, clients, 10)
    assert any(len(set(m)) < len(m) for m in members) == twice
    x = np.zeros(3)
    for model, drawn in zip(log.models, members, strict=True):
        eta = {i: 0.1 * (clients[i].share if "step_weights" in options else 1) for i in drawn}
        ends = [clients[i].steps(x, eta[i], algorithm.local_steps) for i in drawn]
        x = np.average(ends, axis=0, weights=[clients[i].samples if "weights" in options else 1 for i in drawn])
        close(model, x)


# -- FedProx -----------------------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize(
    "work", [{"local_steps": 4}, {"local_epochs": 3}, {"local_epochs": 6, "drop_percent": 0.5}], ids=str
)
def test_fedprox_by_hand(work: dict[str, Any]) -> None:
    """SGD: w <- w - eta (g(w) + mu (w - x)) from w = x, on the batches of the contact; for as many epochs as the
    message tells, where there are stragglers, else as ever."""
    clients = noisy(2, 4)
    log = run(FedProx(mu=0.7, step_size=0.1, **work), clients, [0, 1, 2, 3] * 5, x0=1.0)
    told = [message.numbers for _, message in log.sent]
    assert len({*told}) > 3 if "drop_percent" in work else not any(told)
    x = np.ones(3)
    for round, model in enumerate(log.models):
        ends = []
        for i, client in enumerate(clients):
            (epochs,) = told[4 * round + i] or [work.get("local_epochs")]
            w, batches = x, client.batches(round, 4, epochs and int(epochs))
            for rows in batches:
                w = w - 0.1 * (client.gradient(w, rows) + 0.7 * (w - x))
            ends.append(w)
            assert log.consumed[4 * round + i][1].local_steps == len(batches)
        x = np.mean(ends, axis=0)
        close(model, x)


MEMBERS = [1, 3, 4, 6, 8]


def drawn(algorithm: FedProx, rounds: int, seed: int = 0) -> list[dict]:
    """The epochs of each round's members, as their messages say."""
    server = algorithm.init_server(np.zeros(2), Clients(np.ones(9, int), seed=seed))
    told = []
    for _ in range(rounds):
        algorithm.begin_round(server, MEMBERS)
        told.append({i: algorithm.message(server, i) for i in MEMBERS})
    assert all(m.work == 1 for round in told for m in round.values())  # a straggler is slow: it takes the whole round
    return [{i: int(m.numbers[0]) for i, m in round.items()} for round in told]


@pytest.mark.parametrize(("drop", "slow"), [(0.2, 1), (0.25, 1), (0.5, 3), (0.7, 3), (0.9, 5), (1.0, 5)])
def test_stragglers_are_drawn_anew_each_round_and_run_fewer_epochs(drop: float, slow: int) -> None:
    """K - round(K (1 - drop_percent)) of the K members run 1 to E - 1 epochs, the others E; drawn anew each round, by
    the seed.

    With 0.25 and 0.7 of five members 3.75 and 1.5 are rounded to 4 and 2, and not down to 3 and 1."""
    algorithm = FedProx(local_epochs=20, drop_percent=drop)
    told = drawn(algorithm, 400)
    assert drawn(algorithm, 20) == told[:20] != drawn(algorithm, 20, seed=1)
    short = [{i: e for i, e in round.items() if e < 20} for round in told]
    assert {len(round) for round in short} == {slow} and {len(round) for round in told} == {5}
    epochs = [e for round in short for e in round.values()]
    assert set(epochs) == set(range(1, 20))
    error = ((19**2 - 1) / 12 / len(epochs)) ** 0.5  # standard error of the mean of uniform draws from 1..19
    assert abs(np.mean(epochs) - 10) < 5 * error
    assert {i for round in short for i in round} == {*MEMBERS}  # every member is one now and then


# -- server optimisers of FedAvg; those of FedBuff are in test_schedules.py -------------------------------
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_server_optimizers_by_hand(optimizer: Any) -> None:
    """d = mean y_i - x of a round, in several dimensions, from a start other than 0."""
    clients = random_quadratics(1, 4)
    algorithm = FedAvg(step_size=0.1, local_steps=3, server_step=0.3, optimizer=optimizer)
    log = run(algorithm, clients, list(range(4)) * 6, x0=1.0)
    x, by_hand = np.ones(3), ByHand(optimizer, 3)
    for model in log.models:
        x = x + by_hand.change(np.mean([c.steps(x, 0.1, 3) for c in clients], axis=0) - x, 0.3)
        close(model, x, 1e-10)


# -- FedNova -----------------------------------------------------------------------------------------------------------
class Uneven(Quadratic):
    """As many batches an epoch as it has samples."""

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list[slice]:
        return [slice(None)] * (epochs * self.samples if epochs else steps)


@pytest.mark.parametrize(("kind", "beta", "steps"), [(Sgd, 0.9, 6), (Gd, 0.5, 1), (Gd, 0.1, 13)])
def test_weight_of_momentum(kind: type[Sgd], beta: float, steps: int) -> None:
    """NOVA.5, NOVA.6: a client sends a_i in closed form; momentum .9 and 6 steps: 17.82969."""
    log = run(FedNova(step_size=0.01, local_steps=steps, solver=kind(momentum=beta)), T1, [0, 1])
    a = (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)
    close([update.numbers[0] for _, update in log.consumed], [a] * 2)
    assert steps != 6 or abs(a - 17.82969) < 1e-5


def test_weight_of_a_proximal_term() -> None:
    """NOVA.7: A proximal term: a_i = (1 - (1 - eta mu)^tau)/(eta mu), what gradients of 1 add up to; tau_eff: of the
    tau_i."""
    log = run(FedNova(step_size=0.05, local_steps=6, mu=2.0), T1, [0, 1])
    a = (1 - (1 - 0.05 * 2) ** 6) / (0.05 * 2)
    y = 0.0
    for _ in range(6):
        y += 1 - 0.05 * 2 * y
    close([y, *(update.numbers[0] for _, update in log.consumed)], a)
    close(log.x, -6 * np.mean([update.vectors[0] for _, update in log.consumed], axis=0) / a)
    with pytest.raises(ValueError, match=r"the local step 1 times mu is 2: a_i is known below 2 alone"):
        World(FedNova(step_size=1.0, local_steps=2, mu=2.0), T1, np.zeros(1)).contact(0)


@pytest.mark.parametrize("tau_eff", ["mean", 2.5])
@pytest.mark.parametrize("work", [{"steps": [2, 6, 10]}, {"local_epochs": 2}], ids=str)
def test_fednova_by_hand(work: dict[str, Any], tau_eff: Any) -> None:
    """Unequal steps, or epochs of unequal shards, and weights, a cohort of two, a number for tau_eff."""
    clients = [Uneven(o.a, o.c, s, s / 9, 3) for o, s in zip(random_quadratics(2, 3), (1, 3, 5), strict=True)]
    rounds = [[0, 2], [1, 2], [0, 1]]
    log = run(FedNova(step_size=0.1, weights="samples", tau_eff=tau_eff, **work), clients, x0=1.0, rounds=rounds)
    x, models, tau = np.ones(3), [], [2, 6, 10]
    for members in rounds:
        s = sum(clients[i].samples for i in members)
        p = {i: clients[i].samples / s for i in members}
        factor = sum(p[i] * tau[i] for i in members) if tau_eff == "mean" else tau_eff
        x = x - factor * sum(p[i] * (x - clients[i].steps(x, 0.1, tau[i])) / tau[i] for i in members)
        models.append(x)
    close(log.models, models, 1e-10)
    close([(u.local_steps, *u.numbers) for _, u in log.consumed], [(tau[i], tau[i]) for m in rounds for i in m])
    if "steps" in work:
        assert all(m.work == tau[i] for i, m in log.sent)


# -- FedExP ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_fedexp_by_hand(weights: Any) -> None:
    """eta_g from the members' updates, two of four clients a round; the output is the mean of the last two x."""
    clients = random_quadratics(1, 4)
    sets = [[0, 1], [1, 3], [2, 3], [0, 2], [1, 2]]
    log = run(FedExP(step_size=0.2, local_steps=3, epsilon=1e-4, weights=weights), clients, rounds=sets, x0=1.0)
    x, models, etas = np.ones(3), [np.ones(3)], []
    for members in sets:
        w = np.array([clients[i].samples if weights == "samples" else 1 for i in members])
        D = np.array([x - clients[i].steps(x, 0.2, 3) for i in members])
        mean = w @ D / w.sum()
        etas.append(max(1.0, float(w @ (D * D).sum(1)) / w.sum() / (2 * (mean @ mean + 1e-4))))
        x = x - etas[-1] * mean
        models.append(x)
    close(log.models, models[1:], 1e-10)
    assert max(etas) > 1.05
    close(FedExP().model(log.server), (models[-1] + models[-2]) / 2, 1e-10)
    close(FedExP(output="last").model(log.server), models[-1], 1e-10)


@pytest.mark.parametrize(("count", "eta", "x"), [(1, 3.207871, -0.958769), (3, 18.592218, 1.003139)])
def test_fedexp_in_numbers(count: int, eta: float, x: float) -> None:
    """EXP.3, EXP.4, EXP.5, EXP.6: T1, epsilon 1e-3, x_0 = 0: eta_g and x of rounds 1 and 3."""
    log = run(FedExP(step_size=0.05, local_steps=10, epsilon=1e-3), T1, [0, 1] * count)
    close([log.server.eta_g, *log.x], [eta, x], 1e-6)


def test_no_update_at_all() -> None:
    """Clients at their common optimum, epsilon 0: eta_g = 1, nothing moves."""
    here = World(FedExP(step_size=0.1, epsilon=0.0), quadratics([1, 2], [1, 1]), np.ones(1))
    here.round([0, 1])
    assert here.server.x == 1 and here.server.eta_g == 1


# -- MIFA --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("schedule", "fill"), [("constant", "wait"), ("inverse", "wait"), ("constant", "zero")])
def test_mifa_by_hand(schedule: Any, fill: Any) -> None:
    """Two of four clients a round after one of all; the table has updates over their factors, the step the present: eta
    over the number of rounds. fill: zero has cohorts from the first round, D_i = 0 until client i is heard."""
    clients = random_quadratics(1, 4)
    rng = np.random.default_rng(0)
    rounds = [[0, 1, 2, 3], *(sorted(rng.choice(4, 2, replace=False).tolist()) for _ in range(9))]
    rounds = rounds[fill == "zero" :]
    log = run(Mifa(step_size=0.2, local_steps=2, step_schedule=schedule, fill=fill), clients, rounds=rounds, x0=1.0)
    x, table, models = np.ones(3), np.zeros((4, 3)), []
    for t, members in enumerate(rounds):
        factor = 1 if schedule == "constant" else 1 / (t + 1)
        for i in members:
            table[i] = (x - clients[i].steps(x, 0.2 * factor, 2)) / factor
        x = x - factor * table.sum(0) / 4
        models.append(x)
    close(log.models, models, 1e-10)
    drawn = Mifa(cohort=2, fill=fill).participation(Clients(np.ones(5, int)), 0)
    assert [len(drawn.sample(r)) for r in range(4)] == [5 if fill == "wait" else 2, 2, 2, 2]


def test_the_sum_is_the_table() -> None:
    """After every n-th update the sum is computed anew: no rounding error lasts."""
    log = run(Mifa(step_size=0.1), random_quadratics(4, 3), rounds=[[0, 1, 2], *([[0], [1], [2]] * 7)], x0=1.0)
    assert np.array_equal(log.server.total, sum(log.server.table.values()))


def test_a_round_ends_without_those_that_have_not_answered() -> None:
    """Rounds of 1 s. Client 1's update of x_0 arrives in round 2, and it is answered then; the next in round 4."""

    def by_period(fill: Any, updates: int) -> list:
        clock = VirtualClock(Fixed(seconds=[0.5, 1.5]).contact_times(2, 0))
        algorithm = Mifa(fill=fill, step_size=0.05, local_steps=3, period=1.0)
        return run(algorithm, T1, clock=clock, stop_updates=updates).models

    def D(i: int, x: np.ndarray) -> np.ndarray:
        return x - T1[i].steps(x, 0.05, 3)

    x = [np.zeros(1)]
    for own, other in ((0, None), (1, 0), (2, 0), (3, 2)):
        x.append(x[-1] - (D(0, x[own]) + (0 if other is None else D(1, x[other]))) / 2)
    close(by_period("zero", 7), x[1:5])
    wait = by_period("wait", 6)
    close(wait[:2], [x[0], x[0] - (D(0, x[0]) + D(1, x[0])) / 2])


def test_rounds_by_time_need_every_client() -> None:
    values = job({"name": "mifa", "period": 1.0}, SMALL, clock=intermittent(cohort_from="available"))
    with pytest.raises(ConfigError, match="the algorithm is mifa, and its rounds need every client; expected all"):
        read.load({"name": "x", **values})
