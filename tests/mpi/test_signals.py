"""A signal ends a run cleanly: the file is whole and says so, and no process stays."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mpifl import open_run
from mpifl.errors import ConfigError
from tests.mpi.conftest import RUN, Start, until, write
from tests.tiers import long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
JOB = {
    "seed": 1,
    "problem": {"clients": 6, "model": {"name": "quadratic", "dim": 20}},
    "algorithm": {"name": "area", "trigger": {"every": 3}},
    "stop": {"time": 1e4},
    "evaluate": {"updates": 10},
    "output": "s.h5",
}
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 20}}
SLOW = {"mode": "real", "delay": {"name": "fixed", "seconds": 1000}}
VIRTUAL = {"mode": "virtual", "delay": {"name": "exponential", "rate": 20}}


def running(path: Path, updates: int) -> bool:
    """Whether the run's file says that so many updates have been consumed."""
    try:
        with open_run(path) as file:
            return bool(file.attrs["began"] > 0 and len(file.updates) >= updates)
    except ConfigError:
        return False  # not there yet


@pytest.mark.parametrize(
    ("to", "number", "ranks", "clock"),
    [
        pytest.param("launcher", signal.SIGTERM, 4, REAL, marks=pytest.mark.smoke),
        ("launcher", signal.SIGTERM, 3, SLOW),
        long("launcher", signal.SIGINT, 3, REAL),
        ("rank 0", signal.SIGTERM, 3, VIRTUAL),
        long("rank 0", signal.SIGINT, 4, REAL),
        long("rank 0", signal.SIGTERM, 0, REAL),
        ("rank 0", signal.SIGINT, 0, REAL),
        long("rank 0", signal.SIGINT, 0, VIRTUAL),
    ],
)
def test_interrupted(start: Start, tmp_path: Path, to: str, number: signal.Signals, ranks: int, clock: dict) -> None:  # type: ignore[type-arg]
    path = tmp_path / "s.h5"
    command = start(ranks, *RUN, write(tmp_path, "signal", {**JOB, "clock": clock}))
    until(lambda: running(path, 0 if clock is SLOW else 1), command, "updates")
    os.kill(command.rank(0) if ranks and to == "rank 0" else command.process.pid, number)
    done = command.end(20)
    with open_run(path) as file:
        assert file.status == "interrupted", str(done)
        assert not file.open_ended
        assert file.clients.updates.sum() == len(file.updates)
        assert file.model_version == len(file.aggregations)
        assert file.evaluations.updates.is_monotonic_increasing
    assert "Traceback" not in done.err, str(done)
    assert done.code in {128 + number} | ({1} if to == "launcher" else set()), str(done)  # Open MPI's own is 1
    before = path.read_bytes()
    replayed = start(0, "-m", "mpifl", "replay", path).end()
    assert replayed.code == 0, replayed
    with open_run(path) as file, open_run(tmp_path / "s-replay.h5") as again:
        assert (file.model == again.model).all() and again.status == "completed"
    assert path.read_bytes() == before


def test_a_rank_is_killed(start: Start, tmp_path: Path) -> None:
    """The launcher ends the others; what was written stays readable."""
    command = start(4, *RUN, write(tmp_path, "killed", {**JOB, "clock": REAL}))
    until(lambda: running(tmp_path / "s.h5", 20), command, "updates")
    os.kill(command.rank(2), signal.SIGKILL)
    done = command.end(20)
    assert done.code not in (0, 2) and "Traceback" not in done.err, str(done)
    with open_run(tmp_path / "s.h5") as file:
        # Open MPI asks the others to end before it kills them, so the server may close the file in time.
        assert file.status in ("running", "interrupted") and len(file.updates) >= 20
        assert file.open_ended == (file.status == "running")
