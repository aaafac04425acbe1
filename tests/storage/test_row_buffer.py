"""Rows as packed records, and as arrays, one for each column."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mpifl.errors import RunFailed
from mpifl.storage.row_buffer import RowBuffer
from mpifl.storage.tables import TABLES


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_rows_are_taken_in_order(count: int) -> None:
    rows = RowBuffer({"number": "i4", "half": "f8"})
    for i in range(count):
        rows.append((i, i / 2))
    assert len(rows) == count
    found = rows.take(count)
    assert found["number"].dtype == np.int32 and found["half"].flags.contiguous
    np.testing.assert_array_equal(found["number"], np.arange(count))
    np.testing.assert_array_equal(found["half"], np.arange(count) * 0.5)
    assert not len(rows)


def test_those_that_are_not_taken_stay() -> None:
    rows = RowBuffer({"number": "i8"})
    rows.extend([(1,), (2,), (3,)])
    assert rows.take(2)["number"].tolist() == [1, 2]
    rows.append((4,))
    assert rows.take(2)["number"].tolist() == [3, 4]


def test_text_is_cut_between_characters() -> None:
    rows = RowBuffer({"word": "S4", "number": "i4"})
    rows.extend([("lost", 1), ("größer", 2)])
    assert rows.take(2)["word"].tolist() == [b"lost", b"gr\xc3\xb6"]


@pytest.mark.parametrize("row", [(1,), (1, 2.0, 3), (2**31, 1.0), ("one", 1.0)])
def test_a_row_that_does_not_fit_is_an_error(row: tuple[object, ...]) -> None:
    rows = RowBuffer({"number": "i4", "half": "f8"})
    with pytest.raises(RunFailed, match="cannot hold"):
        rows.append(row)
    assert not len(rows)


def test_every_table_has_a_buffer() -> None:
    for table in TABLES.values():
        types = {name: column.dtype for name, column in table.columns.items()}
        rows = RowBuffer(types)
        rows.append(tuple("text" if type[0] == "S" else 7 for type in types.values()))
        for name, array in rows.take(1).items():
            assert array.dtype == np.dtype(types[name])
            assert array[0] == (b"text" if types[name][0] == "S" else 7)


def test_one_thread_appends_while_another_one_takes() -> None:
    rows, total = RowBuffer({"number": "i8"}), 200_000
    thread = threading.Thread(target=lambda: [rows.append((i,)) for i in range(total)])
    thread.start()
    found: list[np.ndarray] = []
    while thread.is_alive() or len(rows):
        found.append(rows.take(len(rows))["number"])
    np.testing.assert_array_equal(np.concatenate(found), np.arange(total))
