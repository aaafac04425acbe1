"""The common table of algorithms and test problems (`tests/algorithms/table.py`), on 3 ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpifl import open_run
from tests.algorithms.table import ROWS
from tests.mpi.conftest import in_one_job, write
from tests.quadratic_runs import close

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(1000)]


@pytest.mark.long
def test_limits_under_mpi(tmp_path: Path) -> None:
    """Every row's model ends at the stated optimum or bias."""
    commands = [["run", str(write(tmp_path, row.id, row.job())), f"output={row.id}.h5"] for row in ROWS]
    wrong = {}
    for row, reply in zip(ROWS, in_one_job(tmp_path, 3, commands, 960), strict=True):
        assert set(reply.codes) == {0} and not reply.err, f"{row.id}: {reply}"
        with open_run(tmp_path / f"{row.id}.h5") as run:
            try:
                close(run.model, row.limit, row.accuracy)
            except AssertionError as error:
                wrong[row.id] = str(error)
    assert not wrong
