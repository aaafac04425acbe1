"""Mime and MimeLite against their formulas, their limits and their special cases."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.base import Clients, State
from mpifl.algorithms.f_svrg import FSVRG
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.mime import Mime
from mpifl.client.worker import Worker
from mpifl.errors import ConfigError
from tests.algorithms.test_f_svrg import batched, members_of
from tests.quadratic_runs import Quadratic, close, drift_point, optimum, quadratics, random_quadratics, run


@pytest.mark.parametrize("lite", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.6])
@pytest.mark.parametrize("kind", ["uniform", "samples"])
@pytest.mark.parametrize("steps", ["one", "relative"])
def test_rounds_by_formula(lite: bool, beta: float, kind: str, steps: str) -> None:
    """y <- y - eta ((1 - beta) v + beta s), s frozen; v = g_k(y; xi) - g_k(x; xi) + c, lite: g_k(y; xi).

    Then x <- mean y and s <- (1 - beta) c + beta s. With `step_weights: relative` eta is 0.1 n s_k/S.
    """
    clients = batched(4, 5)
    total = sum(o.samples for o in clients)
    options = {"step_size": 0.1, "local_steps": 4, "cohort": 2, "weights": kind, "step_weights": steps}
    algorithm = Mime(momentum=beta, lite=lite, **options)  # type: ignore[arg-type]
    phases = 1 if lite else 2
    members = members_of(algorithm, clients, 12 * phases)
    log = run(algorithm, clients, [i for m in members for i in m], x0=np.ones(2))
    x, s, contacts = np.ones(2), np.zeros(2), [0] * 5
    for k, cohort in enumerate(members[::phases]):
        p = np.array([clients[i].samples if kind == "samples" else 1 for i in cohort], float)
        c, ends = p / p.sum() @ [clients[i].gradient(x) for i in cohort], []
        for i in cohort:
            o, y = clients[i], x
            eta = 0.1 * (5 * o.samples / total if steps == "relative" else 1)
            for rows in o.batches(contacts[i] + phases - 1, 4):
                v = o.a[rows] * (y - o.c[rows])
                if not lite:
                    v = v - o.a[rows] * (x - o.c[rows]) + c
                y = y - eta * ((1 - beta) * v + beta * s)
            ends.append(y)
            contacts[i] += phases
        x, s = p / p.sum() @ ends, (1 - beta) * c + beta * s
        close(log.models[phases * (k + 1) - 1], x)
    close(log.server.s, s)
    assert len({tuple(m) for m in members}) > 3


def test_cohorts() -> None:
    """Two of six clients: Mime keeps them for its two phases, MimeLite draws anew for each round.

    Two draws are equal with probability 1/15: 13 of 200 on average, and hardly ever 40."""
    mime, lite = (members_of(Mime(cohort=2, lite=lite), batched(5, 6), 401) for lite in (False, True))
    assert all(a == b for a, b in zip(mime[:400:2], mime[1:400:2], strict=True))
    assert sum(a == b for a, b in zip(mime[1::2], mime[2::2], strict=True)) < 40
    for start in (0, 1):
        pairs = list(zip(lite[start:400:2], lite[start + 1 :: 2], strict=False))
        assert len(pairs) == 200
        assert sum(a == b for a, b in pairs) < 40


def test_FEDDANE_7() -> None:
    """Mime with SGD is F-SVRG, batches and cohorts included."""
    clients, common = batched(6, 4), {"step_size": 0.1, "local_steps": 5, "cohort": 2, "weights": "samples"}
    order = [i for m in members_of(FSVRG(**common), clients, 20) for i in m]
    logs = [run(algorithm, clients, order, x0=2 * np.ones(2)) for algorithm in (Mime(**common), FSVRG(**common))]
    close(logs[0].models, logs[1].models)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_T1(beta: float) -> None:
    """a = (1, 10), c = (1, -1), Q = 10: Mime ends at the optimum -9/11, with s = 0: grad f is 0 there."""
    log = run(Mime(step_size=0.05, local_steps=10, momentum=beta), quadratics([1, 10], [1, -1]), [0, 1] * 600)
    close(log.x, [-9 / 11])
    close(log.server.s, [0.0])


@pytest.mark.parametrize("kind", ["uniform", "samples"])
def test_no_drift_with_momentum(kind: str) -> None:
    """All clients, full batches: the optimum of sum p_k f_k for Q = 6."""
    clients = random_quadratics(2, 4)
    log = run(Mime(step_size=0.1, local_steps=6, weights=kind, momentum=0.8), clients, list(range(4)) * 800)
    close(log.x, optimum(clients, [o.samples for o in clients] if kind == "samples" else None))


def test_mime_lite_drifts() -> None:
    """MimeLite with SGD is FedAvg; its limit solves x = mean G_k^Q(x)."""
    clients = random_quadratics(3, 4)
    order = list(range(4)) * 100
    log = run(Mime(step_size=0.1, local_steps=8, lite=True), clients, order)
    close(log.models, run(FedAvg(step_size=0.1, local_steps=8), clients, order).models)
    close(log.x, drift_point(clients, 0.1, 8))


@pytest.mark.parametrize(("beta", "lite", "down", "up"), [
    (0.0, False, [1, 1], [1, 1]), (0.5, False, [1, 2], [1, 1]),  # x, then c and s; the gradient, then y
    (0.0, True, [1], [2]), (0.5, True, [2], [2]),  # x and s; y and the gradient
])  # fmt: skip
def test_the_wire(beta: float, lite: bool, down: list[int], up: list[int]) -> None:
    """Down 2 + |s|, up 2 in two phases; lite: down 1 + |s|, up 2 in one."""
    log = run(Mime(momentum=beta, lite=lite, local_steps=3), random_quadratics(2, 3), [0, 1, 2] * 4)
    phases = len(down)
    assert all(len(message.vectors) == down[message.version % phases] for _, message in log.sent)
    assert all(len(update.vectors) == up[update.version % phases] for _, update in log.consumed)
    assert all((update.local_steps == 3) == (lite or update.version % 2 == 1) for _, update in log.consumed)


@pytest.mark.parametrize("lite", [False, True])
def test_float32_and_saved_state(lite: bool) -> None:
    """float32 in, float32 on the wire; states saved and loaded between the phases change nothing."""
    clients = [Quadratic(o.a.astype(np.float32), o.c.astype(np.float32), o.samples) for o in random_quadratics(3, 4)]
    algorithm = Mime(weights="samples", local_steps=3, momentum=0.4, lite=lite)
    known, x0, ends = Clients(np.array([o.samples for o in clients])), np.ones(3, np.float32), []
    for reload in (False, True):
        worker, server = Worker(algorithm, x0, dict(enumerate(clients))), algorithm.init_server(x0, known)
        for version in range(6):
            algorithm.begin_round(server, [0, 1, 2, 3])
            for i in range(4):
                message = algorithm.message(server, i)._replace(version=version, round=version)
                algorithm.receive(server, i, worker.train(i, message), 0)  # the worker checks shapes and types
            algorithm.aggregate(server)
            if reload:
                server = State.load(server.save())
                for i, state in worker.states.items():
                    worker.states[i] = State.load(state.save())
        assert server.x.dtype == server.s.dtype == np.float32
        ends.append(server.x)
    assert (ends[0] == ends[1]).all()


@pytest.mark.parametrize("beta", [-0.1, 1.0])
def test_wrong_momentum(beta: float) -> None:
    with pytest.raises(ConfigError, match=f"^momentum={beta}: a number of at least 0 and below 1$"):
        Mime(momentum=beta)
