"""Scalars for TensorBoard while a run goes on: signals, kills and resumes, with and without MPI."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import mpifl
from tests.api.jobs import JOB, REAL
from tests.export.events import assert_complete
from tests.mpi.conftest import MPIFL, Start, until, write

pytestmark = [pytest.mark.mpi, pytest.mark.long]
LIVE = {**JOB, "output_tensorboard": True, "clock": REAL, "evaluate": {"every": 0.1}}


def test_on_three_ranks(start: Start, tmp_path: Path) -> None:
    """Rank 0 writes; a signal ends the run, and two ranks resume it."""
    command = start(3, *MPIFL, "run", write(tmp_path, "ranks", {**LIVE, "name": "ranks", "stop": {"updates": 600}}))
    path = tmp_path / "results/ranks.h5"
    until(lambda: path.exists() and len(mpifl.open_run(path).evaluations) > 2, command, "evaluations")
    os.kill(command.rank(0), signal.SIGTERM)
    done = command.ends_well(30, 143)
    assert "TensorBoard" not in done.out + done.err, str(done)
    count = len(assert_complete(path)["clients/lost"])
    start(2, *MPIFL, "resume", path).ends_well()
    assert len(assert_complete(path)["clients/lost"]) > count
