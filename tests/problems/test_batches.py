"""The rows of local steps: drawn without replacement, complete epochs, a function of seed, client and round alone."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifl.problems.models import Logistic
from mpifl.problems.problem_section import ProblemConfig


def client(samples: int, batch: int | None, i: int = 0, seed: int = 0, drop_last: bool = False) -> Any:
    config = ProblemConfig(clients=2, batch_size=batch, drop_last=drop_last)
    meta = {"samples": [samples, samples], "clients": 2, "layout": [["W", [3, 2]]], "classes": 2}
    shard: list[Any] = [np.zeros((samples, 3), np.float32), np.zeros(samples, np.int64)]
    return Logistic().objective(config, meta, shard, i, seed)


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(1, 299), st.integers(0, 5), st.integers(0, 9))
def test_steps(samples: int, batch: int, steps: int, round: int) -> None:
    found = list(client(samples, min(batch, samples - 1)).batches(round, steps))
    assert len(found) == steps
    for rows in found:
        assert len(set(rows.tolist())) == len(rows) == min(batch, samples - 1)
        assert rows.min() >= 0 and rows.max() < samples


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(1, 299), st.integers(1, 4))
def test_epochs(samples: int, batch: int, epochs: int) -> None:
    b = min(batch, samples - 1)
    found = list(client(samples, b).batches(0, 1, epochs))
    each = -(-samples // b)
    assert len(found) == epochs * each
    for k in range(epochs):
        one = found[k * each : (k + 1) * each]
        assert sorted(np.concatenate(one).tolist()) == list(range(samples))
        assert [len(rows) for rows in one[:-1]] == [b] * (each - 1)


@pytest.mark.parametrize(("samples", "batch"), [(17, 8), (16, 8), (9, 2), (5, 8)])
def test_drop_last_leaves_out_smaller_batches_alone(samples: int, batch: int) -> None:
    """The batches are those of a run without it, less the smaller ones. A client with one batch keeps it."""
    kept, every = (client(samples, batch, drop_last=drop).batches(3, 1, 2) for drop in (True, False))
    if samples < batch:
        assert kept == every == [slice(None)] * 2
        return
    assert len(kept) == 2 * (samples // batch)
    full = [rows.tolist() for rows in every if len(rows) == batch]
    assert [rows.tolist() for rows in kept] == full


@pytest.mark.parametrize("batch", [None, 20, 21])
def test_whole_set(batch: int | None) -> None:
    f = client(20, batch)
    assert f.batches(0, 3) == [slice(None)] * 3 and f.batches(0, 3, epochs=2) == [slice(None)] * 2


def test_decided_by_seed_client_and_round_alone() -> None:
    first = np.array(client(500, 32).batches(5, 4))
    used = client(500, 32)
    for round in (0, 7, 5):
        used.batches(round, 9)
    assert (np.array(used.batches(5, 4)) == first).all()
    for other in (
        client(500, 32).batches(6, 4),
        client(500, 32, i=1).batches(5, 4),
        client(500, 32, seed=1).batches(5, 4),
    ):
        assert (np.array(other) != first).any()


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
