"""FedDANE against its formulas, its limits and its special cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mpifl.algorithms.base import Clients, State
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.feddane import FedDANE
from mpifl.algorithms.fedprox import FedProx
from mpifl.client.worker import Worker
from mpifl.errors import ConfigError
from tests.quadratic_runs import Quadratic, close, optimum, quadratics, random_quadratics, run
from tests.tiers import long, parameters

ALL = list(range(4))


def gradient(clients: list[Quadratic], x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """sum_k p_k grad F_k(x)"""
    return sum(p * o.matrix @ (x - o.c) for p, o in zip(weights, clients, strict=True))


def solution(o: Quadratic, w: np.ndarray, correction: np.ndarray, mu: float, eta: float, steps: int) -> np.ndarray:
    """`steps` of gradient descent on F(v) + <correction, v - w> + mu/2 ||v - w||^2 from v = w."""
    v = w
    for _ in range(steps):
        v = v - eta * (o.matrix @ (v - o.c) + correction + mu * (v - w))
    return v


def shares(clients: list[Quadratic]) -> np.ndarray:
    return np.array([o.samples for o in clients]) / sum(o.samples for o in clients)


def cohorts(algorithm: FedDANE, clients: list[Quadratic], count: int) -> list[list[int]]:
    """The members of so many phases, as the loop draws them."""
    cohort = algorithm.participation(Clients(np.array([o.samples for o in clients])), 0)
    return [cohort.sample(version) for version in range(count)]


def order(members: list[list[int]]) -> list[int]:
    """Who answers: a client drawn twice answers once."""
    return [i for m in members for i in dict.fromkeys(m)]


@pytest.mark.parametrize("kind", ["uniform", "samples"])
@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_FEDDANE_1(kind: str, mu: float) -> None:
    """All clients, exact solutions (400 steps): w+ = w - mean_k (H_k + mu I)^-1 grad f(w)."""
    clients = random_quadratics(1, 4)
    p = shares(clients) if kind == "samples" else np.full(4, 1 / 4)
    algorithm = FedDANE(mu=mu, weights=kind, step_size=1 / (3 + mu), local_steps=400)
    log = run(algorithm, clients, ALL * 6, x0=[1.0, -2.0, 0.5])
    w = np.array([1.0, -2.0, 0.5])
    for before, after in zip(log.models[::2], log.models[1::2], strict=True):
        close(before, w)  # the gradients' phase leaves the model as it is
        eye = np.eye(3)
        step = sum(q * np.linalg.inv(o.matrix + mu * eye) for q, o in zip(p, clients, strict=True))
        w = w - step @ gradient(clients, w, p)
        close(after, w)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", ["uniform", "samples"])
def test_FEDDANE_2(seed: int, kind: str) -> None:
    """The spectral radius of I - mean_k (H_k + mu I)^-1 Hbar is below 1: the limit is the exact optimum."""
    clients = random_quadratics(seed, 4)
    p = shares(clients) if kind == "samples" else np.full(4, 1 / 4)
    inverse = sum(q * np.linalg.inv(o.matrix + np.eye(3)) for q, o in zip(p, clients, strict=True))
    mean = sum(q * o.matrix for q, o in zip(p, clients, strict=True))
    assert np.abs(np.linalg.eigvals(np.eye(3) - inverse @ mean)).max() < 0.6
    log = run(FedDANE(mu=1.0, weights=kind, step_size=1 / 4, local_steps=70), clients, ALL * 140)
    close(log.x, optimum(clients, p))


@pytest.mark.parametrize(("mu", "factor"), [(0.0, -2.025), (1.0, -0.625), (10.0, 0.6125)])
def test_the_radius_decides_in_one_dimension(mu: float, factor: float) -> None:
    """a = (1, 10): the error is multiplied by 1 - 5.5 mean 1/(a_k + mu) in every update; without mu it diverges."""
    log = run(FedDANE(mu=mu, step_size=1 / (10 + mu), local_steps=500), quadratics([1, 10], [1, -1]), [0, 1] * 12)
    close(factor, 1 - 5.5 * np.mean(1 / (np.array([1, 10]) + mu)))
    close(np.ravel(log.models[1::2]), -9 / 11 * (1 - factor ** np.arange(1, 7)))


def test_FEDDANE_3() -> None:
    """One Hessian for all and mu = 0: a Newton step, so the optimum after one update."""
    h = random_quadratics(7, 1)[0].matrix
    clients = quadratics([h] * 4, np.random.default_rng(7).standard_normal((4, 3)))
    log = run(FedDANE(step_size=1 / 3, local_steps=400), clients, ALL * 2, x0=5.0)
    close(log.x, optimum(clients))


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["uniform", "samples"])
def test_FEDDANE_4(mu: float, kind: str) -> None:
    """No correction: the updates are rounds of FedProx, with mu = 0 of FedAvg; by formula, and by those files."""
    clients = random_quadratics(3, 4)
    p = shares(clients) if kind == "samples" else np.full(4, 1 / 4)
    common = {"weights": kind, "step_size": 0.1, "local_steps": 5}
    log = run(FedDANE(mu=mu, correction=0.0, **common), clients, ALL * 10, x0=2.0)
    w = np.full(3, 2.0)
    others = [run(FedProx(mu=mu, **common), clients, ALL * 5, x0=2.0)]
    others += [run(FedAvg(**common), clients, ALL * 5, x0=2.0)] if mu == 0 else []
    for k, model in enumerate(log.models[1::2]):
        w = sum(q * solution(o, w, 0 * w, mu, 0.1, 5) for q, o in zip(p, clients, strict=True))
        close(model, w)
        for other in others:
            close(model, other.models[k])


@pytest.mark.parametrize(("mu", "limit"), [long(0.1, -0.042654028436), (1.0, -9 / 31), long(10.0, -9 / 13)])
def test_FEDDANE_5(mu: float, limit: float) -> None:
    """A decaying correction: the limit is FedProx's fixed point -9 mu/(20 + 11 mu) (T1), not the optimum -9/11."""
    close(limit, -9 * mu / (20 + 11 * mu))
    algorithm = FedDANE(mu=mu, decay=0.5, step_size=1 / (10 + mu), local_steps=300)
    log = run(algorithm, quadratics([1, 10], [1, -1]), [0, 1] * 2 * 100)
    close(log.x, [-9 * mu / (20 + 11 * mu)])


def test_gamma_t_is_gamma_0_delta_to_the_t() -> None:
    """Update t has the correction gamma_0 delta^t (g_t - grad F_k(w))."""
    clients, eye = random_quadratics(5, 4), np.full(4, 1 / 4)
    log = run(FedDANE(mu=0.3, correction=0.8, decay=0.6, step_size=0.1, local_steps=4), clients, ALL * 8)
    w = np.zeros(3)
    for t, model in enumerate(log.models[1::2]):
        g, gamma = gradient(clients, w, eye), 0.8 * 0.6**t
        w = np.mean([solution(o, w, gamma * (g - o.gradient(w)), 0.3, 0.1, 4) for o in clients], axis=0)
        close(model, w)


@pytest.mark.parametrize("variant", ["pipelined", "pipelined-memory"])
@pytest.mark.parametrize("kind", parameters(["uniform", "samples"], ["samples"]))
def test_FEDDANE_6(variant: str, kind: str) -> None:
    """Both pipelined corrections reach the optimum with all clients and mu = 10."""
    clients = random_quadratics(2, 4)
    algorithm = FedDANE(mu=10.0, variant=variant, weights=kind, step_size=1 / 13, local_steps=60)
    log = run(algorithm, clients, ALL * 500)
    close(log.x, optimum(clients, shares(clients) if kind == "samples" else None))


@pytest.mark.parametrize("variant", ["pipelined", "pipelined-memory"])
@pytest.mark.parametrize("cohort", [2, None])
def test_pipelined_rounds_one_by_one(variant: str, cohort: int | None) -> None:
    """One phase: down (w, gbar), up (w_k, grad F_k(w)); gbar is of the round before, no correction at the start."""
    clients = random_quadratics(4, 4)
    algorithm = FedDANE(mu=0.5, variant=variant, cohort=cohort, weights="samples", step_size=0.1, local_steps=3)
    members = cohorts(algorithm, clients, 12)
    log = run(algorithm, clients, order(members), x0=1.0)
    w, gbar, memory = np.ones(3), None, {}
    for model, cohort_ in zip(log.models, members, strict=True):
        p = np.array([clients[i].samples for i in cohort_], float)
        ends = []
        for i in cohort_:
            o = clients[i]
            local = o.gradient(w) if variant == "pipelined" else memory.get(i)
            correction = 0 * w if gbar is None or local is None else gbar - local
            ends.append(solution(o, w, correction, 0.5, 0.1, 3))
            memory[i] = o.gradient(w)
        gbar, w = p / p.sum() @ [memory[i] for i in cohort_], p / p.sum() @ ends
        close(model, w)
    assert all(len(message.vectors) == 2 for _, message in log.sent)
    assert all(len(update.vectors) == 2 for _, update in log.consumed)


@pytest.mark.parametrize(("sampling", "kind", "same"), [
    ("samples", "uniform", False),  # the text
    ("uniform", "samples", True),  # the released code
    ("uniform", "uniform", False), ("samples", "uniform", True),
])  # fmt: skip
def test_sampling_weights_and_sets(sampling: str, kind: str, same: bool) -> None:
    """g_t is the mean over S_t, w+ the mean over S'_t; repeats count twice; `same_set` makes the two sets one."""
    clients = random_quadratics(6, 5)
    algorithm = FedDANE(mu=0.4, cohort=3, sampling=sampling, weights=kind, same_set=same, step_size=0.1, local_steps=4)
    members = cohorts(algorithm, clients, 40)
    assert all(a == b for a, b in zip(members[::2], members[1::2], strict=True)) == same
    assert len({tuple(m) for m in members[::2]}) > 5
    log = run(algorithm, clients, order(members), x0=1.0)
    w = np.ones(3)
    for model, first, second in zip(log.models[1::2], members[::2], members[1::2], strict=True):
        p, q = (np.array([clients[i].samples if kind == "samples" else 1 for i in m]) for m in (first, second))
        g = p / p.sum() @ [clients[i].gradient(w) for i in first]
        ends = [solution(clients[i], w, g - clients[i].gradient(w), 0.4, 0.1, 4) for i in second]
        w = q / q.sum() @ ends
        close(model, w)


def test_the_wire() -> None:
    """A client in both sets: down w and g_t, up grad F_k and w_k, in two round trips; one new in S' gets w too."""
    clients = random_quadratics(8, 6)
    algorithm = FedDANE(cohort=3)
    members = cohorts(algorithm, clients, 20)
    log = run(algorithm, clients, order(members), x0=1.0)
    seen = {2: 0, 1: 0}
    for i, message in log.sent[: len(log.consumed)]:
        first = message.version % 2 == 0
        assert message.numbers[0] == (1 if first else 2)
        w = log.models[message.version - 1] if message.version else np.ones(3)
        if first:
            (x,) = message.vectors
            close(x, w)
        else:
            known = i in members[message.version - 1]
            assert len(message.vectors) == (1 if known else 2)
            close(message.vectors[-1], np.mean([clients[k].gradient(w) for k in members[message.version - 1]], axis=0))
            seen[len(message.vectors)] += 1
    assert min(seen.values()) > 3
    assert all(len(update.vectors) == 1 for _, update in log.consumed)
    steps = {(update.version % 2, update.local_steps) for _, update in log.consumed}
    assert steps == {(0, 0), (1, 1)}


def test_FEDDANE_8() -> None:
    """Corollary 4: mu = 5 L B^2 and exact solutions give E f(w+) <= f(w) - 3/(25 L B^2) ||grad f(w)||^2.

    B^2 = mean ||grad F_k(w)||^2 / ||grad f(w)||^2. The mean over every S_t and S'_t of one client each. For quadratics
    the bound follows from E g_t = grad f, mu <= H_k + mu I <= mu + L and E ||g_t||^2 <= B^2 ||grad f||^2: the decrease
    is at least (1/(L(5 B^2 + 1)) - 1/(50 L B^2)) ||grad f||^2, more than asserted for every B >= 1.
    """
    for seed, distance in itertools.product(range(3), (3.0, 0.3)):
        clients, p = random_quadratics(seed, 4), np.full(4, 1 / 4)
        w = optimum(clients) + distance * np.array([1.0, -1.0, 2.0])
        L = max(np.linalg.eigvalsh(o.matrix).max() for o in clients)
        g2 = float(np.sum(gradient(clients, w, p) ** 2))
        B2 = np.mean([np.sum(o.gradient(w) ** 2) for o in clients]) / g2
        steep = drop(clients, w, L, 5 * L * B2)
        assert steep >= 3 / (25 * L * B2) * g2
        if distance < 1:  # B^2 is large: with a small mu the loss grows
            assert B2 > 3 and drop(clients, w, L, 0.01) < 0


def drop(clients: list[Quadratic], w: np.ndarray, L: float, mu: float) -> float:
    """E f(w) - f(w+) over all pairs of one client each."""
    algorithm = FedDANE(mu=mu, step_size=1 / (L + mu), local_steps=60 if mu > 1 else 300)
    ends = [run(algorithm, clients, rounds=[[i], [j]], x0=w).models[1] for i, j in itertools.product(ALL, ALL)]
    return float(np.mean([o.loss(w) for o in clients]) - np.mean([o.loss(x) for x in ends for o in clients]))


def test_T1() -> None:
    """a = (1, 10), c = (1, -1): the optimum -9/11, where FedAvg with these steps ends at -0.4268843393694543."""
    clients = quadratics([1, 10], [1, -1])
    close(run(FedDANE(mu=1.0, step_size=0.05, local_steps=10), clients, [0, 1] * 300).x, [-9 / 11])
    close(run(FedDANE(step_size=0.05, local_steps=10), clients, [0, 1] * 300).x, [-9 / 11])


@pytest.mark.parametrize("variant", ["plain", "pipelined", "pipelined-memory"])
def test_float32_and_saved_state(variant: str) -> None:
    """float32 in, float32 on the wire; states saved and loaded between the phases change nothing."""
    clients = [Quadratic(o.a.astype(np.float32), o.c.astype(np.float32), o.samples) for o in random_quadratics(3, 4)]
    algorithm = FedDANE(mu=0.3, decay=0.9, variant=variant, cohort=2, weights="samples", local_steps=3)
    known = Clients(np.array([o.samples for o in clients]))
    x0 = np.ones(3, np.float32)
    ends = []
    for reload in (False, True):
        worker, server = Worker(algorithm, x0, dict(enumerate(clients))), algorithm.init_server(x0, known)
        rounds = dict.fromkeys(ALL, 0)
        for version in range(8):
            members = algorithm.participation(known, 0).sample(version)
            algorithm.begin_round(server, members)
            for i in members:
                message = algorithm.message(server, i)._replace(version=version, round=rounds[i])
                algorithm.receive(server, i, worker.train(i, message), 0)  # the worker checks shapes and types
                rounds[i] += 1
            algorithm.aggregate(server)
            if reload:
                server = State.load(server.save())
                for i, state in worker.states.items():
                    worker.states[i] = State.load(state.save())
        assert server.x.dtype == server.g.dtype == np.float32
        ends.append(server.x)
    assert (ends[0] == ends[1]).all()


@pytest.mark.parametrize(("key", "value"), [
    ("mu", -1.0), ("correction", -0.5), ("decay", 1.5), ("decay", -0.1), ("variant", "decayed"), ("cohort", 0),
    ("sampling", "all"), ("weights", "none"),
])  # fmt: skip
def test_wrong_hyper_parameters(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as error:
        FedDANE(**{key: value})  # type: ignore[arg-type]
    assert (error.value.key, error.value.value) == (key, value)


def test_same_set_needs_two_phases() -> None:
    with pytest.raises(ConfigError, match=r"^same_set=True: false: a pipelined round has one phase$"):
        FedDANE(same_set=True, variant="pipelined")
