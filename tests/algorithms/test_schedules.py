"""Asynchronous rules by hand: what each schedule, staleness weight and threshold counts, where clients arrive unequally
often. Those of rounds, of AREA, AsyPFL and asyncFedDR are in the tests of their methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifl.algorithms.ace import Ace
from mpifl.algorithms.async_comm_sgd import AsyncCommSgd
from mpifl.algorithms.async_fedavg import AsyncFedAvg
from mpifl.algorithms.async_sgd import AsyncSgd
from mpifl.algorithms.common.server_optimizers import Momentum, Plain
from mpifl.algorithms.fedasync import FedAsync
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from tests.algorithms.world import OPTIMIZERS, ByHand, by_arrivals
from tests.quadratic_runs import close, random_quadratics, run

FOUR = random_quadratics(1, 4)
ORDER = [0, 0, 0, 1, 0, 3, 2, 1, 1, 0, 2, 3, 3, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0]  # client 0 is fast
each_reply = pytest.mark.parametrize("reply", ["before", "after"])


@pytest.mark.parametrize("options", [{}, {"staleness_a": 0.7, "staleness": "polynomial"},
                                     {"staleness_a": 10, "staleness_b": 2, "staleness": "hinge"}], ids=str)  # fmt: skip
@each_reply
def test_fedasync_mixes_in_models_weighted_by_their_staleness(options: dict[str, Any], reply: str) -> None:
    """FEDASYNC.2: x <- (1-a) x + a w with a = mixing s(tau), s(0) = 1; w by steps on f_i + rho/2 ||w - base||^2."""
    log = run(FedAsync(step_size=0.1, local_steps=3, mixing=0.7, proximal=0.4, reply=reply,
                       **{"staleness": "constant", **options}), FOUR, ORDER, x0=1.0)  # fmt: skip
    s = {
        "constant": lambda tau: 1,
        "polynomial": lambda tau: (tau + 1) ** -0.7,
        "hinge": lambda tau: 1 / (10 * max(0, tau - 2) + 1),
    }[options.get("staleness", "constant")]

    def rule(i: int, base: np.ndarray, tau: int, x: np.ndarray) -> np.ndarray:
        w = base
        for _ in range(3):
            w = w - 0.1 * (FOUR[i].gradient(w) + 0.4 * (w - base))
        return x + 0.7 * s(tau) * (w - x)

    close(log.models, by_arrivals(ORDER, 4, rule, reply))
    assert {0, 1, 3, 4} < {row[3] for row in log.updates}


LATE = {"staleness": "inverse-sqrt", "delay_threshold": 1}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"server_step": None},
        {"staleness": "inverse-sqrt"},
        {"delay_threshold": 1, "server_step": 0.9},
        *({**LATE, "delay_rule": "scale", "optimizer": optimizer} for optimizer in OPTIMIZERS),
        {"calibrate": True},
        {"calibrate": True, "staleness": "inverse-sqrt", "optimizer": Momentum(beta=0.5)},
    ],
    ids=lambda options: "-".join(str(getattr(v, "name", v)) for v in options.values()),
)
def test_fedbuff_fadas_and_ca2fl(options: dict[str, Any]) -> None:
    """x <- x - eta_g (1/K) sum s(tau) D_i, D_i = base - y, eta_g = eta_l where it is not given; a server optimiser
    takes the step along the mean's negative. Where the largest tau of this buffer exceeds tau_c, eta_g is
    min(eta_g, 1/tau) or eta_g/tau. CA2FL: buffer += s (D_i - h_i), h_i <- D_i at each arrival; the step is along
    h + buffer/K, and h <- mean h_i after it. tau counts steps of the server, not arrivals."""
    algorithm = FedBuff(step_size=0.1, local_steps=2, trigger=Trigger(every=3), reply="before",
                        **{"server_step": 0.7, **options})  # fmt: skip
    log = run(algorithm, FOUR, ORDER, x0=1.0)
    calibrate, server_step = "calibrate" in options, algorithm.server_step or 0.1
    optimizer = ByHand(options.get("optimizer", Plain()), 3)
    own, h, buffer, taus, largest = np.zeros((4, 3)), np.zeros(3), [], [], []

    def rule(i: int, base: np.ndarray, tau: int, x: np.ndarray) -> np.ndarray | None:
        nonlocal h, server_step
        D = base - FOUR[i].steps(base, 0.1, 2)
        buffer.append((D - own[i]) / ((1 + tau) ** 0.5 if "staleness" in options else 1))
        taus.append(tau)
        if calibrate:
            own[i] = D
        if len(taus) % 3:
            return None
        late, eta = max(taus[-3:]), server_step
        largest.append(late)
        if late > options.get("delay_threshold", 99):
            eta = eta / late if "delay_rule" in options else min(eta, 1 / late)
        x = x + optimizer.change(-(h + np.sum(buffer, axis=0) / 3), eta)
        buffer.clear()
        h = own.mean(0)
        return x

    close(log.models, by_arrivals(ORDER, 4, rule, "before"), 1e-10)
    assert max(largest) > 1 and largest[-1] < max(largest)


@pytest.mark.parametrize(("threshold", "fill"), [(None, "wait"), (0, "wait"), (2, "wait"), (5, "wait"), (4, "zero"),
                                                 (None, "zero")])  # fmt: skip
@each_reply
def test_ace_and_aced(threshold: int | None, fill: str, reply: str) -> None:
    """x <- x - mean D_j over A = {i} and those whose age k - v_j <= tau_algo, v_j the steps of the server before the
    model that D_j was computed from; no step before all were heard, or D_j = 0 until then."""
    log = run(Ace(step_size=0.1, local_steps=2, delay_threshold=threshold, fill=fill, reply=reply), FOUR, ORDER, x0=1.0)
    table: dict[int, np.ndarray] = {}
    computed: dict[int, int] = {}
    k = 0

    def rule(i: int, base: np.ndarray, tau: int, x: np.ndarray) -> np.ndarray | None:
        nonlocal k
        heard = len(table)
        table[i], computed[i] = base - FOUR[i].steps(base, 0.1, 2), k - tau
        if heard < 4 and fill == "wait":
            return None
        near = [table[j] for j in table if threshold is None or j == i or k - computed[j] <= threshold]
        k += 1
        return x - np.sum(near, axis=0) / (4 if threshold is None else len(near))

    close(log.models, by_arrivals(ORDER, 4, rule, reply), 1e-10)


STEP_RULES = ["constant", "drop", "inverse", "ringmaster", "counts"]


@pytest.mark.parametrize(
    ("rule", "L"), [*((rule, None) for rule in STEP_RULES), *(("adaptive", L) for L in (4.0, 0.3, None))]
)
@each_reply
def test_async_sgd_follows_its_step_rule(rule: str, L: float | None, reply: str) -> None:
    """DA.1: x <- x - eta_t grad f_i(base), (11): eta while tau <= tau_C = n; beyond, no more than eta and 1/(4 L tau).
    Null L means eta <= 1/(4 L) is an equality. A gradient that is dropped makes a model of its own, one that ringmaster
    discards does not, and its client gets x all the same. counts: q_i from updates so far, of which each has one."""
    options: dict[str, Any] = {"step_rule": rule, "L": L, "threshold": 3 if rule == "ringmaster" else None}
    log = run(AsyncSgd(step_size=0.1, reply=reply, **{"rescale": rule} if rule == "counts" else options), FOUR, ORDER,
              x0=1.0)  # fmt: skip
    counts = np.ones(4)

    def by_hand(i: int, base: np.ndarray, tau: int, x: np.ndarray) -> np.ndarray | None:
        counts[i] += 1
        late = {
            "adaptive": min(0.1, 1 / (4 * L * tau)) if L and tau else 0.1 / max(tau, 1),
            "drop": 0.0,
            "ringmaster": None,
            "counts": 0.1,
        }
        eta: float | None = 0.1 if tau <= 4 else late.get(rule, 0.1)
        if rule == "inverse":
            eta = 0.1 * 4 / max(4, tau + 1)
        if rule == "counts":
            eta = 0.1 / (4 * counts[i] / counts.sum())
        if rule == "ringmaster" and tau >= 3:
            eta = None
        return None if eta is None else x - eta * FOUR[i].gradient(base)

    close(log.models, by_arrivals(ORDER, 4, by_hand, reply), 1e-10)
    taus = [row[3] for row in log.updates]
    if rule == "ringmaster":
        assert len(log.updates) == len(ORDER) == len(log.models) + sum(tau >= 3 for tau in taus) > len(log.models)
    else:
        assert max(taus) > 4 and 4 in taus


RULES = ("replace", "delta-over-n", "delta-over-buffer", "mix-over-n", "server-memory")


@each_reply
@pytest.mark.parametrize("rule", RULES)
def test_async_fedavg_follows_its_aggregation_rule(rule: str, reply: str) -> None:
    """Of three updates; of one, where each client gets its own model back (ASFEDAVG.3)."""
    every = 3 if reply == "before" else 1
    algorithm = AsyncFedAvg(step_size=0.1, local_steps=2, step_weights="one", rule=rule, trigger=Trigger(every=every),
                            reply=reply)  # fmt: skip
    log = run(algorithm, FOUR, ORDER, x0=1.0)
    buffer, last = [], [np.ones(3)] * 4

    def by_hand(i: int, base: np.ndarray, tau: int, x: np.ndarray) -> np.ndarray | None:
        last[i] = FOUR[i].steps(base, 0.1, 2)
        buffer.append((last[i], base))
        if len(buffer) % every:
            return None
        full = buffer[-every:]
        return {
            "replace": np.mean([w for w, _ in full], axis=0),
            "delta-over-n": x + sum(w - b for w, b in full) / 4,
            "delta-over-buffer": x + sum(w - b for w, b in full) / every,
            "mix-over-n": x + sum(w - x for w, _ in full) / 4,
            "server-memory": np.mean(last, axis=0),
        }[rule]

    close(log.models, by_arrivals(ORDER, 4, by_hand, reply))


@each_reply
@pytest.mark.parametrize("draw", ["fixed", "uniform"])
def test_async_comm_sgd(draw: str, reply: str) -> None:
    """x <- x + (1/n)(y - base), y after the drawn number of local steps."""
    algorithm = AsyncCommSgd(step_size=0.1, gap=[2, 5, 3, 1], draw=draw, reply=reply)
    log = run(algorithm, FOUR, ORDER, x0=1.0)
    taken: list[tuple[int, int]] = []

    def rule(i: int, base: np.ndarray, tau: int, x: np.ndarray) -> np.ndarray:
        taken.append((i, algorithm.steps(0, i, sum(j == i for j, _ in taken))))
        return x + (FOUR[i].steps(base, 0.1, taken[-1][1]) - base) / 4

    close(log.models, by_arrivals(ORDER, 4, rule, reply))
    assert [(row[1], row[4]) for row in log.updates] == taken
    assert draw == "uniform" or taken == [(i, [2, 5, 3, 1][i]) for i in ORDER]
