"""The problem section, and what holds for every problem: shards, determinism, evaluation beside other work."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from mpifl.problems import ProblemConfig, load, objective
from mpifl.problems.data import Digits, FedPDSynthetic, Mnist, NoData, Synthetic
from mpifl.problems.dirichlet import Dirichlet
from mpifl.problems.inits import Uniform
from mpifl.problems.models import Logistic, NonconvexLogistic, Quadratic
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
    mine = np.column_stack([x * 16, y])
    assert (
        mine[np.lexsort(mine.T)] == (lambda all_: all_[np.lexsort(all_.T)])(np.column_stack([rows.x, rows.y]))
    ).all()
    assert parts[0][0].base is parts[1][0].base


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
    assert not problem.evaluate(x)["train_loss"] < 1e20


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
    assert (
        ProblemConfig(data=config.data, model=config.model, clients=config.clients, partition=config.partition)
        == config
    )


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"data": Mnist()}, "clients"),
        ({"data": NoData()}, "data"),
        ({"partition": Natural()}, "partition"),
        ({"model": Quadratic(), "data": Digits()}, "data"),
        ({"model": Quadratic(), "l2": 1e-3}, "l2"),
        ({"model": Quadratic(optima=[1, 2]), "clients": 3}, "clients"),
    ],
)
def test_bad_config(given: dict, key: str) -> None:
    with refusal(f"^{key}="):
        ProblemConfig(**given)


def test_too_many_classes() -> None:
    with refusal(r"it is for two classes, and there are 10; expected another model"):
        load(ProblemConfig(data=Digits(), model=NonconvexLogistic()))
