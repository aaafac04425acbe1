"""Sums and steps of vectors: the bits of the plain NumPy form, for any size and number of threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from mpifl.algorithms.common.vectors import (
    BLOCK,
    LARGE,
    REUSED_AFTER,
    SMALL,
    add,
    axpy,
    cleared,
    mean_step,
    mix,
    step,
    use_threads,
    zeros,
)  # fmt: skip

SIZES = [1, 7, SMALL, SMALL + 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, LARGE, 2 * LARGE + 3]


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    use_threads(request.param)
    yield request.param
    use_threads(1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_are_those_of_plain_numpy(threads: int, dtype: type) -> None:
    rng = np.random.default_rng(3)
    for size in SIZES:
        x, total, v = rng.standard_normal((3, size)).astype(dtype)
        v[0] = -0.0  # a sum that begins with 0 has no negative zero
        for start in (total, np.zeros_like(total), zeros(x)):
            for function, expected in ((add, start + v), (lambda t, v: axpy(t, 0.3, v), start + dtype(0.3) * v)):
                before = start.copy() if start.flags.writeable else start
                result = function(before, v)
                assert result.tobytes() == expected.tobytes() and result.dtype == dtype, size
                assert (result is before) == before.flags.writeable and result.flags.writeable
        mixed = dtype(1 - 0.3) * x + dtype(0.3) * v
        for new, expected in (
            (step(x, -0.7, v), x + -0.7 * v), (mean_step(x, total, 3), x + total / 3), (mix(x, 0.3, v), mixed),
        ):  # fmt: skip
            assert new.tobytes() == expected.tobytes() and new.dtype == dtype, size
        assert not np.shares_memory(step(x, 1.0, v), x) and not np.shares_memory(mix(x, 0.0, v), x)


def test_a_small_cleared_sum_frees_the_memory_that_a_large_one_left() -> None:
    large, small = np.ones(SMALL + 1), np.ones(3)
    left = weakref.ref(total := add(zeros(large), large))
    cleared(total)
    del total
    assert left() is not None
    cleared(add(zeros(small), small))
    assert left() is None


def test_cleared_sum_gives_its_memory_to_the_next_unless_something_refers_to_it() -> None:
    v = np.arange(1.0, SMALL + 2)
    total = add(zeros(v), v)
    address = total.__array_interface__["data"][0]
    empty = cleared(total)
    assert (empty == 0).all() and not empty.flags.writeable
    del total
    total = add(empty, 2 * v)
    assert total.__array_interface__["data"][0] == address and total.tolist() == (2 * v).tolist()
    view = total[1:]  # as a snapshot may hold
    empty = cleared(total)
    del total
    again = add(empty, v)
    assert not np.shares_memory(again, view) and view.tolist() == (2 * v)[1:].tolist()


@pytest.mark.parametrize("new", [lambda x: step(x, 1.0, x), lambda x: mix(x, 0.5, x), lambda x: mean_step(x, x, 2)])
def test_a_new_vector_takes_memory_that_has_left_the_caches(new: Callable[[np.ndarray], np.ndarray]) -> None:
    """That of a vector made 8 MiB ago, unless something refers to it; a reference may be a view."""
    x = np.ones(1 << 17)  # 1 MiB: eight of them
    for _ in range(8):  # those of other tests go
        new(x)
    made = [new(x) for _ in range(8)]
    addresses = [v.__array_interface__["data"][0] for v in made]
    assert len(set(addresses)) == 8
    kept = made[2][5:]
    before = kept.copy()
    made.clear()
    again = [new(2 * x) for _ in range(8)]
    found = [v.__array_interface__["data"][0] for v in again]
    assert [a == b for a, b in zip(found, addresses)] == [True, True, False, True, True, True, True, True]
    assert kept.tobytes() == before.tobytes() and not np.shares_memory(again[2], kept)


@pytest.mark.parametrize(("size", "kept"), [(SMALL, False), (SMALL + 1, True), (REUSED_AFTER // 8, False)])
def test_only_vectors_of_middle_size_are_kept(size: int, kept: bool) -> None:
    x = np.ones(size)
    made = weakref.ref(vector := step(x, 1.0, x))
    del vector
    assert (made() is not None) == kept


def test_memory_that_was_made_read_only_or_has_another_type_is_left_alone() -> None:
    x = np.ones(1 << 17)
    for _ in range(8):
        step(x, 1.0, x).flags.writeable = False
    for each in (x, x.astype(np.float32), x):
        for _ in range(20):
            assert step(each, 2.0, each).tobytes() == (3 * each).tobytes()


def test_a_factor_of_numpy_does_not_decide_the_dtype() -> None:
    for size in (3, SMALL + 1):
        x = np.ones(size, np.float32)
        assert step(x, np.float64(0.1), x).dtype == mix(x, np.float64(0.1), x).dtype == np.float32
