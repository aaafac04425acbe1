"""Values that are appended to columns of the run file, as plain h5py reads them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from mpifl.storage.columns import append_values
from mpifl.storage.create import h5_type


@pytest.mark.parametrize(
    ("dtype", "first", "second"),
    [
        ("f8", np.array([0.1, -0.0, np.inf]), np.arange(8.0)[::2]),
        ("i4", np.array([1, -(2**31)]), np.array([2**31 - 1], np.int32)),  # of another type than the column
        ("i8", np.array([2**62]), np.array([], np.int64)),
        ("S6", np.array(["é".encode(), b""], "S2"), np.array([b"abcdef", b"x"], "S6")),  # of another length
    ],
)
def test_values_follow_one_another(dtype: str, first: np.ndarray, second: np.ndarray, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        column = file.create_dataset("column", (0,), h5_type(dtype), chunks=(2,), maxshape=(None,))
        append_values(column, first)
        append_values(column, second)
    with h5py.File(tmp_path / "file.h5") as file:
        values = file["column"][...]
    assert values.tolist() == [*first.tolist(), *second.tolist()]
    if dtype == "f8":
        assert np.signbit(values[1])
