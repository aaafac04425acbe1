"""Rows as arrays, one for each column."""

from __future__ import annotations

import numpy as np
import pytest

from mpifl.storage.writer import ROWS_AT_ONCE, rows_to_arrays


@pytest.mark.parametrize("count", [0, 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 1])
def test_every_row_is_there_in_its_place(count: int) -> None:
    numbers, halves = rows_to_arrays([(i, i / 2) for i in range(count)], [np.dtype("i4"), np.dtype("f8")])
    assert numbers.dtype == np.int32
    np.testing.assert_array_equal(numbers, np.arange(count))
    np.testing.assert_array_equal(halves, np.arange(count) * 0.5)


def test_text_is_cut_between_characters() -> None:
    (words,) = rows_to_arrays([("lost",), ("größer",)], [np.dtype("S4")])
    assert words.tolist() == [b"lost", b"gr\xc3\xb6"]


def test_a_row_that_lacks_a_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        rows_to_arrays([(1, 2.0), (1,)], [np.dtype("i4"), np.dtype("f8")])
