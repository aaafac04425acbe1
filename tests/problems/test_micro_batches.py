"""Gradients as sums over micro-batches: what they are, and that their bits do not depend on who computes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mpifl
from mpifl.problems import HostedClients, ProblemConfig, load, objective
from mpifl.problems.data import Synthetic
from mpifl.problems.micro_batches import MicroBatched, by_micro_batches
from mpifl.problems.models import Mlp
from tests.mpi import cases
from tests.problems.conftest import refusal
from tests.problems.test_torch import client, rows, small


def whole(model: Any = None, batch: int | None = 24) -> tuple[Any, Callable[[], Any]]:
    """A problem, and a function that makes client 1's objective, computed at once."""
    config = ProblemConfig(data=Synthetic(), clients=3, model=model or Mlp(hidden=4), l2=0.3, batch_size=batch)
    problem = load(config)
    return problem, lambda: objective(config, problem.meta, problem.shard(1), 1, seed=0)


def in_pieces(made: Callable[[], Any], micro_batches: int) -> Any:
    """Client 1, its gradients computed by micro-batches on one rank; `tests/mpi/test_groups.py` has several ranks."""
    return MicroBatched(made(), 0, micro_batches, None)


@pytest.mark.parametrize("micro_batches", [2, 3, 4, 7, 12])
def test_the_sum_is_the_gradient_of_the_batch(micro_batches: int) -> None:
    """Pieces of unequal sizes count by their rows; the regulariser counts once."""
    problem, made = whole()
    f, x = made(), 0.3 * np.random.default_rng(0).standard_normal(problem.d).astype(np.float32)
    cut = in_pieces(made, micro_batches)
    for batch in (f.batches(4, 1)[0], f.batches(4, 1)[0][:3], None, slice(None)):
        assert cut.gradient(x, batch) == pytest.approx(f.gradient(x, batch), rel=1e-4, abs=1e-6)
    assert cut.loss(x) == f.loss(x) and np.array_equal(cut.fisher(x), f.fisher(x))
    assert [b.tolist() for b in cut.batches(3, 2)] == [b.tolist() for b in f.batches(3, 2)]
    problem, made = whole()
    for batch in (np.zeros(4), (1, 2), slice(0, 3)):
        with pytest.raises(TypeError, match=r"not row numbers, has no problem\.micro_batches"):
            in_pieces(made, 2).gradient(problem.initial(0), batch)


def test_gradients_of_pieces_are_summed_along_one_tree() -> None:
    """Of 6 pieces: ((0 + 1) + (2 + 3)) + (4 + 5), written out."""
    problem, made = whole()
    f, x = made(), 0.3 * np.random.default_rng(0).standard_normal(problem.d).astype(np.float32)
    (batch,) = f.batches(4, 1)
    g = [f.gradient(x, batch[4 * k : 4 * k + 4]) * np.float32(4 / 24) for k in range(6)]
    expected = ((g[0] + g[1]) + (g[2] + g[3])) + (g[4] + g[5])
    assert np.array_equal(in_pieces(made, 6).gradient(x, batch), expected)
    in_order = ((((g[0] + g[1]) + g[2]) + g[3]) + g[4]) + g[5]
    assert not np.array_equal(in_order, expected)


@pytest.mark.parametrize("part", [partial(nn.BatchNorm1d, 4), partial(nn.Dropout, 0.5)], ids=["batch norm", "dropout"])
def test_a_module_that_draws_or_keeps_statistics(part: Callable[[], nn.Module]) -> None:
    """Draws belong to the micro-batch, and running statistics are the mean of those that its passes leave."""
    x, y = rows()
    (batch,) = client(small(part()), x, y, batch=16).batches(1, 1)

    def step(others: int) -> np.ndarray:
        cut = in_pieces(lambda: client(small(part()), x, y, batch=16), 4)
        start = cut.shared.flat.values().numpy()
        cut.begin_round(1)
        torch.rand(others)  # what other passes draw
        after = start - 0.1 * cut.gradient(start, batch)
        cut.update_buffers(after)
        return np.asarray(after)

    assert np.array_equal(step(0), step(9))
    if part().__class__ is nn.BatchNorm1d:
        inputs = small()[0](x[batch]).detach().numpy().reshape(4, 4, 4)
        assert step(0)[-8:-4] == pytest.approx(0.1 * inputs.mean((0, 1)))  # from 0, with momentum 0.1


def test_statistics_of_each_client_are_refused() -> None:
    one = client(small(nn.BatchNorm1d(4)), *rows(), buffers="local")
    with refusal(r"problem\.torch\.buffers=local: a batch is computed in"):
        by_micro_batches(HostedClients({0: one}), 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["problem.micro_batches=0"], "micro_batches=0"),
        (["problem.micro_batches=9"], "a batch has problem.batch_size=8 rows; expected at most 8"),
        (["ranks_per_client=2"], "equally many of the problem.micro_batches=1; expected 1; or set .* to 2"),
        (["problem.micro_batches=6", "ranks_per_client=4"], "expected 3 or 6; or set problem.micro_batches to 4 or 8"),
        (["problem.micro_batches=4", "ranks_per_client=8"], "expected 4; or set problem.micro_batches to 8"),
        (["ranks_per_client=0"], "ranks_per_client=0"),
        (["ranks_per_client=two"], "ranks_per_client=two"),
        (["problem={model: quadratic, clients: 2, micro_batches: 2}"], "the model quadratic has no rows"),
    ],
)
def test_micro_batches_that_do_not_fit_are_refused(changes: list[str], says: str) -> None:
    problem = {"data": "digits", "clients": 2, "batch_size": 8}
    with refusal(says):
        mpifl.load_job({"name": "wrong", **cases.job({"name": "fedavg"}, problem)}, *changes)


def test_a_study_whose_ranks_form_no_groups_is_refused(tmp_path: Path) -> None:
    problem = {"data": "digits", "clients": 4, "batch_size": 8, "micro_batches": 2}
    job = {"name": "g", **cases.job({"name": "fedavg"}, problem, ranks_per_client=2)}
    (tmp_path / "g.yaml").write_text(json.dumps(job))
    study = {"name": "s", "job": "g.yaml", "axes": {"algorithm.step_size": [0.1, 1]}, "trials": 1, "ranks": 4}
    (tmp_path / "s.yaml").write_text(json.dumps(study))
    with refusal(r"ranks_per_client=2: .* the other 3 ranks cannot be divided into groups of 2"):
        mpifl.load_study(tmp_path / "s.yaml")
    assert len(mpifl.load_study(tmp_path / "s.yaml", "ranks=5").runs) == 2
