"""FedPD, FedDyn, FedADMM, FedDR, asyncFedDR and FedSplit: formulas, oracles, accuracies, and weighted limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, log
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from mpifl.algorithms.async_feddr import AsyncFedDR, delay_constant, largest_alpha, largest_eta
from mpifl.algorithms.base import Clients, Message
from mpifl.algorithms.common.local_solver import Decay, Gd, Sarah, Sgd
from mpifl.algorithms.common.proximal import L1
from mpifl.algorithms.common.splitting import AbsoluteAccuracy, RelativeAccuracy
from mpifl.algorithms.fedadmm import FedADMM
from mpifl.algorithms.feddr import FedDR
from mpifl.algorithms.feddyn import FedDyn
from mpifl.algorithms.fedpd import FedPD
from mpifl.algorithms.fedsplit import FedSplit
from tests.algorithms.world import World, in_rounds, noisy, random_sets, snapshot
from tests.quadratic_runs import Quadratic, close, optimum, quadratics, random_quadratics, run

X0 = np.array([1.0, -2.0, 0.5])
ORDER = np.random.default_rng(1).choice(4, 4000, p=[0.5, 0.25, 0.2, 0.05]).tolist()


def exact(kind: Any, weight: float, low: float = 0.5, high: float = 3.0, **more: Any) -> Any:
    """With local problems of curvatures low to high, and a proximal term, that are solved to rounding: by gradient
    descent, each step of which brings the minimiser nearer by (q-1)/(q+1), q = (high + weight)/(low + weight)."""
    q = (high + weight) / (low + weight)
    count = 2 if q == 1 else ceil(log(1e-17) / log((q - 1) / (q + 1)))
    return kind(step_size=2 / (low + high + 2 * weight), local_steps=count, solver=Gd(), **more)


def douglas_rachford(kind: Any = FedDR, eta: float = 0.5, **more: Any) -> Any:
    return exact(kind, 1 / eta, eta=eta, **more)


def soft(v: np.ndarray, width: float) -> np.ndarray:
    return np.sign(v) * np.maximum(np.abs(v) - width, 0)


@pytest.mark.parametrize(
    ("algorithm", "arrivals"),
    [
        (exact(FedPD, 2.0, eta=0.5, weights="samples"), {"order": list(range(4)) * 300}),
        (douglas_rachford(AsyncFedDR, alpha=0.5, weights="samples"), {"order": ORDER}),
        (exact(FedDyn, 2.0, alpha=2.0, weights="samples"), {"rounds": random_sets(4, 2, 400)}),
    ],
    ids=["fedpd", "async-feddr", "feddyn"],
)
def test_the_limit_of_weighted_clients(algorithm: Any, arrivals: dict[str, Any]) -> None:
    """weights: samples minimises sum (s_i/S) f_i, also with two of four clients a round, or without rounds."""
    clients = random_quadratics(9, 4)
    log = run(algorithm, clients, **arrivals, x0=1.0)
    close(log.x, optimum(clients, [o.share for o in clients]), 1e-9)
    assert np.abs(log.x - optimum(clients)).max() > 1e-2


# -- FedPD -------------------------------------------------------------------------------------------------------------
STEP = 0.3 * 3 / (0.3 + 3)


@pytest.mark.parametrize(
    "oracle",
    [
        {"step_size": STEP},
        {"step_size": STEP, "solver": Sgd(decay=Decay(contacts=5, steps=1, power=0.5))},
        *({"solver": Sarah(), "gamma": 3.0, "refresh": refresh} for refresh in (1, 4)),
        {"solver": Sarah(), "step_size": STEP, "refresh": 4},
    ],
    ids=str,
)
def test_oracles_as_printed(oracle: dict[str, Any]) -> None:
    """FEDPD.6: Oracle I: x <- x - eta_1 (g(x) + lambda_i + (x - x_{0,i})/eta) from the old x_i. FEDPD.11: Oracle II,
    closed form and estimate carried over the rounds, is steps eta gamma/(eta + gamma) along the gradient of L_i. A step
    that decays is divided by sqrt(1 + 5 r + q), r the rounds before it, communicated or not, q the steps of its own. On
    random batches of the own rounds, communicated or not, and over contacts of several rounds."""
    eta, gamma, (client,) = 0.3, 3.0, noisy(13, 1)
    algorithm = FedPD(eta=eta, local_steps=5, **oracle)
    state = algorithm.init_client(np.ones(3), 0)
    x, lam, g, r = np.ones(3), np.zeros(3), np.zeros(3), 0
    for rounds, x_0 in ((1, np.ones(3)), (3, np.array([0.2, 0.4, -1.0])), (5, np.array([-0.5, 1.0, 0.0]))):
        update = algorithm.train(state, Message((x_0,), (rounds,)), client)
        for _ in range(rounds):
            if r % oracle.get("refresh", 1) == 0:
                g = client.gradient(x)
            for q, rows in enumerate(client.batches(r, 5)):
                if not isinstance(oracle.get("solver"), Sarah):
                    eta_1 = STEP / (1 + 5 * r + q) ** 0.5 if "solver" in oracle else STEP
                    x = x - eta_1 * (client.gradient(x, rows) + lam + (x - x_0) / eta)
                    continue
                new = (eta * x + gamma * x_0 - eta * gamma * (g + lam)) / (eta + gamma)
                g = g + client.gradient(new, rows) - client.gradient(x, rows)
                x = new
            lam = lam + (x - x_0) / eta
            x_0 = x + eta * lam
            r += 1
        close(state.x, x)
        close(state.lam, lam)
        close(update.vectors[0], x_0)
        assert update.local_steps == 5 * rounds
        if oracle.get("refresh", 1) > 1:
            close(state.g, g)


@pytest.mark.parametrize("eps_1", [1e-2, 1e-5, 1e-9])
def test_oracle_1_stops_at_its_accuracy(eps_1: float) -> None:
    """gd takes the steps that it needs for ||grad L_i||^2 <= eps_1, and no more; never more than Q."""
    (client,) = random_quadratics(11, 1)
    eta, x_0 = 0.4, np.array([2.0, -1.0, 0.0])
    for most in (500, 3):
        algorithm = FedPD(eta=eta, step_size=0.1, local_steps=most, solver=Gd(), accuracy=eps_1)
        state, lam = algorithm.init_client(np.ones(3), 0), np.array([0.3, -0.1, 2.0])
        state.lam = lam
        update = algorithm.train(state, Message((x_0,), (1,)), client)
        x, steps = np.ones(3), 0
        while (g := client.gradient(x) + lam + (x - x_0) / eta) @ g > eps_1 and steps < most:
            x, steps = x - 0.1 * g, steps + 1
        assert update.local_steps == steps
        close(state.x, x)
    assert steps == 3


def rounds_told(seed: int = 0, count: int = 30, **options: Any) -> list[int]:
    """The rounds to the next communication, as the first messages say."""
    algorithm = FedPD(**options)
    server, told = algorithm.init_server(np.zeros(1), Clients(np.ones(2, int), seed=seed)), []
    for _ in range(count):
        algorithm.begin_round(server, [0, 1])
        one, other = algorithm.message(server, 0), algorithm.message(server, 1)
        assert one.numbers == other.numbers == (one.work,)
        told.append(one.work)
    return told


@pytest.mark.parametrize("p", [0.25, 0.5, 0.9])
def test_rounds_to_the_next_communication(p: float) -> None:
    """P(k) = p^(k-1) (1 - p): a round communicates with probability 1 - p, by the seed. Of 3000 draws, within 5
    standard errors. With `period` every R-th one does."""
    draws = 3000
    told = rounds_told(count=draws, skip=p)
    for k in range(1, 4):
        law = p ** (k - 1) * (1 - p)
        assert abs(told.count(k) / draws - law) < 5 * (law * (1 - law) / draws) ** 0.5
    assert abs(np.mean(told) - 1 / (1 - p)) < 5 * p**0.5 / (1 - p) / draws**0.5
    assert told[:30] == rounds_told(skip=p) != rounds_told(1, skip=p)
    assert {*rounds_told(period=5)} == {5} and {*rounds_told()} == {1}


# -- FedADMM and FedDyn ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["fedadmm", "feddyn"])
def test_dual_rules_by_hand(method: str) -> None:
    """Exact minimisers of 1-D problems, two of three clients a round. FedADMM: w = (a c - lam + rho x)/(a + rho), eta
    .8; FedDyn: th = (a c + g + alpha x)/(a + alpha), n counts all clients."""
    a, c, rho, eta, rounds = np.array([1.0, 3.0, 10.0]), np.array([1.0, 0.5, -1.0]), 2.0, 0.8, random_sets(3, 2, 12)
    kind: Any = FedADMM if method == "fedadmm" else FedDyn
    algorithm = exact(kind, rho, 1, 10, **({"rho": rho, "eta": eta} if method == "fedadmm" else {"alpha": rho}))
    log = run(algorithm, quadratics(a, c), rounds=rounds, x0=0.3)
    x, w, lam, h, models = 0.3, np.full(3, 0.3), np.zeros(3), 0.0, []
    for members in rounds:
        z = w + lam / rho
        for i in members:
            w[i] = (a[i] * c[i] - lam[i] + rho * x) / (a[i] + rho)
            lam[i] += rho * (w[i] - x)  # -g of FedDyn
        h -= rho / 3 * sum(w[i] - x for i in members)
        if method == "fedadmm":
            x += eta / 2 * sum(w[i] + lam[i] / rho - z[i] for i in members)
        else:
            x = np.mean(w[members]) - h / rho
        models.append([x])
    close(log.models, models, 1e-10)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_x_is_the_mean_of_z_where_eta_is_null(weights: Any) -> None:
    """ADMM.0: eta null: x = mean z_i after every round of any members, inexact solver too; the number |S|/n is the
    same."""
    clients = random_quadratics(1, 5)
    p = [c.share if weights == "samples" else 1 / 5 for c in clients]
    here, there = (
        World(FedADMM(rho=1.0, step_size=0.1, local_steps=2, **more), clients, np.ones(3))
        for more in ({"eta": None, "weights": weights}, {"eta": 2 / 5})
    )
    for members in random_sets(5, 2, 20):
        here.round(members)
        there.round(members)
        close(here.server.x, sum(p[i] * here.states[i].z for i in range(5)))
        if weights == "uniform":
            close(here.server.x, there.server.x)


def test_output_of_feddyn() -> None:
    """members: mean_S th_i of the last round; all: the mean of the last th_i of all clients."""
    clients = random_quadratics(8, 3)
    models = {}
    for output in ("server", "members", "all"):
        here = World(FedDyn(alpha=1.0, step_size=0.1, local_steps=3, output=output), clients, np.ones(3))
        th = {i: np.ones(3) for i in range(3)}
        for members in ([0, 1], [1, 2], [0, 2]):
            x = here.server.x
            before = {i: here.states[i].q for i in members}
            here.round(members)
            th |= {i: x + here.states[i].q - before[i] for i in members}
        models[output] = here.algorithm.model(here.server)
        close(here.server.x, here.server.mean - here.server.h)
        expected = {"server": here.server.x, "members": (th[0] + th[2]) / 2, "all": sum(th.values()) / 3}
        close(models[output], expected[output])
    assert np.abs(models["all"] - models["members"]).max() > 1e-3


# -- FedDR, asyncFedDR and FedSplit ------------------------------------------------------------------------------------
def prox(o: Quadratic, y: np.ndarray, eta: float) -> np.ndarray:
    """argmin f(x) + ||x - y||^2/(2 eta): (1 + eta A) x = y + eta A c."""
    return np.linalg.solve(np.eye(len(y)) + eta * o.matrix, y + eta * o.matrix @ o.c)


def by_formula(
    clients: Sequence[Quadratic], rounds: Iterable[Sequence[int]], alpha: float, eta: float, tau: float,
    p: np.ndarray | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """xbar after each round of FedDR with tau ||x||_1, from its pseudo-code."""
    n = len(clients)
    p = np.full(n, 1 / n) if p is None else p
    y, x, xhat = ([X0] * n for _ in range(3))
    xtilde = xbar = X0
    models = []
    for members in rounds:
        for i in dict.fromkeys(members):  # one drawn twice works once
            y[i] = y[i] + alpha * (xbar - x[i])
            x[i] = prox(clients[i], y[i], eta)
            new = 2 * x[i] - y[i]
            xtilde = xtilde + p[i] * (new - xhat[i])
            xhat[i] = new
        xbar = soft(xtilde, eta * tau)
        models.append(xbar)
    return models


@pytest.mark.parametrize(
    "options",
    [{"cohort": 2}, {"cohort": 2, "weights": "samples"}, {"cohort": 3, "sampling": "samples"}],
    ids=["uniform", "weights", "drawn twice"],
)
def test_the_pseudo_code(options: dict[str, Any]) -> None:
    """FEDDR.9: every round of a run with cohorts, a relaxation and a regulariser is what Algorithm 1 says, weights p_i
    in the server's sum alone; the increment of a client that is drawn twice is added once."""
    clients = random_quadratics(3, 5)
    algorithm = douglas_rachford(eta=0.7, alpha=1.3, regulariser=L1(tau=0.2), **options)
    log, members = in_rounds(algorithm, clients, 40, x0=X0)
    p = np.array([o.share for o in clients]) if "weights" in options else None
    assert ({len(m) for m in members} == {2}) == ("sampling" not in options)
    close(log.models, by_formula(clients, members, 1.3, 0.7, 0.2, p))


def test_without_delay_async_feddr_is_feddr_with_one_client_a_round() -> None:
    """ASYNCDR.1: No delay, each client sent the newest xbar: FedDR with one client a round, bit for bit, and by
    formula."""
    clients, rounds = random_quadratics(1, 4), [[i] for i in ORDER[:60]]
    options: dict[str, Any] = {"eta": 0.3, "alpha": 1.2, "regulariser": L1(tau=0.1)}
    log = run(douglas_rachford(**options), clients, rounds=rounds, x0=X0)
    here = World(douglas_rachford(AsyncFedDR, **options), clients, X0)
    for (i,), model in zip(rounds, log.models, strict=True):
        assert here.arrival(i)
        assert (here.algorithm.model(here.server) == model).all()
    close(log.models, by_formula(clients, rounds, 1.2, 0.3, 0.1))


CASES = [(0.5, 2.0, 1, 8), (0.9, 1.0, 2, 8), (0.5, 2.0, 4, 8), (0.7, 0.5, 10, 20), (0.3, 3.0, 30, 10)]


def rho(eta: float, alpha: float, L: float, c: float) -> float:
    """What (9) wants positive, as printed."""
    return 2 * (1 - alpha) - (2 + alpha) * L**2 * eta**2 - L * alpha * eta - alpha * (1 + eta**2 * L**2) * c


@pytest.mark.parametrize(("alpha", "L", "tau", "n"), CASES)
def test_the_largest_eta_is_the_root_of_9(alpha: float, L: float, tau: int, n: int) -> None:
    """ASYNCDR.4: The largest eta is the positive root of (9), found by SciPy; c = (2 tau^2 - n)/n^2, 0 where that is
    negative."""
    c = max(0.0, (2 * tau**2 - n) / n**2)
    assert delay_constant(tau, n) == c
    assert largest_alpha(tau, n) == 2 / (2 + c)
    root = brentq(rho, 0, 10 / L, (alpha, L, c), xtol=1e-15) if rho(0, alpha, L, c) > 0 else 0.0
    close(largest_eta(alpha, L, tau, n), root)
    if not c:  # (8)
        close(root, (np.sqrt(16 - 8 * alpha - 7 * alpha**2) - alpha) / (2 * L * (2 + alpha)))
    assert (root > 0) == (alpha < 2 / (2 + c))


@pytest.mark.parametrize("init", ["x0", "mean"])
def test_both_starts_reach_the_optimum(init: str) -> None:
    """FEDDR.5: Both starts reach the optimum; `mean` begins with everybody, and xtilde is then the mean of xhat_i = 2
    prox(x^0) - x^0."""
    clients = random_quadratics(7, 5)
    log, members = in_rounds(douglas_rachford(alpha=1.5, cohort=2, init=init), clients, 200, x0=X0)
    close(log.x, optimum(clients))
    first = list(range(5)) if init == "mean" else members[0]
    assert members[0] == first and {len(m) for m in members[1:]} == {2}
    close(log.models[0], X0 + sum(2 * prox(clients[i], X0, 0.5) - 2 * X0 for i in first) / 5)


def test_fedsplit_by_hand_and_bit_for_bit() -> None:
    """FEDDR.1: z_i <- z_i + 2 (prox(2 X - z_i) - X), X <- mean z_i, from z_i = X = x^0; and bit for bit FedDR with
    alpha = 2."""
    clients, order = random_quadratics(1, 4), list(range(4)) * 25
    log = run(douglas_rachford(FedSplit), clients, order, x0=X0)
    z, x = [X0] * 4, X0
    for model in log.models:
        z = [z[i] + 2 * (prox(o, 2 * x - z[i], 0.5) - x) for i, o in enumerate(clients)]
        x = np.mean(z, axis=0)
        close(model, x)
    assert np.array_equal(log.models, run(douglas_rachford(alpha=2.0), clients, order, x0=X0).models)


def test_budget_of_steps_is_warm_started() -> None:
    """Local steps: y <- y - s (grad f_i(y) + (y - y_i)/eta) from the old x_i."""
    clients = quadratics([[1.0, 2, 3]], [[1.0, 0, -1]])
    log = run(FedDR(step_size=0.1, local_steps=3, eta=2.0, alpha=1.5), clients, [0, 0], x0=X0)
    y = x = xbar = X0
    for model in log.models:
        y = y + 1.5 * (xbar - x)
        for _ in range(3):
            x = x - 0.1 * (clients[0].gradient(x) + (x - y) / 2)
        xbar = 2 * x - y
        close(model, xbar)


def test_penalty_is_the_regulariser() -> None:
    assert FedDR(regulariser=L1(tau=0.5)).penalty(np.array([1.0, -3.0])) == 2.0
    assert FedDR().penalty(X0) == 0


# -- accuracies of FedDR -----------------------------------------------------------------------------------------------


def steps_needed(o: Quadratic, y: np.ndarray, old: np.ndarray, eta: float, step: float, bound: Callable) -> int:
    """Steps of gradient descent from the old x_i until eta ||grad phi|| <= bound(distance moved)."""
    x = old
    for count in range(10_000):
        g = o.gradient(x) + (x - y) / eta
        if eta * np.linalg.norm(g) <= bound(np.linalg.norm(x - old)):
            return count
        x = x - step * g
    raise AssertionError


@pytest.mark.parametrize("kind", [FedDR, AsyncFedDR])
@pytest.mark.parametrize("accuracy", [AbsoluteAccuracy(M=0.3), RelativeAccuracy(theta=0.2)], ids=lambda a: a.name)
def test_accuracy_is_kept_and_no_more(accuracy: Any, kind: Any) -> None:
    """At every contact ||x_i - prox(y_i)|| <= eps, with eps_k^2 = M/(2 (k+1)^2) for the k-th global model, k - 1 the
    rounds, or arrivals, whose model the client was sent, or eps = theta ||x_i - old x_i||, after just the steps that
    the certificate eta ||grad phi|| needs."""
    clients, eta, step = random_quadratics(13, 4), 0.6, 0.2
    here = World(kind(step_size=step, solver=Gd(), eta=eta, alpha=1.5, accuracy=accuracy), clients, X0)
    counts = []
    for i in [0, 1, 2, 3] * 15:
        before, xbar = snapshot(here.states[i]), here.algorithm.model(here.server)
        counts.append(here.contact(i).local_steps)

        def bound(moved: float, k: int = here.version + 1) -> float:
            return (0.15 / (k + 1) ** 2) ** 0.5 if accuracy.name == "absolute" else 0.2 * moved

        state, y = here.states[i], before.y + 1.5 * (xbar - before.x)
        close(state.y, y)
        assert np.linalg.norm(state.x - prox(clients[i], y, eta)) <= bound(np.linalg.norm(state.x - before.x))
        assert counts[-1] == steps_needed(clients[i], y, before.x, eta, step, bound)
        here.receive(i)
        if kind is AsyncFedDR or i == 3:
            here.aggregate()
    assert max(counts) > 1


def test_accuracy_ends_at_its_step_limit() -> None:
    """A contact takes at_most steps; none where the model is no number any more (its answer the loop would refuse)."""
    clients = quadratics([4.0], [1.0])
    for accuracy in (AbsoluteAccuracy(M=1e-9, at_most=7), RelativeAccuracy(theta=1e-9, at_most=7)):
        algorithm = FedDR(step_size=1e-6, solver=Gd(), accuracy=accuracy)
        for x0, steps in ((3.0, 7), (np.nan, 0)):
            assert World(algorithm, clients, np.array([x0])).contact(0).local_steps == steps
    algorithm = FedDR(step_size=100.0, solver=Gd(), accuracy=AbsoluteAccuracy())
    with np.errstate(over="ignore"):  # it diverges: the end is where squares overflow
        assert World(algorithm, clients, np.array([3.0])).contact(0).local_steps < 100


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "accuracy", [AbsoluteAccuracy(M=1e-60, at_most=900), RelativeAccuracy(theta=1e-30, at_most=900)], ids=str
)
def test_rounding_ends_a_contact(accuracy: Any, dtype: Any) -> None:
    """An accuracy that no number of this type has: the steps end where eta ||grad phi|| is eps_machine (||x|| + ||y||).

    phi's Hessian is a + 1/eta, diagonal here, so x - prox shrinks by 1 - step (a + 1/eta) a step, by a half or more;
    rounding makes a step or two of difference."""
    a, c, eta, step = np.array([1.0, 2.0, 3.0]), np.array([0.3, 1.7, -1.1]), 0.6, 0.15
    algorithm = FedDR(step_size=step, solver=Gd(), eta=eta, alpha=1.5, accuracy=accuracy)
    client = Quadratic(a.astype(dtype), c.astype(dtype))
    x0 = X0.astype(dtype)
    state = algorithm.init_client(x0, 0)
    H = a + 1 / eta
    rates, goal = 1 - step * H, (a * c + X0 / eta) / H
    assert (np.abs(rates) < 0.7).all()
    count = 0
    while True:
        left = rates**count * (X0 - goal)
        if eta * np.linalg.norm(H * left) <= np.finfo(dtype).eps * (np.linalg.norm(goal + left) + np.linalg.norm(X0)):
            break
        count += 1
    assert 20 < count < 100
    update = algorithm.train(state, Message((x0,)), client)
    assert abs(update.local_steps - count) <= 2
    close(state.x, goal, 4 * np.finfo(dtype).eps)
