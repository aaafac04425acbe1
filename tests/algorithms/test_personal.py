"""AsyPFL, APFL and FedAMP against their formulas and theorems, the latter by numerical minimisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from mpifl.algorithms.apfl import APFL
from mpifl.algorithms.asypfl import AsyPFL
from mpifl.algorithms.base import Clients, Message, State, Update
from mpifl.algorithms.common.indicators import Decayed, Equal, Given, Measured, Theorem2, Theorem4
from mpifl.algorithms.common.local_solver import Decay, Sgd
from mpifl.algorithms.fedamp import FedAMP
from mpifl.scheduling.clocks import VirtualClock
from tests.algorithms.world import Passes, World, by_arrivals, in_rounds
from tests.quadratic_runs import Quadratic, close, quadratics, random_quadratics, run

START = np.array([1.0, -2.0, 0.5])
THEOREM = {"mu": 0.2, "L": 3.0, "epsilon": 1e-3, "chi": 2.0, "sigma": 1.5, "gap": 0.3, "radius": 4.0}


@dataclass
class Square(Quadratic):
    """A quadratic whose Fisher information, for this test's sake, is x^2; tells where it was asked for."""

    asked: list = field(default_factory=list)

    def fisher(self, x: np.ndarray) -> np.ndarray:
        self.asked.append(x.copy())
        return x**2


def plain(step: float = 0.1, **more: Any) -> AsyPFL:
    return AsyPFL(step_size=step, **{"indicators": Equal(), "elastic": 0.0, **more})


# -- AsyPFL ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("gamma", "cohort"), [(0.0, None), (0.5, None), (0.5, 2)])
def test_rounds_by_formula(gamma: float, cohort: int | None) -> None:
    """ASYPFL.1: Synchronous, equal E_k: omega <- omega + sum over k in S^tau of p^k (G_k^E(omega) - omega), rule (4):
    of all clients, FedAvg weighted by samples. The rate is eta/(1+gamma tau), tau the round."""
    clients = random_quadratics(1, 4)
    algorithm = plain(mode="synchronous", cohort=cohort, local_steps=3, elastic=0.7, step_schedule=Decayed(gamma=gamma))
    log, drawn = in_rounds(algorithm, clients, 12, x0=START)
    assert all(len({*members}) == (cohort or 4) for members in drawn) and {i for m in drawn for i in m} == {0, 1, 2, 3}
    x = START
    for tau, (members, model) in enumerate(zip(drawn, log.models, strict=True)):
        x = x + sum(clients[i].share * (clients[i].steps(x, 0.1 / (1 + gamma * tau), 3) - x) for i in members)
        close(model, x)
    assert log.order == [i for members in drawn for i in members]


@pytest.mark.parametrize("delta", [None, 0.02])
@pytest.mark.parametrize(
    ("schedule", "slowest", "gamma"),
    [(Decayed(gamma=0.2), 3, 5.0), (Theorem2(mu=0.5, L=2.5), 7, 40.0), (Theorem2(mu=0.5, L=2.5), 30, 90.0)],
    ids=["decayed", "theorem-2", "theorem-2-long"],
)
def test_arrivals_by_formula(schedule: Any, slowest: int, gamma: float, delta: float | None) -> None:
    """omega <- omega + p^k (G_k^{pi_k E}(omega^{r_k}) - omega^{r_k}) at each upload, r_k the version it was sent. Rates
    are eta/(1 + tau/gamma), and so for beta_k with delta. Algorithm 1: tau is r_k. Theorem 2: tau counts the client's
    own local steps, from one contact to the next; eta = 2/(mu gamma), gamma = max(8 L/mu, max_k pi_k E): 8 L/mu = 40,
    the longest contact is of 21 or 90 steps."""
    clients, pi = random_quadratics(2, 3), [1, slowest, 2]
    order = [0, 1, 0, 2, 0, 1, 1, 2, 0, 0]
    indicators, own_steps = Given(values=pi), isinstance(schedule, Theorem2)
    algorithm = plain(local_steps=3, indicators=indicators, step_schedule=schedule, personal_step=delta)
    log = run(algorithm, clients, order, x0=1.0)
    eta = 2 / (0.5 * gamma) if own_steps else 0.1
    taken, version = [0] * 3, 0

    def rates(i: int, sent: int) -> np.ndarray:
        taus = taken[i] + np.arange(3 * pi[i]) if own_steps else np.full(3 * pi[i], sent)
        taken[i] += 3 * pi[i]
        return 1 / (1 + taus / gamma)

    def rule(i: int, base: np.ndarray, tau: int, x: np.ndarray) -> np.ndarray:
        nonlocal version
        end = base
        for rate in rates(i, version - tau):
            end = clients[i].steps(end, eta * rate)
        version += 1
        return x + clients[i].share * (end - base)

    close(log.models, by_arrivals(order, 3, rule, "after"))
    assert [row[4] for row in log.updates] == [3 * pi[i] for i in order]
    betas, taken = [np.ones(3)] * 3, [0] * 3
    for i, message in log.sent:
        assert message.work == pi[i]
        for rate in rates(i, message.version):
            betas[i] = clients[i].steps(betas[i], (delta or eta) * rate)
    assert log.worker
    close([log.worker.states[i].beta for i in range(3)], betas)


def test_the_indicator_multiplies_the_local_epochs_of_a_contact() -> None:
    """E_k = pi_k E epochs a contact, of as many batches as the client has; the elastic term sees each batch's step."""
    samples, pi, eta, delta = [2, 5], [3, 2], 0.03, 0.05
    clients = [Passes(o.a, o.c, s, s / 7, 2) for o, s in zip(random_quadratics(8, 2), samples, strict=True)]
    algorithm = plain(eta, local_epochs=2, local_steps=9, indicators=Given(values=pi), personal_step=delta, elastic=0.6,
                      fisher_steps=1)  # fmt: skip
    server = algorithm.init_server(START, Clients(np.array(samples)))
    for i, (o, s) in enumerate(zip(clients, samples, strict=True)):
        state, message = algorithm.init_client(START, i), algorithm.message(server, i)
        update = algorithm.train(state, message, o)
        assert (message.numbers[0], message.work, update.local_steps) == (2 * pi[i], pi[i], 2 * pi[i] * s)
        omega = beta = START
        for j in range(2 * pi[i] * s):
            noise = (-1) ** (j % s) / (1 + j % s)
            omega = omega - eta * (o.matrix @ (omega - o.c) + noise)
            beta = beta - delta * (o.matrix @ (beta - o.c) + noise + 0.6 * (beta - omega) * np.diag(o.matrix))
        close(update.vectors[0], omega - START)
        close(state.beta, beta)


EVERY = range(5)


@pytest.mark.parametrize(("kind", "factor", "delta", "every", "asked"), [
    ("one", 1, 0.05, 1, EVERY), ("one", 1, 0.05, 2, [0, 2, 4]), ("one", 1, 0.05, None, [0]),
    ("relative", 0.5, None, 1, EVERY), ("samples", 0.25, 0.05, 1, EVERY), ("uniform", 0.5, None, 1, EVERY),
])  # fmt: skip
def test_the_coupled_steps(kind: Any, factor: float, delta: float | None, every: Any, asked: Sequence[int]) -> None:
    """omega_k steps by eta first, then beta_k by delta, or by eta as it is, with the new omega_k and h there, or h of
    an earlier step. Step weights are a factor on omega's step alone. Client 0 has 1 of 4 rows, n = 2."""
    o = Square(np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([1.0, -1.0]), 1, 0.25, 2)
    algorithm = plain(elastic=0.8, step_weights=kind, personal_step=delta, fisher_steps=every)
    state = State(beta=np.array([3.0, 2.0]), steps=0)
    message = Message((np.array([0.5, 0.25]),), (5.0, 0.1, 0.5), version=4)  # gamma = 0.5: both rates are a third
    update = algorithm.train(state, message, o)
    omega, beta, points = message.vectors[0], np.array([3.0, 2.0]), []
    for step in range(5):
        omega = omega - 0.1 * factor / 3 * o.matrix @ (omega - o.c)
        if step in asked:
            points.append(omega)
        beta = beta - (delta or 0.1) / 3 * (o.matrix @ (beta - o.c) + 0.8 * (beta - omega) * points[-1] ** 2)
    close(update.vectors[0], omega - message.vectors[0])
    close(state.beta, beta)
    close(o.asked, points)


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
    sent = [[m.numbers[0] for j, m in log.sent if j == i] for i in range(3)]
    assert [e[:4] for e in sent] == first and [e[-1] for e in sent] == [16, 48, 2]
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


# -- APFL --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("adapt", "adapting", "kind", "start", "decay"),
    [("step", 4, "one", 0.4, 0.0), ("round", 1, "one", 0.4, 0.0), ("never", 0, "one", 1.0, 0.0),
     ("step", 4, "relative", 0.4, 0.5)],
)  # fmt: skip
def test_alpha_steps_along_the_derivative(adapt: Any, adapting: int, kind: Any, start: float, decay: float) -> None:
    """APFL.3: alpha steps along the derivative of f(alpha v + (1 - alpha) w), here by central differences, exact for
    quadratics: at every local step, or at a contact's first. relative: w_i, v_i and alpha_i step by eta n s_i/S, which
    decays for all three.
    APFL.2: with alpha = 1 v_i is gradient descent on f_i alone."""
    for o in random_quadratics(5, 3):
        solver = Sgd(decay=Decay(steps=decay) if decay else None)
        algorithm = APFL(adapt=adapt, step_size=0.05, local_steps=4, step_weights=kind, solver=solver)
        state = State(v=np.array([2.0, 1.0, -1.0]), w=START, alpha=start)
        update = algorithm.train(state, Message((START,)), o)
        v, w, alpha = np.array([2.0, 1.0, -1.0]), START, start
        for step in range(4):
            eta = 0.05 * (3 * o.share if kind == "relative" else 1) / (1 + decay * step)
            more, less = (o.loss(share * v + (1 - share) * w) for share in (alpha + 0.5, alpha - 0.5))
            mixed = alpha * v + (1 - alpha) * w
            v, w = v - eta * alpha * o.matrix @ (mixed - o.c), o.steps(w, eta)
            if step < adapting:
                alpha = min(max(alpha - eta * (more - less), 0), 1)
        close(state.alpha, alpha)
        close([state.v, state.w, update.vectors[0]], [v, w, w])
        assert start < 1 or np.abs(v - o.steps(np.array([2.0, 1.0, -1.0]), 0.05, 4)).max() < 1e-12
        close(algorithm.personal_model(state), alpha * v + (1 - alpha) * w)
        assert isinstance(state.alpha, float) and (alpha != start) == (adapting > 0)


def test_alpha_stays_in_0_to_1() -> None:
    ends = set()
    for seed in range(8):
        state = State(v=-START, w=START, alpha=0.5)
        APFL(adapt="step", step_size=20.0).train(state, Message((START,)), random_quadratics(seed, 1)[0])
        ends.add(state.alpha)
    assert ends == {0.0, 1.0}


# -- FedAMP and HeurFedAMP ---------------------------------------------------------------------------------------------
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
    """FEDAMP.1: The rows of xi sum to 1, none is negative, and U = W - (alpha/2) grad A(W); null: alpha = sigma/n.
    FEDAMP.2: The mean of the u_i is the mean of the w_i; the model that is evaluated is that mean, weighted if asked
    for."""
    algorithm = FedAMP(sigma=sigma, attention_step=alpha)
    xi = algorithm.attend(MODELS)
    close(xi.sum(1), np.ones(5))  # FEDAMP.3: so identical models are sent back as they are
    assert (xi >= 0).all()
    u, server = messages(algorithm, MODELS)
    close(u, MODELS - (alpha or sigma / 5) / 2 * slope(MODELS, sigma))
    close([u.mean(0), server.x], [MODELS.mean(0)] * 2)
    _, server = messages(FedAMP(sigma=sigma, weights="samples"), MODELS)
    close(server.x, np.arange(1, 6) @ MODELS / 15)


AXES = np.array([[2.0, 0.0, 0.0], [-3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5]])  # cosines 1, 0 and -1


@pytest.mark.parametrize("models", [MODELS, AXES[:2], AXES[:3], AXES], ids=len)
@pytest.mark.parametrize("sigma", [0.5, 3.0, 700.0, 800.0, 1e5])
def test_heurfedamp_weights_the_others_by_a_softmax_of_their_cosines(sigma: float, models: np.ndarray) -> None:
    """xi_ii as given; the others share the rest by exp(sigma cos(w_i, w_j)), also where that overflows."""
    n, unit = len(models), models / np.linalg.norm(models, axis=1, keepdims=True)
    xi = FedAMP(attention="cosine", sigma=sigma, self_weight=0.3).attend(models)
    close(np.diag(xi), np.full(n, 0.3))
    for i in range(n):
        others = [j for j in range(n) if j != i]
        logs = sigma * unit[others] @ unit[i]
        close(xi[i, others], 0.7 * np.exp(logs - logsumexp(logs)), 1e-9)


def test_fedamp_clients_take_proximal_steps_each_from_its_own_u() -> None:
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


def test_the_largest_step_is_allowed() -> None:
    """alpha (n-1)/sigma <= 1, also where the quotient is rounded."""
    for n in range(2, 40):
        FedAMP(attention_step=0.7 / (n - 1), sigma=0.7).validate(n)
        FedAMP().validate(n)
