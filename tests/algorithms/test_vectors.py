"""Sums and steps of vectors: the bits of the plain NumPy form, for any size."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.algorithms.common.vectors import BLOCK, add, axpy, mean_step, mix, step, zeros

SIZES = [1, 7, BLOCK, BLOCK + 1, 3 * BLOCK + 5]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_are_those_of_plain_numpy(dtype: type) -> None:
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


def test_a_factor_of_numpy_does_not_decide_the_dtype() -> None:
    for size in (3, BLOCK + 1):
        x = np.ones(size, np.float32)
        assert step(x, np.float64(0.1), x).dtype == mix(x, np.float64(0.1), x).dtype == np.float32
