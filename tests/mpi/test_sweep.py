"""A study whose runs are spread over the ranks of an MPI job."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

import mpifl
from mpifl.studies.index import Index
from mpifl.studies.study import load_study
from mpifl.studies.sweep import sweep
from tests.mpi.conftest import MPIFL, Start, until
from tests.studies.conftest import BASE, STUDY
from tests.studies.test_sweep import contents

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of four runs, each of one second of virtual time."""
    (tmp_path / "base.yaml").write_text(BASE)
    text = STUDY.replace("  clock.delay.spread: [0, 5]\n", "").replace("trials: 2", "trials: 1")
    (tmp_path / "study.yaml").write_text(text + "output: out\n")
    return tmp_path / "study.yaml"


@pytest.mark.smoke
def test_whole_runs_side_by_side(run: Start, study: Path, tmp_path: Path) -> None:
    """Rank 0 hands out the runs; the numbers are those of a sweep without MPI; started again, nothing is left to do."""
    done = run(3, *MPIFL, "sweep", "study.yaml")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "out: small: 4 of 4 runs completed"
    made = contents(tmp_path / "out")
    sweep(load_study(study, [f"output={tmp_path}/alone"]), 1)
    assert made == contents(tmp_path / "alone")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.h5")}
    assert run(2, *MPIFL, "sweep", "study.yaml").code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.long
def test_wrong_input_and_failed_runs(run: Start, study: Path, tmp_path: Path) -> None:
    wrong = run(3, *MPIFL, "sweep", "study.yaml", "trials=0")
    assert wrong.code == 2
    assert [line for line in wrong.err.splitlines() if line.startswith("mpifl: ")] == [
        "mpifl: trials=0: a number of trials of at least 1, or a list of seeds"
    ]
    assert not (tmp_path / "out").exists()
    many = run(2, *MPIFL, "sweep", "study.yaml", "--processes", "2")
    assert many.code == 2
    assert "--processes=2: no such option under mpirun" in many.err
    (tmp_path / "study.yaml").write_text(study.read_text().replace("[10, 100]", "[10, 1.0e+30]"))
    failed = run(3, *MPIFL, "sweep", "study.yaml", "retries=0")
    assert failed.code == 3
    assert "3 of 4 runs completed, 1 failed" in failed.out


@pytest.mark.long
def test_a_killed_rank_ends_the_job_and_the_next_one_continues(start: Start, study: Path, tmp_path: Path) -> None:
    """At ten instants; completed runs are not run again, and the numbers are those of a sweep without MPI."""
    completed: dict[Path, int] = {}
    for k in range(10):
        (tmp_path / "out" / "index.json").unlink(missing_ok=True)
        command = start(3, *MPIFL, "sweep", "study.yaml", "trials=8")
        until(lambda: (tmp_path / "out" / "index.json").exists(), command, "index")
        time.sleep(0.3 * (k % 4))
        with contextlib.suppress(ValueError, ProcessLookupError):  # the job has ended
            os.kill(command.rank(1 + k % 2), signal.SIGKILL)
        command.end()
        for path in (tmp_path / "out").glob("*.h5"):
            with mpifl.open_run(path) as file:
                if file.status == "completed":
                    assert completed.setdefault(path, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
    assert start(3, *MPIFL, "sweep", "study.yaml", "trials=8").end().code == 0
    whole = load_study(study, [f"output={tmp_path}/alone", "trials=8"])
    sweep(whole, 2)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    assert len(Index(whole).entries) == 32
