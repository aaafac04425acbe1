"""AsyPFL against its formulas, its fixed points, and its theorems by numerical minimisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from mpifl.algorithms.asypfl import AsyPFL
from mpifl.algorithms.base import Clients, Message, State
from mpifl.algorithms.common.indicators import Decayed, Equal, Given, Measured, Theorem2, Theorem4
from mpifl.errors import ConfigError
from mpifl.scheduling.clocks import VirtualClock
from tests.algorithms.world import Passes
from tests.quadratic_runs import Log, Quadratic, close, quadratics, random_quadratics, run

START = np.array([1.0, -2.0, 0.5])
THEOREM = {"mu": 0.2, "L": 3.0, "epsilon": 1e-3, "chi": 2.0, "sigma": 1.5, "gap": 0.3, "radius": 4.0}


@dataclass
class Square(Quadratic):
    """A quadratic whose Fisher information, for this test's sake, is x^2; tells where it was asked for."""

    asked: list = field(default_factory=list)

    def fisher(self, x: np.ndarray) -> np.ndarray:
        self.asked.append(x.copy())
        return x**2


def plain(step: float = 0.1, **more: object) -> AsyPFL:
    kinds = {"indicators": Equal(), "elastic": 0.0, **more}
    return AsyPFL(step_size=step, **kinds)  # type: ignore[arg-type]


def personal(log: Log) -> np.ndarray:
    assert log.worker
    return np.array([state.beta for state in log.worker.states.values()])


def sent(log: Log) -> list[list[float]]:
    """E_k of the messages of each client, in order."""
    return [[m.numbers[0] for j, m in log.sent if j == i] for i in range(len(log.server.p))]


# -- the shared model --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_rounds_by_formula(gamma: float) -> None:
    """ASYPFL.1: Synchronous, equal E_k: omega <- sum p^k G_k^E(omega), FedAvg weighted by samples; the rate is
    eta/(1+gamma tau), tau the round."""
    clients = random_quadratics(1, 4)
    algorithm = plain(0.1, mode="synchronous", local_steps=3, elastic=0.7, step_schedule=Decayed(gamma=gamma))
    log = run(algorithm, clients, [0, 1, 2, 3] * 12, x0=START)
    x = START
    for tau, model in enumerate(log.models):
        x = sum(o.share * o.steps(x, 0.1 / (1 + gamma * tau), 3) for o in clients)
        close(model, x)


def test_rounds_of_a_subset_by_formula() -> None:
    """omega <- omega + sum over k in S^tau of p^k (omega_k - omega), rule (4); the others keep omega_k and beta_k."""
    clients = random_quadratics(1, 4)
    algorithm = plain(0.1, mode="synchronous", cohort=2, local_steps=3, elastic=0.7)
    drawn = [algorithm.participation(Clients(np.ones(4)), seed=0).sample(t) for t in range(12)]
    assert all(len(set(members)) == 2 for members in drawn) and {i for members in drawn for i in members} == {
        0,
        1,
        2,
        3,
    }
    log = run(algorithm, clients, [i for members in drawn for i in members], x0=START)
    x = START
    for members, model in zip(drawn, log.models, strict=True):
        x = x + sum(clients[i].share * (clients[i].steps(x, 0.1, 3) - x) for i in members)
        close(model, x)
    assert [i for i, _ in log.consumed] == [i for members in drawn for i in members]


@pytest.mark.parametrize("more", [{"cohort": 5, "mode": "synchronous"}, {"cohort": 2}])
def test_a_subset_that_cannot_be_is_refused(more: dict) -> None:
    with pytest.raises(ConfigError, match="cohort"):
        plain(**more).validate(4)


def test_asynchronous_rule() -> None:
    """omega <- omega + p^k (G_k^{pi_k E}(omega^{r_k}) - omega^{r_k}) at each upload, r_k the version it was sent."""
    clients = random_quadratics(2, 3)
    order = [0, 1, 0, 2, 0, 1, 1, 2, 0, 0]
    algorithm = plain(0.1, local_steps=2, indicators=Given(values=[1, 3, 2]), step_schedule=Decayed(gamma=0.2))
    log = run(algorithm, clients, order, x0=START)
    x, had = START, [(START, 0)] * 3
    for version, (i, model) in enumerate(zip(order, log.models, strict=True), 1):
        base, tau = had[i]
        end = clients[i].steps(base, 0.1 / (1 + 0.2 * tau), 2 * [1, 3, 2][i])
        x = x + clients[i].share * (end - base)
        close(model, x)
        had[i] = x, version
    assert [row[4] for row in log.updates] == [2 * [1, 3, 2][i] for i in order]
    assert {(i, m.work) for i, m in log.sent} == {(0, 1), (1, 3), (2, 2)}


def test_local_epochs() -> None:
    """E_k = pi_k E epochs a contact, of as many batches as the client has; the elastic term sees each batch's step."""
    samples, pi, E, eta, delta = [2, 5], [3, 2], 2, 0.03, 0.05
    clients = [Passes(o.a, o.c, s, s / 7, 2) for o, s in zip(random_quadratics(8, 2), samples, strict=True)]
    kinds = {"personal_step": delta, "elastic": 0.6, "fisher_steps": 1, "local_steps": 9}
    log = run(plain(eta, local_epochs=E, indicators=Given(values=pi), **kinds), clients, [0, 1], x0=START)
    assert [(i, m.numbers[0], m.work) for i, m in log.sent[:2]] == [(0, 6.0, 3), (1, 4.0, 2)]
    assert [u.local_steps for _, u in log.consumed] == [3 * 2 * 2, 2 * 2 * 5]
    x, betas = START, []
    for i, (o, s) in enumerate(zip(clients, samples, strict=True)):
        omega, beta = START, START
        for j in range(pi[i] * E * s):
            noise = (-1) ** (j % s) / (1 + j % s)
            omega = omega - eta * (o.matrix @ (omega - o.c) + noise)
            beta = beta - delta * (o.matrix @ (beta - o.c) + noise + 0.6 * (beta - omega) * np.diag(o.matrix))
        betas.append(beta)
        x = x + s / 7 * (omega - START)
        close(log.models[i], x)
    algorithm = plain(eta, local_epochs=E, indicators=Given(values=pi), **kinds)
    for i, o in enumerate(clients):
        state = algorithm.init_client(START, i)
        algorithm.train(state, log.sent[i][1], o)
        close(state.beta, betas[i])


# -- personal models ---------------------------------------------------------------------------------------------------


def coupled_steps_by_hand(o: Square, eta: float, delta: float, asked: Sequence[int], **options: object) -> None:
    """omega_k steps by eta first, then beta_k by delta, with the new omega_k and h there, or h of an earlier step."""
    state = State(beta=np.array([3.0, 2.0]), steps=0)
    message = Message((np.array([0.5, 0.25]),), (5.0, 0.1, 0.5), version=4)  # gamma = 0.5: both rates are a third
    update = plain(0.1, elastic=0.8, **options).train(state, message, o)
    omega, beta, points = message.vectors[0], np.array([3.0, 2.0]), []
    for step in range(5):
        omega = omega - eta / 3 * o.matrix @ (omega - o.c)
        if step in asked:
            points.append(omega)
        beta = beta - delta / 3 * (o.matrix @ (beta - o.c) + 0.8 * (beta - omega) * points[-1] ** 2)
    close(update.vectors[0], omega - message.vectors[0])
    close(state.beta, beta)
    close(o.asked, points)


@pytest.mark.parametrize(("every", "asked"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (None, [0])])
def test_the_coupled_steps(every: int | None, asked: list[int]) -> None:
    o = Square(np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([1.0, -1.0]))
    schedule = Decayed(gamma=0.5)
    coupled_steps_by_hand(o, 0.1, 0.05, asked, personal_step=0.05, fisher_steps=every, step_schedule=schedule)


@pytest.mark.parametrize("personal_step", [None, 0.05])
@pytest.mark.parametrize(("kind", "factor"), [("relative", 0.5), ("samples", 0.25), ("uniform", 0.5)])
def test_step_weights(kind: str, factor: float, personal_step: float | None) -> None:
    """They are a factor on omega's step; beta_k steps by delta, or by eta as it is. Client 0 has 1 of 4 rows, n = 2."""
    o = Square(np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([1.0, -1.0]), 1, 0.25, 2)
    steps = {"step_weights": kind, "personal_step": personal_step, "fisher_steps": 1}
    coupled_steps_by_hand(o, 0.1 * factor, personal_step or 0.1, range(5), **steps)


# -- indicators and rates ----------------------------------------------------------------------------------------------
def test_whole_ratios_of_indicators_are_kept() -> None:
    """ASYPFL.4: The least q_k has pi = 1, and whole ratios are kept, although c/(g p) is rounded: 1e-9 before the
    floor."""
    rng = np.random.default_rng(6)
    short = 0
    for _ in range(500):
        n = int(rng.integers(2, 8))
        g, p = rng.uniform(0.01, 3, n), rng.dirichlet(np.ones(n))
        ratio = rng.integers(1, 30, n)
        ratio[rng.integers(n)] = 1
        c = 0.37 * ratio * g * p
        pi = Measured(most=None).updated(np.ones(n), p, g, c, 5)
        assert pi.tolist() == ratio.tolist()
        q = c / (g * p)
        short += np.floor(q / q.min()).tolist() != ratio.tolist()
    assert short > 20  # what happens without it


def test_measured_indicators_have_a_bound_and_wait_for_a_measurement() -> None:
    nan, ones = np.nan, np.ones(4)
    p, g = ones / 4, np.array([1.0, 0.5, nan, 1.0])
    c = np.array([1.0, 2.5, nan, 70.0])
    assert Measured().updated(ones, p, g, c, 1).tolist() == [1, 5, 1, 10]
    assert Measured(most=None).updated(ones, p, g, c, 1).tolist() == [1, 5, 1, 70]
    assert Measured().updated(ones, p, nan * ones, nan * ones, 1).tolist() == [1, 1, 1, 1]
    assert Measured().updated(ones, p, ones, 0 * ones, 1).tolist() == [1, 1, 1, 1]  # no exchange takes any time


def test_measured_indicators_follow_the_clock() -> None:
    """dT^g = 0.5, 1, 2 s a step, dT^c = 1, 6, 1 s, p = 1/4, 1/4, 1/2: q = 8, 24, 1, so that in the end
    E_k = (8, 24, 1) E; a contact computes for E_k dT^g."""
    clients = quadratics([1, 1, 1], [0, 1, 2], samples=[1, 1, 2])
    E, g, c = 2, [0.5, 1.0, 2.0], [1.0, 6.0, 1.0]
    clock = VirtualClock(lambda i, round: 0.0, lambda i, round, work: (work * E * g[i], c[i]))
    algorithm = plain(0.01, local_steps=E, indicators=Measured(most=None))
    assert algorithm.needs_timings()
    assert not plain().needs_timings()
    log = run(algorithm, clients, clock=clock, stop_time=400.0)
    first = [[2, 2, 2, 16], [2, 48, 48, 48], [2, 2, 2, 2]]  # client 0 is back at 2 and 4 s, client 2 at 5 s, 1 at 8 s
    assert [e[:4] for e in sent(log)] == first
    assert [e[-1] for e in sent(log)] == [16, 48, 2]
    close(log.server.g, g)
    close(log.server.c, c)


def test_the_epochs_of_theorem_3_minimise_its_bound() -> None:
    """ASYPFL.6: Theorem 3's E minimises T_min/E; T_min is written down here anew. Brent's method gives six digits."""
    theorem = Theorem4(**THEOREM)  # type: ignore[arg-type]
    mu, L, eps, chi, sigma, gap, r = THEOREM.values()
    p, pi = np.array([0.5, 0.3, 0.2]), np.array([1.0, 4.0, 2.0])

    def steps(E: float) -> float:
        noise = np.sum(p**2 * sigma**2) + 6 * L * gap + 8 * chi**2 * E**2 * np.sum(p * pi**2)
        return 2 * L / (mu * eps) * (noise / mu + 2 * L * r**2)

    found = minimize_scalar(lambda t: steps(np.exp(t)) / np.exp(t), bracket=(-2, 3), tol=1e-12)
    close(theorem.epochs(p, pi), np.exp(found.x), 1e-6)


def test_theorem_4_has_a_bound() -> None:
    """pi_k = Z eps mu^2/(32 L E^3 chi^2 p) c/g to the power 1/3, rounded down, at least 1 and at most `most`."""
    mu, L, eps, chi, sigma, gap, r = THEOREM.values()
    p, g, c, E = np.array([0.5, 0.3, 0.2]), np.array([1.0, 0.05, 1e3]), np.array([60.0, 400.0, 1e-3]), 2
    A = 2 * L / (mu * eps) * ((p @ p * sigma**2 + 6 * L * gap) / mu + 2 * L * r**2)
    B = 16 * L * chi**2 / (mu**2 * eps)
    roots = np.cbrt((A + B * E**2 * (1 - p)) / (2 * B * E**3 * p) * c / g)  # Z_k has the others' pi = 1
    assert roots[0] > 2 and roots[1] > 13 and roots[2] < 1

    def pi(**more: int | None) -> list[float]:
        return Theorem4(**THEOREM, **more).updated(np.ones(3), p, g, c, E).tolist()  # type: ignore[arg-type]

    whole = [np.floor(roots[0]), np.floor(roots[1]), 1.0]
    assert pi(most=None) == whole
    assert pi(most=13) == [min(whole[0], 13), 13, 1]
    assert pi() == [min(whole[0], 10), 10, 1]
    assert pi(most=1) == [1, 1, 1]
    g[0] = 1e-300  # a root beyond all numbers of epochs
    assert pi(most=None)[0] == 2**31


def test_theorem_2() -> None:
    """eta_tau = 2/(mu (gamma + tau)), gamma = max(8 L/mu, max_k pi_k E); tau counts the client's own local steps, and
    goes on from one contact to the next."""
    o = quadratics([1.0, 1.0], [2.0, 2.0])
    for pi, gamma in ([1, 7], 40.0), ([1, 30], 90.0):  # 8 L/mu = 40; the longest contact 21 or 90 steps
        algorithm = plain(step_schedule=Theorem2(mu=0.5, L=2.5), local_steps=3, indicators=Given(values=pi))
        order = [0, 1, 0, 0]
        log = run(algorithm, o, order)
        x, base, taken = np.zeros(1), [np.zeros(1), np.zeros(1)], [0, 0]
        for i, model in zip(order, log.models, strict=True):
            omega = base[i]
            for _ in range(3 * pi[i]):
                omega = omega - 2 / (0.5 * (gamma + taken[i])) * (omega - 2)
                taken[i] += 1
            x = x + 0.5 * (omega - base[i])
            base[i] = x
            close(model, x)


@pytest.mark.parametrize("delta", [None, 0.02])
def test_theorem_2_and_the_personal_rate(delta: float | None) -> None:
    """delta_tau = 2/(mu (gamma + tau)), or delta gamma/(gamma + tau) where delta is given; gamma = 8 L/mu = 40.
    `step_size` is not read."""
    clients = random_quadratics(9, 3)
    algorithm = plain(99.0, step_schedule=Theorem2(mu=0.5, L=2.5), local_steps=3, personal_step=delta)
    log = run(algorithm, clients, [0, 1, 0, 2, 2], x0=START)
    betas, taken = [START] * 3, [0] * 3
    for i, _ in log.sent:
        for _ in range(3):
            rate = 2 / (0.5 * (40 + taken[i])) if delta is None else delta * 40 / (40 + taken[i])
            betas[i] = clients[i].steps(betas[i], rate, 1)
            taken[i] += 1
    close(personal(log), betas)
