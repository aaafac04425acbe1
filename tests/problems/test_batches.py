"""The rows of local steps: drawn without replacement, complete epochs, a function of seed, client and round alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifl.problems.config import ProblemConfig
from mpifl.problems.models import Logistic


def client(samples: int, batch: int | None, i: int = 0, seed: int = 0) -> Any:
    config = ProblemConfig(clients=2, batch_size=batch)
    meta = {"samples": [samples, samples], "clients": 2, "layout": [["W", [3, 2]]]}
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


def test_every_row_is_as_likely() -> None:
    f, rounds = client(40, 10), 4000
    counts = np.bincount(np.concatenate([f.batches(r, 1)[0] for r in range(rounds)]), minlength=40)
    deviation = (rounds * 0.25 * 0.75) ** 0.5  # each row is in a batch with probability b/s
    assert abs(counts - rounds * 0.25).max() < 4.5 * deviation
