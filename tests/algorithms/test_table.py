"""The common table, in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

import mpifl
from mpifl import open_run
from mpifl.algorithms import ALIASES, names
from tests.algorithms.table import EXCUSED, ONLY, ROWS, SHORT, Row
from tests.quadratic_runs import close
from tests.tiers import parameters


@pytest.mark.parametrize("row", parameters(ROWS, SHORT.__contains__), ids=lambda row: row.id)
def test_limit_in_process(row: Row, tmp_path: Path) -> None:
    """The model ends at the stated optimum or bias, among them those of FedAvg.3, FEDPROX.2 and FEDPD.4."""
    path = tmp_path / "run.h5"
    mpifl.run({"name": "row", "output": str(path), **row.job()}).close()
    with open_run(path) as run:
        close(run.model, row.limit, row.accuracy)


def test_the_table_is_whole() -> None:
    """Every algorithm is on every problem, or it says why not; every further name is there; no row is there twice."""
    there = {(row.algorithm["name"], row.problem) for row in ROWS}
    wanted = {(name, f"T{k}") for name in names() for k in range(1, 7)}
    assert wanted - there == EXCUSED.keys() and ONLY
    assert {name for name, _ in there} == {*names(), *ALIASES}
    assert len({row.id for row in ROWS}) == len(ROWS)
