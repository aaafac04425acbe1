"""The problem section, what holds for every problem (shards, determinism), the rows of local steps, and quadratics."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifl.problems import ProblemConfig, load, objective
from mpifl.problems.data import Digits, FedPDSynthetic, Mnist, NoData, Synthetic
from mpifl.problems.dirichlet import Dirichlet
from mpifl.problems.inits import Uniform
from mpifl.problems.models import Logistic, NonconvexLogistic, Quadratic
from mpifl.problems.models.quadratic import QuadraticProblem
from mpifl.problems.partitions import Iid, Natural
from tests.problems.conftest import refusal

CONFIGS = [
    ProblemConfig(partition=Dirichlet(alpha=1), batch_size=8),
    ProblemConfig(data=Synthetic(), clients=5, dtype="float64"),
    ProblemConfig(model=NonconvexLogistic(), clients=4),
    ProblemConfig(model=Quadratic(dim=3), clients=4),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.model.name)
def test_workers_need_the_meta_and_a_shard_only(config: ProblemConfig) -> None:
    problem = load(config)
    meta = json.loads(json.dumps(problem.meta))
    assert meta["samples"] == problem.samples.tolist() and len(meta["samples"]) == problem.clients
    assert sum(int(np.prod(shape)) for _, shape in problem.layout) == problem.d == len(problem.initial(0))
    x = problem.initial(1)
    for i in range(problem.clients):
        shard = problem.shard(i)
        assert all(a.flags.c_contiguous and a.base is not None for a in shard)
        here = objective(config, problem.meta, shard, i, 5)
        there = objective(replace(config), meta, [a.copy() for a in shard], i, 5)
        rows, again = here.batches(2, 1)[0], there.batches(2, 1)[0]
        assert (here.gradient(x, rows) == there.gradient(x, again)).all()
        assert here.samples == problem.samples[i] and here.clients == problem.clients
        assert here.share == pytest.approx(problem.samples[i] / problem.samples.sum())


def test_shards_are_the_data() -> None:
    problem = load(CONFIGS[0])
    rows = Digits().read(CONFIGS[0].settings.folder(), False, None)
    parts = [problem.shard(i) for i in range(32)]
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    found, expected = (sorted(map(tuple, np.column_stack(each))) for each in ((x * 16, y), (rows.x, rows.y)))
    assert found == expected and parts[0][0].base is parts[1][0].base


def test_evaluation_beside_gradients() -> None:
    config = CONFIGS[0]
    problem = load(config)
    models = [problem.initial(seed) for seed in range(8)]
    alone = [problem.evaluate(x) for x in models]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(problem.evaluate, models * 5)) == alone * 5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.model.name)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30])
def test_a_model_that_diverged_has_a_loss(config: ProblemConfig, value: float) -> None:
    problem = load(config)
    x = np.full(problem.d, value, problem.dtype)
    x[::2] *= -1
    metrics, own = problem.evaluate_with_clients(x)
    assert not metrics["train_loss"] < 1e20
    assert (np.isnan(own) | ((own >= 0) & (own <= 1))).all()


def test_what_is_left_out_is_filled_in() -> None:
    config = ProblemConfig()
    assert config.model == Logistic(bias=False, init=Uniform(half_width=0.5))
    assert (config.data, config.partition, config.clients) == (Digits(), Iid(), 32)
    config = ProblemConfig(data=Synthetic())
    assert (config.partition, config.clients) == (Natural(), 30)
    config = ProblemConfig(model=NonconvexLogistic())
    assert (config.data, config.clients) == (FedPDSynthetic(), 100)
    config = ProblemConfig(model=Quadratic(optima=[1, 2, 3]))
    assert (config.data, config.clients) == (NoData(), 3)
    assert replace(config) == config


@pytest.mark.parametrize(
    ("make", "given", "key"),
    [
        (ProblemConfig, {"data": Mnist()}, "clients"),
        (ProblemConfig, {"data": NoData()}, "data"),
        (ProblemConfig, {"partition": Natural()}, "partition"),
        (ProblemConfig, {"model": Quadratic(), "data": Digits()}, "data"),
        (ProblemConfig, {"model": Quadratic(), "l2": 1e-3}, "l2"),
        (ProblemConfig, {"model": Quadratic(optima=[1, 2]), "clients": 3}, "clients"),
        (Quadratic, {"curvatures": [1, 2], "optima": [1, 2, 3]}, "curvatures"),
        (Quadratic, {"curvatures": [[1, 2], [3]]}, "curvatures"),
        (Quadratic, {"optima": ["a"]}, "optima"),
        (Quadratic, {"optima": []}, "optima"),
    ],
)
def test_values_that_do_not_fit_the_problem_are_refused(make: Any, given: dict, key: str) -> None:
    with refusal(f"^{key}="):
        make(**given)
    with refusal(r"it is for two classes, and there are 10; expected another model"):
        load(ProblemConfig(data=Digits(), model=NonconvexLogistic()))


def client(samples: int, batch: int | None, i: int = 0, seed: int = 0, drop_last: bool = False) -> Any:
    config = ProblemConfig(clients=2, batch_size=batch, drop_last=drop_last)
    meta = {"samples": [samples, samples], "clients": 2, "layout": [["W", [3, 2]]], "classes": 2}
    return Logistic().objective(config, meta, [np.zeros((samples, 3)), np.zeros(samples, int)], i, seed)


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(1, 299), st.integers(0, 5), st.integers(1, 4), st.integers(0, 9))
def test_steps_and_epochs(samples: int, batch: int, steps: int, epochs: int, round: int) -> None:
    b = min(batch, samples - 1)
    found = list(client(samples, b).batches(round, steps))
    assert len(found) == steps
    for rows in found:
        assert len(set(rows.tolist())) == len(rows) == b
        assert rows.min() >= 0 and rows.max() < samples
    found = list(client(samples, b).batches(round, 1, epochs))
    each = -(-samples // b)
    assert len(found) == epochs * each
    for k in range(epochs):
        one = found[k * each : (k + 1) * each]
        assert sorted(np.concatenate(one).tolist()) == list(range(samples))
        assert [len(rows) for rows in one[:-1]] == [b] * (each - 1)


@pytest.mark.parametrize(("samples", "batch"), [(17, 8), (16, 8), (9, 2), (5, 8), (20, 20), (20, None)])
def test_drop_last_leaves_out_smaller_batches_alone(samples: int, batch: int | None) -> None:
    """The batches are those of a run without it, less the smaller ones. A client with one batch, all rows, keeps it."""
    kept, every = (client(samples, batch, drop_last=drop).batches(3, 1, 2) for drop in (True, False))
    if batch is None or samples <= batch:
        assert kept == every == [slice(None)] * 2
        assert client(samples, batch).batches(0, 3) == [slice(None)] * 3
        return
    assert len(kept) == 2 * (samples // batch)
    full = [rows.tolist() for rows in every if len(rows) == batch]
    assert [rows.tolist() for rows in kept] == full


def test_decided_by_seed_client_and_round_alone() -> None:
    first = np.array(client(500, 32).batches(5, 4))
    used = client(500, 32)
    for round in (0, 7, 5):
        used.batches(round, 9)
    assert (np.array(used.batches(5, 4)) == first).all()
    for other, round in ((client(500, 32), 6), (client(500, 32, i=1), 5), (client(500, 32, seed=1), 5)):
        assert (np.array(other.batches(round, 4)) != first).any()


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize(("samples", "batch"), [(10, 3), (12, 10), (20, 8)])
def test_rows_and_pairs_of_rows_are_drawn_equally_often(samples: int, batch: int, together: int) -> None:
    """The chi-square statistic of how often each row, or pair of rows, is in a batch, by their exact covariance."""
    f = client(samples, batch)
    drawn = [set(rows.tolist()) for round in range(1500) for rows in f.batches(round, 4)]
    sets = [set(each) for each in combinations(range(samples), together)]
    # That a batch has k given rows has the probability (b/s) ((b-1)/(s-1)) ... of k factors.
    probability = [comb(batch, k) / comb(samples, k) for k in range(2 * together + 1)]
    counts = np.array([sum(each <= batch for batch in drawn) for each in sets])
    union = np.array([[len(a | b) for b in sets] for a in sets])
    covariance = np.array(probability)[union] - probability[together] ** 2
    gap = (counts - len(drawn) * probability[together]) / len(drawn) ** 0.5
    inverse = np.linalg.pinv(covariance, rcond=1e-9, hermitian=True)
    degrees = np.linalg.matrix_rank(covariance, tol=1e-9, hermitian=True)
    assert degrees == len(sets) - 1
    assert abs(gap @ inverse @ gap - degrees) < 4 * (2 * degrees) ** 0.5


def built(model: Quadratic, clients: int | None = None) -> QuadraticProblem:
    problem = load(ProblemConfig(model=model, clients=clients, dtype="float64"))
    assert isinstance(problem, QuadraticProblem)
    return problem


def test_quadratics_that_are_given_or_drawn() -> None:
    """T1: a = (1, 10), c = (1, -1): the optimum is -9/11, f is 1/2 mean(a (x - c)^2). T5: it is sum a c / sum a for
    each entry."""
    problem = built(Quadratic(curvatures=[1, 10], optima=[1, -1]))
    assert problem.clients == 2 and problem.d == 1 and problem.samples.tolist() == [1, 1]
    assert problem.optimum() == pytest.approx(-9 / 11, abs=1e-15)
    assert problem.evaluate(np.zeros(1))["train_loss"] == pytest.approx((1 + 10) / 4)
    assert np.isnan(problem.evaluate(np.zeros(1))["test_accuracy"])
    a, c = [[1, 2], [3, 0.5], [0.5, 4]], [[1, -1], [2, 0.3], [-1, 0.2]]
    problem = built(Quadratic(curvatures=a, optima=c))
    assert problem.optimum() == pytest.approx([6.5 / 4.5, -1.05 / 6.5])
    assert problem.optimum(np.array([1, 0, 0])) == pytest.approx([1, -1])
    config = ProblemConfig(model=Quadratic(curvatures=[[1], [2]]))
    assert config.model.size(NoData(), config.settings).d == load(config).d == 10  # type: ignore[union-attr]
    problem = built(Quadratic(dim=200, condition=100), 50)
    curvatures = np.concatenate([problem.shard(i)[0] for i in range(50)])
    assert curvatures.min() > 1 and curvatures.max() < 100
    assert np.log(curvatures).mean() == pytest.approx(np.log(100) / 2, rel=0.02)
    assert np.concatenate([problem.shard(i)[1] for i in range(50)]).std() == pytest.approx(1, rel=0.03)
    x = problem.optimum()
    gradients = [a * (x - c) for a, c in map(problem.shard, range(50))]
    assert np.sum(gradients, 0) == pytest.approx(0, abs=1e-10)


def test_noise_belongs_to_client_and_round() -> None:
    config = ProblemConfig(model=Quadratic(dim=400, sigma=0.5), clients=2, dtype="float64")
    problem = load(config)
    f, g = (objective(config, problem.meta, problem.shard(i), i, 3) for i in (0, 1))
    steps = f.batches(2, 50)
    noise = np.array([f.gradient(problem.shard(0)[1], rows) for rows in steps])  # at c_0 the rest is zero
    assert noise.std() == pytest.approx(0.5, rel=0.03) and abs(noise.mean()) < 0.02
    assert (np.array(f.batches(2, 50)) == noise).all()
    assert (np.array(f.batches(3, 50)) != noise).all() and (np.array(g.batches(2, 50)) != noise).all()
    assert f.gradient(problem.shard(0)[1]) == pytest.approx(0)
    assert f.share == 0.5 and f.clients == 2
