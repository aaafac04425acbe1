"""F-SVRG against its formula, its limit and its special cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from mpifl.algorithms.base import Clients, State
from mpifl.algorithms.common.local_solver import Gd
from mpifl.algorithms.f_svrg import FSVRG
from mpifl.algorithms.feddane import FedDANE
from mpifl.algorithms.mime import Mime
from mpifl.client.worker import Worker
from tests.quadratic_runs import Quadratic, close, optimum, quadratics, random_quadratics, run


@dataclass
class Batches(Quadratic):
    """f(x) = mean over rows r of a_r/2 (x - c_r)^2, a and c (rows, d), entry by entry. Step k of round r: row r + k."""

    def batches(self, round: int, steps: int, epochs: int | None = None) -> list[int]:
        return [(round + k) % len(self.a) for k in range(steps)]

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        each = self.a * (x - self.c)
        return each.mean(0) if rows is None else each[rows]  # type: ignore[index]


def batched(seed: int, n: int, rows: int = 5) -> list[Batches]:
    rng = np.random.default_rng(seed)
    samples = rng.integers(1, 9, n)
    return [
        Batches(rng.uniform(0.5, 3, (rows, 2)), rng.standard_normal((rows, 2)), int(s), s / samples.sum(), n)
        for s in samples
    ]


def members_of(algorithm: FSVRG, clients: Sequence[Quadratic], count: int) -> list[list[int]]:
    """The members of so many phases, as the loop draws them."""
    cohort = algorithm.participation(Clients(np.array([o.samples for o in clients])), 0)
    return [cohort.sample(version) for version in range(count)]


@pytest.mark.parametrize("kind", ["uniform", "samples"])
@pytest.mark.parametrize("steps", [1, 4, 15])
def test_FSVRG_1(kind: str, steps: int) -> None:
    """No drift: whatever Q, full batches end at the optimum of sum p_k f_k."""
    clients = random_quadratics(2, 4)
    log = run(FSVRG(step_size=0.08, local_steps=steps, weights=kind), clients, list(range(4)) * 2 * (500 // steps))
    p = [o.samples for o in clients] if kind == "samples" else None
    close(log.x, optimum(clients, p))


def test_T1() -> None:
    """a = (1, 10), c = (1, -1), eta = 0.05, Q = 10: the optimum -9/11, where FedAvg ends at -0.4268843393694543."""
    log = run(FSVRG(step_size=0.05, local_steps=10), quadratics([1, 10], [1, -1]), [0, 1] * 400)
    close(log.x, [-9 / 11])


def test_FEDDANE_7() -> None:
    """mu = 0, GD, all clients: FedDANE, F-SVRG and Mime with SGD are y <- y - eta (H_k (y - x) + g), x <- mean y."""
    clients = random_quadratics(5, 4)
    common = {"step_size": 0.1, "local_steps": 6, "weights": "samples"}
    logs = [
        run(algorithm, clients, list(range(4)) * 12, x0=1.5)
        for algorithm in (FedDANE(solver=Gd(), **common), FSVRG(**common), Mime(**common))
    ]
    x, p = np.full(3, 1.5), np.array([o.share for o in clients])
    for k in range(6):
        g, ends = p @ [o.gradient(x) for o in clients], []
        for o in clients:
            y = x
            for _ in range(6):
                y = y - 0.1 * (o.matrix @ (y - x) + g)
            ends.append(y)
        for log in logs:
            close(log.models[2 * k], x)
        x = p @ ends
        for log in logs:
            close(log.models[2 * k + 1], x)


@pytest.mark.parametrize("kind", ["uniform", "samples"])
def test_batches_and_cohorts_by_formula(kind: str) -> None:
    """y <- y - eta (g_k(y; xi) - g_k(x; xi) + g), g and x means over one cohort, a new one in each update."""
    clients = batched(3, 5)
    algorithm = FSVRG(step_size=0.1, local_steps=4, cohort=2, weights=kind)
    members = members_of(algorithm, clients, 20)
    log = run(algorithm, clients, [i for m in members for i in m], x0=np.ones(2))
    x, contacts = np.ones(2), [0] * 5
    for k, cohort in enumerate(members[::2]):
        assert members[2 * k + 1] == cohort
        p = np.array([clients[i].samples if kind == "samples" else 1 for i in cohort], float)
        g, ends = p / p.sum() @ [clients[i].gradient(x) for i in cohort], []
        for i in cohort:
            o, y = clients[i], x
            for rows in o.batches(contacts[i] + 1, 4):  # the second of the update's two contacts
                y = y - 0.1 * (o.a[rows] * (y - o.c[rows]) - o.a[rows] * (x - o.c[rows]) + g)
            ends.append(y)
            contacts[i] += 2
        x = p / p.sum() @ ends
        close(log.models[2 * k + 1], x)
    assert len({tuple(m) for m in members}) > 3


def test_the_wire() -> None:
    """Two round trips: down x, then g; up grad f_k(x), then y; the first takes no local step."""
    log = run(FSVRG(local_steps=3), random_quadratics(2, 3), [0, 1, 2] * 4)
    assert all(len(message.vectors) == 1 for _, message in log.sent)
    assert all(len(update.vectors) == 1 for _, update in log.consumed)
    assert [update.local_steps for _, update in log.consumed] == [0, 0, 0, 3, 3, 3] * 2
    assert [message.numbers for _, message in log.sent[:12]] == [(1,)] * 3 + [(2,)] * 3 + [(1,)] * 3 + [(2,)] * 3


def test_float32_and_saved_state() -> None:
    """float32 in, float32 on the wire; states saved and loaded between the phases change nothing."""
    clients = [Quadratic(o.a.astype(np.float32), o.c.astype(np.float32), o.samples) for o in random_quadratics(3, 4)]
    algorithm, known = FSVRG(weights="samples", local_steps=3), Clients(np.array([o.samples for o in clients]))
    x0, ends = np.ones(3, np.float32), []
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
        assert server.x.dtype == np.float32
        ends.append(server.x)
    assert (ends[0] == ends[1]).all()
