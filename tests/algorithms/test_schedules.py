"""What the index of every step schedule counts: the step that clients and server used, against the paper's formula.

Clients have linear objectives, f_i = c_i x: a step moves a model by the step times c_i, wherever it is. They arrive
unequally often. Each `expected` is written from the order of arrivals alone; positions in it count from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.ace import Ace
from mpifl.algorithms.area import Area
from mpifl.algorithms.async_feddr import AsyncFedDR
from mpifl.algorithms.async_sgd import AsyncSgd
from mpifl.algorithms.asypfl import AsyPFL
from mpifl.algorithms.common.indicators import Decayed, Theorem2
from mpifl.algorithms.common.local_solver import Gd, Sarah
from mpifl.algorithms.common.splitting import AbsoluteAccuracy
from mpifl.algorithms.common.step_schedules import Convex, StronglyConvex
from mpifl.algorithms.fedasync import FedAsync
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.feddane import FedDANE
from mpifl.algorithms.feddr import FedDR
from mpifl.algorithms.fedpd import FedPD
from mpifl.algorithms.mifa import Mifa
from mpifl.algorithms.participation import Trigger
from mpifl.algorithms.vrl_sgd import VrlSgd
from tests.quadratic_runs import Log, Quadratic, close, quadratics, run

ORDER = [0, 0, 1, 0, 0, 0, 0, 2, 1, 0, 2]  # of three clients, the first of which is the fastest
C = np.array([1.0, 2.0, -0.5])


@dataclass
class Linear(Quadratic):
    """f(x) = c x; `points` are the models at which gradients of batches were computed, `full` how many of them came
    before each gradient of all rows."""

    points: list[float] = field(default_factory=list)
    full: list[int] = field(default_factory=list)

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        if rows is None:
            self.full.append(len(self.points))
        else:
            self.points.append(float(x[0]))
        return self.c.copy()


def linear(c: Sequence[float] = (1.0, 1.0, 1.0)) -> list[Any]:
    return quadratics([0.0] * len(c), c, kind=Linear)


def before(order: Sequence[int]) -> list[int]:
    """For each arrival the number of arrivals up to the client's last one, with which it was sent its message."""
    return [max((j + 1 for j in range(k) if order[j] == i), default=0) for k, i in enumerate(order)]


def delays(order: Sequence[int], every: int = 1) -> list[int]:
    """For each arrival the aggregations, one every so many arrivals, since its message, which left after any then."""
    return [k // every - sent // every for k, sent in enumerate(before(order))]


def moves(log: Log) -> list[float]:
    """By how much each aggregation lowers the model."""
    return (-np.diff([0.0, *(float(m[0]) for m in log.models)])).tolist()


# -- client steps ------------------------------------------------------------------------------------------------------
def area_steps(log: Log) -> Iterator[float]:
    """alpha of each update: base - y_i, y_i the sum of the client's messages."""
    y = dict.fromkeys(range(3), 0.0)
    for (i, update), base in zip(log.consumed, log.bases, strict=True):
        y[i] += float(update.vectors[0][0])
        yield float(base[0]) - y[i]


def theorem_7(k: int) -> float:
    """1/(p_min M gamma k/48 + 1/D), mu = 1, L = 2, M = 1, three equal rates and Delta = 2: p_i = 2/9, p_s = 1/3."""
    gamma = 2 * 1 * 2 / (1 + 2)
    return 1 / (2 / 9 * gamma * k / 48 + (1 + 2) / 2)


def test_area_counts_uploads_and_aggregations() -> None:
    """Algorithm 1: the reply to the u-th upload has alpha_k, k = u and the (u - 1) // 2 aggregations before it."""
    method = Area(step_schedule=StronglyConvex(mu=1, L=2), step_weights="one", trigger=Trigger(every=2), reply="before")
    found = list(area_steps(run(method, linear(), ORDER)))
    close(found, [theorem_7(u + max(0, u - 1) // 2) for u in before(ORDER)])
    method = Area(step_schedule=Convex(B=1, radius=1, events=17), step_weights="one", trigger=Trigger(every=2))
    qbar, p_s = 9 / 2, 1 / 3
    found = list(area_steps(run(method, linear(), ORDER)))
    close(found, [sqrt((1 / p_s + 2 * qbar) / (1 * 17))] * len(ORDER))  # Theorem 8: one step for the whole run


def test_asypfl_decays_with_the_servers_version() -> None:
    """Algorithm 1: eta/(1 + gamma tau), tau the server's time when the client received omega; one step for a contact.
    In synchronous rounds the server's time is the round."""
    eta, gamma = 0.3, 0.7
    options: dict[str, Any] = {"step_size": eta, "local_steps": 2, "step_schedule": Decayed(gamma=gamma), "elastic": 0}
    log = run(AsyPFL(**options), linear(), ORDER)
    close([-float(u.vectors[0][0]) for _, u in log.consumed], [2 * eta / (1 + gamma * t) for t in before(ORDER)])
    log = run(AsyPFL(**options, mode="synchronous"), linear(), [0, 1, 2] * 4)
    steps = [2 * eta / (1 + gamma * (k // 3)) for k in range(12)]
    close([-float(u.vectors[0][0]) for _, u in log.consumed], steps)


def test_asypfl_theorem_2_counts_the_clients_own_steps() -> None:
    """Eq. (3), Pi_k = {l pi_k E}: tau counts local steps. 2/(mu (gamma + tau)), gamma = max(8 L/mu, E) = 16."""
    method = AsyPFL(local_steps=3, step_schedule=Theorem2(mu=0.5, L=1), elastic=0)
    log = run(method, linear(), ORDER)
    own = [3 * ORDER[:k].count(i) for k, i in enumerate(ORDER)]
    expected = [sum(2 / (0.5 * (16 + tau + m)) for m in range(3)) for tau in own]
    close([-float(u.vectors[0][0]) for _, u in log.consumed], expected)


def test_mifa_counts_rounds() -> None:
    """eta_t = eta/(t + 1), t the server's round, for clients and server alike, however rarely a client is a member."""
    rounds, clients = [[0, 1, 2], [0], [0, 2], [0], [0, 1]], linear()
    log = run(Mifa(step_size=0.2, local_steps=2, step_schedule="inverse"), clients, rounds=rounds)
    close(moves(log), [2 * 0.2 / (t + 1) for t in range(5)])
    for i, client in enumerate(clients):
        steps = [-float(np.diff(pair)[0]) for pair in np.reshape(client.points, (-1, 2))]
        expected = [0.2 / (t + 1) for t, members in enumerate(rounds) if i in members]
        close(steps[: len(expected)], expected)


def test_feddane_counts_updates_of_the_model() -> None:
    """gamma_t = gamma_0 delta^t, t the updates of w, not the phases: w_k = w - eta (c_k + gamma_t (mean c - c_k))."""
    log = run(FedDANE(step_size=0.1, local_steps=1, correction=0.9, decay=0.5), linear(C), [0, 1, 2] * 8)
    models = [0.0, *(float(m[0]) for m in log.models[1::2])]
    for t in range(4):
        for k in range(3):
            i, update = log.consumed[6 * t + 3 + k]
            drift = (models[t] - float(update.vectors[0][0])) / 0.1 - C[i]
            close(drift / (C.mean() - C[i]), 0.9 * 0.5**t)


def test_vrl_sgd_warms_up_in_the_first_period() -> None:
    log = run(VrlSgd(step_size=0.1, local_steps=4, warm_up=True), linear(), [0, 1, 2] * 3)
    assert [u.local_steps for _, u in log.consumed] == [1] * 3 + [4] * 6


@pytest.mark.parametrize(("kind", "order", "k"), [
    (FedDR, [0, 1, 2] * 4, [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]),
    (AsyncFedDR, ORDER, [1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),  # the reply to the k-th arrival is for model k + 1
], ids=["rounds", "arrivals"])  # fmt: skip
def test_feddr_counts_global_models(kind: Any, order: list[int], k: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """eps_k of the k-th global model, k - 1 the rounds, or arrivals, whose model the client was sent."""
    asked: list[int] = []
    monkeypatch.setattr(AbsoluteAccuracy, "is_reached", lambda self, error, moved, k: asked.append(k) or True)
    accuracy = AbsoluteAccuracy()
    run(kind(step_size=0.1, solver=Gd(), accuracy=accuracy), quadratics([1, 2, 3], [0, 1, 5]), order, x0=9.0)
    assert asked[:12] == k


def test_fedpd_refreshes_by_its_own_rounds() -> None:
    """r mod I = 0, r the rounds of the client, with or without communication: with R = 2 and I = 3 full gradients in
    rounds 0, 3, 6, 9, which are in contacts 0, 1, 3, 4. A round of two steps has four gradients of batches."""
    clients = linear()
    run(FedPD(step_size=0.1, local_steps=2, solver=Sarah(), refresh=3, period=2), clients, [0, 1, 2] * 5)
    assert [client.full[:4] for client in clients] == [[0, 12, 24, 36]] * 3


# -- server steps ------------------------------------------------------------------------------------------------------
TAU = delays(ORDER)  # global steps between message and update, where every arrival makes one


def ringmaster(threshold: int) -> list[float]:
    """Whether each gradient is applied: delays count the gradients that were applied, a discarded one is no version."""
    applied, sent, found = 0, dict.fromkeys(range(3), 0), []
    for i in ORDER:
        found.append(float(applied - sent[i] < threshold))
        applied += int(found[-1])
        sent[i] = applied
    return found


@pytest.mark.parametrize(
    ("options", "eta"),
    [
        ({"step_rule": "adaptive", "L": 2.0}, [0.3 if t <= 3 else min(0.3, 1 / (4 * 2.0 * t)) for t in TAU]),
        ({"step_rule": "drop"}, [0.3 if t <= 3 else 0.0 for t in TAU]),  # what is dropped counts
        ({"step_rule": "inverse"}, [0.3 * 3 / max(3, t + 1) for t in TAU]),
        ({"step_rule": "ringmaster", "threshold": 3}, [0.3 for applied in ringmaster(3) if applied]),
        ({"rescale": "counts"}, [0.3 * (3 + k + 1) / (3 * (1 + ORDER[: k + 1].count(i))) for k, i in enumerate(ORDER)]),
    ],
    ids=lambda value: value.get("step_rule", "rescale") if isinstance(value, dict) else "",
)
def test_async_sgd_counts_steps_of_the_server(options: dict[str, Any], eta: list[float]) -> None:
    """The delay of a gradient is the number of steps of the server since its message, of any client's gradients."""
    assert max(TAU) > 3 and 0 < sum(ringmaster(3)) < len(ORDER)
    close(moves(run(AsyncSgd(step_size=0.3, **options), linear(), ORDER)), eta)


@pytest.mark.parametrize(("options", "s"), [
    ({"staleness": "polynomial", "staleness_a": 0.5}, lambda tau: (tau + 1) ** -0.5),
    ({"staleness": "hinge", "staleness_a": 10, "staleness_b": 2}, lambda tau: 1 / (10 * max(0, tau - 2) + 1)),
], ids=["polynomial", "hinge"])  # fmt: skip
def test_fedasync_counts_mixed_models(options: dict[str, Any], s: Callable[[int], float]) -> None:
    log = run(FedAsync(step_size=0.1, mixing=0.6, **options), linear(), ORDER)
    models = [0.0, *(float(m[0]) for m in log.models)]
    for k, (_, update) in enumerate(log.consumed):
        close(models[k + 1] - models[k], 0.6 * s(TAU[k]) * (float(update.vectors[0][0]) - models[k]))


@pytest.mark.parametrize("rule", ["cap", "scale"])
def test_fedbuff_and_fadas_count_steps_of_the_server(rule: Any) -> None:
    """Not arrivals: with K = 2 there are half as many. s(tau) = 1/sqrt(1 + tau), and tau_max of the buffer in eta_g."""
    tau = np.array(delays(ORDER[:10], every=2)).reshape(-1, 2)
    assert 1 < tau.max() < max(TAU)
    options: dict[str, Any] = {"step_size": 0.1, "trigger": Trigger(every=2), "server_step": 0.9}
    log = run(FedBuff(staleness="inverse-sqrt", **options), linear(), ORDER[:10])
    close(moves(log), 0.9 * 0.1 * (1 + tau) ** -0.5 @ [0.5, 0.5])
    log = run(FedBuff(delay_threshold=1, delay_rule=rule, **options), linear(), ORDER[:10])
    largest = tau.max(1)
    smaller = np.minimum(0.9, 1 / np.maximum(largest, 1)) if rule == "cap" else 0.9 / np.maximum(largest, 1)
    close(moves(log), 0.1 * np.where(largest > 1, smaller, 0.9))


def test_aced_counts_steps_of_the_server() -> None:
    """The age of D_j is the steps of the server since the model that it was computed from."""
    log = run(Ace(step_size=0.1, delay_threshold=4, fill="zero"), linear(C), ORDER)
    computed: dict[int, int] = {}
    for k, (i, move) in enumerate(zip(ORDER, moves(log), strict=True)):
        computed[i] = before(ORDER)[k]
        near = [j for j, version in computed.items() if j == i or k - version <= 4]
        close(move, 0.1 * np.mean(C[near]))
    assert len(near) < len(computed)
