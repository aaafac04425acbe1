"""Scalars for TensorBoard while a run goes on: signals, kills and resumes, with and without MPI."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import mpifl
from tests.api.jobs import JOB, REAL
from tests.export.events import assert_complete, scalars
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


def test_a_killed_run_has_left_its_points(start: Start, tmp_path: Path) -> None:
    """They are in the event file within seconds. A resume makes those after its checkpoint anew, each step once."""
    job = {**LIVE, "name": "killed", "stop": {"updates": 1500}, "checkpoint": {"updates": 200}}
    command = start(0, *MPIFL, "run", write(tmp_path, "killed", job))
    there = tmp_path / "results/killed-tensorboard"

    def last() -> int:
        return max((step for step, *_ in scalars(there).get("evaluations/train_loss", ())), default=0)

    until(lambda: there.is_dir() and last() > 450, command, "points beyond a checkpoint")
    command.kill()
    command.end()
    assert 450 < last() < 1500
    start(0, *MPIFL, "resume", tmp_path / "results/killed.h5").ends_well()
    assert assert_complete(tmp_path / "results/killed.h5")["evaluations/train_loss"][-1][0] == 1500
