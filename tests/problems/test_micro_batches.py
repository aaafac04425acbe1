"""Gradients as sums over micro-batches: what they are, and that their bits do not depend on who computes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import mpifl
from mpifl.problems import HostedClients, ProblemConfig, load, objective
from mpifl.problems.data import Synthetic
from mpifl.problems.micro_batches import MicroBatched, by_micro_batches
from mpifl.problems.models import Mlp
from tests.problems.conftest import refusal
from tests.problems.test_torch import client, rows, small


class Members:
    """The members of a group, one after the other, the last one first: each needs only parts of those after it."""

    def __init__(self, size: int, made: Callable[[], Any], micro_batches: int) -> None:
        self.sent: list[tuple[int, int, Any]] = []  # source, target and part of each sum on two members, until received
        self.moves: list[tuple[int, int]] = []  # source and target of all
        self.objectives = [MicroBatched(made(), 0, micro_batches, Member(self, k, size)) for k in range(size)]

    def gradient(self, x: np.ndarray, batch: Any) -> np.ndarray:
        leader, *others = self.objectives
        for each in reversed(others):
            each.follow_gradient(1, 1, x.copy(), batch if isinstance(batch, np.ndarray) else None)
        leader.begin_round(1)
        return np.asarray(leader.gradient(x, batch))


class Member:
    """One of them."""

    def __init__(self, members: Members, member: int, size: int) -> None:
        self._members, self.member, self.size = members, member, size

    def begin(self, *request: Any) -> None:
        pass

    def compute(self, gradient: Callable[[], Any]) -> Any:
        return gradient()

    def add(self, left: Any, right: Any, source: int, target: int) -> Any:
        sent = self._members.sent
        if source == target:
            return left + right
        if self.member == source:
            self._members.moves.append((source, target))
            sent.append((source, target, right))
            return None
        first = next(k for k, each in enumerate(sent) if each[:2] == (source, target))
        return left + sent.pop(first)[2]


def whole(model: Any = None, batch: int | None = 24) -> tuple[Any, Callable[[], Any]]:
    """A problem, and a function that makes client 1's objective, computed at once."""
    config = ProblemConfig(data=Synthetic(), clients=3, model=model or Mlp(hidden=4), l2=0.3, batch_size=batch)
    problem = load(config)
    return problem, lambda: objective(config, problem.meta, problem.shard(1), 1, seed=0)


@pytest.mark.parametrize("micro_batches", [2, 3, 4, 7, 12])
def test_the_sum_is_the_gradient_of_the_batch(micro_batches: int) -> None:
    """Pieces of unequal sizes count by their rows; the regulariser counts once."""
    problem, made = whole()
    f, x = made(), 0.3 * np.random.default_rng(0).standard_normal(problem.d).astype(np.float32)
    cut = Members(1, made, micro_batches).objectives[0]
    for batch in (f.batches(4, 1)[0], f.batches(4, 1)[0][:10], None, slice(None)):
        assert cut.gradient(x, batch) == pytest.approx(f.gradient(x, batch), rel=1e-4, abs=1e-6)
    assert cut.loss(x) == f.loss(x) and np.array_equal(cut.fisher(x), f.fisher(x))
    assert [b.tolist() for b in cut.batches(3, 2)] == [b.tolist() for b in f.batches(3, 2)]
    problem, made = whole()
    for batch in (np.zeros(4), (1, 2), slice(0, 3)):
        with pytest.raises(TypeError, match=r"not row numbers, has no problem\.micro_batches"):
            MicroBatched(made(), 0, 2, None).gradient(problem.initial(0), batch)


def test_the_tree() -> None:
    """Of 6 pieces: ((0 + 1) + (2 + 3)) + (4 + 5), written out."""
    problem, made = whole()
    f, x = made(), 0.3 * np.random.default_rng(0).standard_normal(problem.d).astype(np.float32)
    (batch,) = f.batches(4, 1)
    g = [f.gradient(x, batch[4 * k : 4 * k + 4]) * np.float32(4 / 24) for k in range(6)]
    expected = ((g[0] + g[1]) + (g[2] + g[3])) + (g[4] + g[5])
    assert np.array_equal(Members(1, made, 6).gradient(x, batch), expected)
    in_order = ((((g[0] + g[1]) + g[2]) + g[3]) + g[4]) + g[5]
    assert not np.array_equal(in_order, expected)


@pytest.mark.parametrize(
    ("micro_batches", "size", "moves"),
    [(4, 2, [(1, 0)]), (4, 4, [(1, 0), (2, 0), (3, 2)]), (6, 3, [(1, 0), (2, 0)]), (6, 2, [(1, 0), (1, 0)])],
)
def test_members_share_the_sum(micro_batches: int, size: int, moves: list[tuple[int, int]]) -> None:
    """The bits are those of one rank, also where fewer rows than micro-batches are left; what is sent, and to whom."""
    problem, made = whole()
    f, x = made(), 0.3 * np.random.default_rng(0).standard_normal(problem.d).astype(np.float32)
    (batch,) = f.batches(4, 1)
    for some in (batch, batch[:3], batch[:1], None):
        alone = Members(1, made, micro_batches).gradient(x, some)
        members = Members(size, made, micro_batches)
        assert np.array_equal(members.gradient(x, some), alone)
        if some is batch:
            assert sorted(members.moves) == moves


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("part", [partial(nn.BatchNorm1d, 4), partial(nn.Dropout, 0.5)], ids=["batch norm", "dropout"])
def test_a_module_that_draws_or_keeps_statistics(part: Callable[[], nn.Module], size: int) -> None:
    """Draws belong to the micro-batch, and running statistics are the mean of those that its passes leave."""
    x, y = rows()
    (batch,) = client(small(part()), x, y, batch=16).batches(1, 1)

    def step(size: int) -> np.ndarray:
        members = Members(size, lambda: client(small(part()), x, y, batch=16), 4)
        start = members.objectives[0].shared.flat.values().numpy()
        after = start - 0.1 * members.gradient(start, batch)
        members.objectives[0].update_buffers(after)
        return np.asarray(after)

    assert np.array_equal(step(size), step(1))
    if part().__class__ is nn.BatchNorm1d:
        inputs = small()[0](x[batch]).detach().numpy().reshape(4, 4, 4)
        assert step(size)[-8:-4] == pytest.approx(0.1 * inputs.mean((0, 1)))  # from 0, with momentum 0.1


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
def test_wrong_uses(changes: list[str], says: str) -> None:
    job = {
        "name": "wrong", "seed": 1, "stop": {"updates": 2}, "algorithm": "fedavg",
        "problem": {"data": "digits", "clients": 2, "batch_size": 8},
    }  # fmt: skip
    with refusal(says):
        mpifl.load_job(job, *changes)


def test_a_study_whose_ranks_form_no_groups_is_refused(tmp_path: Path) -> None:
    job = {
        "name": "g", "seed": 1, "stop": {"updates": 2}, "algorithm": "fedavg", "ranks_per_client": 2,
        "problem": {"data": "digits", "clients": 4, "batch_size": 8, "micro_batches": 2},
    }  # fmt: skip
    (tmp_path / "g.yaml").write_text(json.dumps(job))
    study = {"name": "s", "job": "g.yaml", "axes": {"algorithm.step_size": [0.1, 1]}, "trials": 1, "ranks": 4}
    (tmp_path / "s.yaml").write_text(json.dumps(study))
    with refusal(r"ranks_per_client=2: .* the other 3 ranks cannot be divided into groups of 2"):
        mpifl.load_study(tmp_path / "s.yaml")
    assert len(mpifl.load_study(tmp_path / "s.yaml", "ranks=5").runs) == 2
