"""Robust aggregation: the rules' numbers, bad clients, and lost members."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from mpifl.algorithms.common.robust import Aggregation, Clip, Krum, Median, TrimmedMean, aggregate_vectors
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.fedbuff import FedBuff
from mpifl.algorithms.participation import Trigger
from tests.algorithms.world import World
from tests.quadratic_runs import Quadratic, close, quadratics, random_quadratics

ROBUST: list[Aggregation] = [Median(), TrimmedMean(trim=0.3), Clip(norm=0.5), Krum(bad=2), Krum(bad=2, keep=3)]
ids = [f"{rule.name}-{getattr(rule, 'keep', 1)}" for rule in ROBUST]
every_rule = pytest.mark.parametrize("rule", ROBUST, ids=ids)
RNG = np.random.default_rng(0)


def of(rule: Aggregation, v: Any, weights: Any = None, base: Any = None) -> np.ndarray:
    v = np.array(v, float)
    v = v[:, None] if v.ndim == 1 else v
    shares = np.full(len(v), 1 / len(v)) if weights is None else np.array(weights, float)
    base = np.zeros(v.shape[1]) if base is None else base
    return np.asarray(aggregate_vectors(rule, dict(enumerate(v)), dict(enumerate(shares)), base))


# -- numbers -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 10, 11])
def test_median_and_trimmed_mean_are_those_of_numpy_and_scipy(m: int) -> None:
    v = RNG.standard_normal((m, 5))
    assert np.array_equal(of(Median(), v), np.median(v, axis=0))
    for trim in (0.0, 0.1, 0.25, 0.3, 0.49):
        close(of(TrimmedMean(trim=trim), v), stats.trim_mean(v, trim, axis=0), 1e-15)


def test_trimmed_by_hand() -> None:
    assert of(TrimmedMean(trim=0.2), [5, -100, 1, 2, 1000]) == (5 + 1 + 2) / 3
    assert of(TrimmedMean(trim=0.19), [5, -100, 1, 2, 1000]) == 908 / 5  # 0.95 of a value: none
    hundred = np.arange(100.0) ** 2
    close(of(TrimmedMean(trim=0.29), hundred), hundred[29:71].mean())  # 0.29 * 100 is 28.999999999999996
    assert of(TrimmedMean(trim=0.5 - 1e-12), [1, 2, 3, 90]) == 2.5  # something is always left


def test_clipped_by_hand() -> None:
    """base + sum a_i (v_i - base) min(1, C/||v_i - base||): (3, 4) has the length 5, (0, 1) stays, base itself too."""
    base = np.array([1.0, -1.0])
    v = base + np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])
    close(of(Clip(norm=2.5), v, [0.5, 0.3, 0.2], base), base + np.array([0.75, 1.3]), 1e-15)
    close(of(Clip(norm=5.0), v, [0.5, 0.3, 0.2], base), base + np.array([1.5, 2.3]), 1e-15)


def test_krum_by_hand() -> None:
    """0, 1, 2, 4, 10, f = 1: squared distances to the two nearest others are 1 + 4, 1 + 1, 1 + 4, 4 + 9, 36 + 64."""
    v = np.array([0.0, 1.0, 2.0, 4.0, 10.0])
    close(Krum(bad=1).scores(v[:, None]), [5, 2, 5, 13, 100], 1e-15)
    assert of(Krum(bad=1), v) == 1
    assert of(Krum(bad=1, keep=2), v) == 0.5  # of equal scores the lower number
    assert of(Krum(bad=1, keep=3), v) == 1
    close(of(Krum(bad=1, keep=2), v, [0.3, 0.1, 0.2, 0.2, 0.2]), 0.25, 1e-15)  # 0.3 * 0 + 0.1 * 1, over 0.4
    close(Krum(bad=2).scores(v[:, None]), [1, 1, 1, 4, 36], 1e-15)
    close(of(Krum(bad=0, keep=5), v), 3.4, 1e-15)
    assert of(Krum(bad=3), v[:2]) == 0 and of(Krum(bad=3), v[4:]) == 10  # of too few: the nearest other, if there is


def test_krum_of_fewer_than_there_should_be() -> None:
    """Of m vectors at most m - f are kept, and at least one: of 0, 1, 2, 1000 with f = 1 the first three, with f = 2
    the two that are nearest to another, of equal ones the lower."""
    rule = Krum(bad=1, keep=4)
    rule.check_members(5)
    v = [0, 1, 2, 1000]
    assert of(rule, v) == 1
    close(of(rule, v, [0.1, 0.2, 0.1, 0.6]), (0.2 * 1 + 0.1 * 2) / 0.4, 1e-15)
    assert of(Krum(bad=2, keep=3), v) == 0.5
    assert [of(Krum(bad=2, keep=3), v[:m]) for m in (1, 2, 3)] == [0, 0, 0]


def test_krum_far_from_the_origin() -> None:
    """Distances are of differences, in float64: a common part of 1e6 does not drown them."""
    v = (1e6 + np.array([0.0, 1.0, 2.0, 4.0, 10.0])).astype(np.float32)
    found = aggregate_vectors(
        Krum(bad=1), dict(enumerate(v[:, None])), dict.fromkeys(range(5), 0.2), np.zeros(1, np.float32)
    )
    assert found == np.float32(1e6 + 1) and found.dtype == np.float32


@every_rule
def test_nothing_depends_on_the_order_of_arrivals(rule: Aggregation) -> None:
    v, w = RNG.standard_normal((7, 4)), RNG.dirichlet(np.ones(7))
    held = [{i: v[i] for i in RNG.permutation(7).tolist()} for _ in range(5)]
    found = [aggregate_vectors(rule, h, dict(enumerate(w)), np.zeros(4)) for h in held]
    assert all(np.array_equal(f, found[0]) for f in found)


# -- in the methods ----------------------------------------------------------------------------------------------------
@every_rule
def test_fedavg_and_fedbuff_aggregate_by_the_rule(rule: Aggregation) -> None:
    """FedAvg: x <- rule of the members' models, weighted as they are, from the round's x; FedBuff: x - eta_g times the
    rule of the buffer, each update times s(tau), from 0."""
    clients = random_quadratics(1, 6)
    s = np.array([o.samples for o in clients])
    here = World(FedAvg(step_size=0.2, aggregation=rule, weights="samples"), clients, np.ones(3))
    for _ in range(2):
        x = here.server.x
        y = [o.steps(x, 0.2) for o in clients]
        here.round([3, 1, 5, 0, 4, 2])
        close(here.server.x, of(rule, y, s / s.sum(), x), 1e-15)
    assert here.server.received == {} and not here.server.sum.any()
    buffered = World(FedBuff(step_size=0.2, server_step=0.7, staleness="inverse-sqrt", aggregation=rule), clients,
                     np.ones(3))  # fmt: skip
    sent = [buffered.contact(i).vectors[0] for i in (0, 1, 2, 3, 4, 1)]
    for k, v in enumerate(sent):
        buffered.algorithm.receive(buffered.server, k, buffered.in_flight[0]._replace(vectors=(v,)), k)
    buffered.aggregate()
    scaled = [v / (1 + k) ** 0.5 for k, v in enumerate(sent)]
    close(buffered.server.x, 1 - 0.7 * of(rule, scaled), 1e-15)
    assert buffered.server.received == {} and buffered.server.count == 0
    before = buffered.server.x
    buffered.aggregate()  # of nothing, by a clock
    assert np.array_equal(buffered.server.x, before)


class Huge(Quadratic):
    """Sends the model to 1e6."""

    def gradient(self, x: np.ndarray, rows: object = None) -> np.ndarray:
        return np.full_like(x, -1e6)


def test_a_lost_member_makes_no_room_for_a_bad_one() -> None:
    """Nine members, two of them bad, seven kept; without honest client 4 the six other honest ones are: FedAvg's model
    is the mean of theirs, and so is FedBuff's from a buffer that lacks it."""
    c, x0 = 1 + 0.1 * np.random.default_rng(4).standard_normal((9, 3)), np.full(3, 0.5)
    clients = quadratics([np.ones(3)] * 9, c)
    expected = np.mean([clients[i].steps(x0, 0.2) for i in (0, 1, 3, 6, 7, 8)], axis=0)
    for i in (2, 5):
        clients[i] = Huge(clients[i].a, clients[i].c)
    rule = Krum(bad=2, keep=7)
    here = World(FedAvg(step_size=0.2, aggregation=rule), clients, x0)
    here.algorithm.validate(9)
    here.round(range(9), lost=4)
    close(here.server.x, expected)
    buffered = World(FedBuff(step_size=0.2, aggregation=rule, trigger=Trigger(every=9), reply="deferred"), clients, x0)
    buffered.algorithm.validate(9)
    for i in (5, 0, 1, 2, 3, 6, 7, 8):
        buffered.contact(i)
        buffered.receive(i)
    buffered.aggregate()
    close(buffered.server.x, expected)
