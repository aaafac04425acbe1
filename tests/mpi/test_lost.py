"""Clients that raise or never answer, on real ranks: where they continue, and how the job ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from mpifl.checkpoint.sets import newest
from mpifl.runfile.checkpoint_folder import folder_of
from tests.faults.harness import FULL, began, intolerant, needs_tolerance
from tests.faults.spy import gap_at_checkpoint
from tests.mpi.cases import job
from tests.mpi.conftest import MPIFL, RUN, Start, until, write
from tests.mpi.files import differing

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not FULL, reason="minutes: in the full pass, make faults"),
]
VIRTUAL = {"mode": "virtual", "delay": {"name": "exponential", "rate": 20}}
REAL = {**VIRTUAL, "mode": "real"}
SMALL = {"clients": 6, "model": {"name": "quadratic", "dim": 20}, "dtype": "float64"}
LARGE = {"clients": 6, "model": {"name": "quadratic", "dim": 9000}, "dtype": "float64"}


@pytest.fixture
def faulty(tmp_path: Path) -> Any:
    """Writes a job of 6 clients whose client 1 fails in its round 3."""

    def made(trouble: str, problem: dict[str, Any] = SMALL, times: int = 1, **more: Any) -> Path:
        algorithm = {"name": "tests.mpi.faulty:Faulty", "trouble": trouble, "times": times, "step_weights": "one"}
        rest = {"stop": {"updates": 200}, "checkpoint": {"updates": 15}, "output": "f.h5", **more}
        return write(tmp_path, "faulty", job({**algorithm, "trigger": {"every": 3}}, problem, **rest))

    return made


def complete(path: Path, states: list[str]) -> Any:
    """The events of a run that completed, with its clients in these states."""
    with open_run(path) as run:
        assert run.status == "completed" and not run.open_ended and len(run.updates) == 200
        assert run.clients.state.tolist() == states
        assert np.array_equal(run.clients.updates, np.bincount(run.updates.client, minlength=6))
        assert np.isfinite(run.model).all() and run.model_version == len(run.aggregations)
        return run.events


def replays_in_peace(run: Start, folder: Path) -> None:
    """Replays the run from its record, with clients that do not fail."""
    (folder / "peace").touch()
    run(0, *MPIFL, "replay", "f.h5", "--trust", code=0)
    assert not differing(folder / "f.h5", folder / "f-replay.h5", but=("events",))


PATIENCE = 4  # s, on a machine that is busy with other things too
LIVE, TWO_LOST = ["live"] * 6, ["live", "lost", "live", "live", "lost", "live"]


@pytest.mark.parametrize(
    ("clock", "problem", "more"),
    [
        pytest.param(REAL, SMALL, {}, marks=pytest.mark.smoke),
        (VIRTUAL, LARGE, {}),
        (VIRTUAL, SMALL, {"checkpoint": {"updates": 150}}),  # from its first state
    ],
)
def test_a_client_moves(
    run: Start, faulty: Any, tmp_path: Path, clock: Any, problem: Any, more: dict[str, Any]
) -> None:
    """A client that raised continues on another rank, and the server's sums over all clients are right."""
    done = run(4, *RUN, faulty("raises", problem, clock=clock, faults={"lost": "rehost"}, **more))
    assert done.code == 0 and done.err.count("Traceback") == 1, str(done)
    path = tmp_path / "f.h5"
    events = complete(path, LIVE)
    (moved,) = events[events.kind == "rehosted"].itertuples()
    assert moved.client == 1 and moved.text.startswith("to rank ") and "raised on rank 2" in moved.text
    with open_run(path) as file:
        last, _ = newest(folder_of(path), file.id)
        assert last and last.server().loop.updates > moved.updates
        assert last.server().client_rank != [1, 2, 3, 1, 2, 3] or "to rank 2" in moved.text
        assert (file.updates.client[moved.updates :] == 1).sum() > 5
    assert gap_at_checkpoint(path) < 1e-12


def test_a_client_that_raises_everywhere(run: Start, faulty: Any, tmp_path: Path) -> None:
    """It is moved a limited number of times, and the run continues without it."""
    done = run(4, *RUN, faulty("raises", times=1000, clock=VIRTUAL, faults={"lost": "rehost", "refusals": 2}))
    assert done.code == 0 and done.err.count("Traceback") == 1, str(done)
    events = complete(tmp_path / "f.h5", ["live", "lost", *LIVE[2:]])
    assert events.kind[events.client == 1].tolist() == ["rehosted", "rehosted", "lost"]


@pytest.mark.parametrize("clock", [REAL, VIRTUAL], ids=["real", "virtual"])
def test_a_client_that_never_answers(run: Start, faulty: Any, tmp_path: Path, clock: Any) -> None:
    """It is abandoned, and so are the clients that wait for it on its rank; the job ends with the run's exit code."""
    file = faulty("hangs", clock=clock, faults={"patience": PATIENCE}, checkpoint={"updates": 50})
    run(4, *RUN, file, deadline=40, code=0)
    events = complete(tmp_path / "f.h5", TWO_LOST)
    lost = events[events.kind == "lost"]
    assert set(lost.client) == {1, 4} and set(lost.text) == {f"gave no answer for {PATIENCE} s"}
    replays_in_peace(run, tmp_path)


@pytest.mark.parametrize("clock", [REAL, VIRTUAL], ids=["real", "virtual"])
def test_those_who_wait_for_it_move(run: Start, faulty: Any, tmp_path: Path, clock: Any) -> None:
    """They move to ranks that answer."""
    run(4, *RUN, faulty("hangs", clock=clock, faults={"patience": PATIENCE, "lost": "rehost"}), deadline=40, code=0)
    events = complete(tmp_path / "f.h5", LIVE)
    moved = events[events.kind == "rehosted"]
    assert sorted(moved.client) == [1, 4] and not moved.text.str.startswith("to rank 2").any(), moved.text.tolist()
    with open_run(tmp_path / "f.h5") as file:
        assert {1, 4} <= set(file.updates.client[moved.updates.max() :])


def test_a_client_that_never_answers_anywhere(run: Start, faulty: Any, tmp_path: Path) -> None:
    """It is moved a limited number of times; the clients that wait for it continue."""
    faults = {"patience": PATIENCE, "lost": "rehost", "refusals": 1}
    run(6, *RUN, faulty("hangs", times=1000, clock=VIRTUAL, faults=faults), code=0)
    events = complete(tmp_path / "f.h5", ["live", "lost", *LIVE[2:]])
    assert events.kind[events.client == 1].tolist() == ["rehosted", "lost"]


def test_a_signal_while_a_client_hangs(start: Start, faulty: Any, tmp_path: Path) -> None:
    """With patience the checkpoint that the signal asks for is abandoned like the client, and the job ends."""
    file = faulty("hangs", clock=REAL, faults={"patience": PATIENCE}, stop={"time": 1000})
    command = start(4, *RUN, file)
    until((tmp_path / "trouble").exists, command, "trouble")
    os.kill(command.rank(0), signal.SIGTERM)
    command.ends_well(20, 143)
    with open_run(tmp_path / "f.h5") as run:
        assert run.status == "interrupted"


def test_a_run_file_that_vanishes(start: Start, tmp_path: Path) -> None:
    """Without checkpoints this is noticed at the end, when the other ranks have ended; the exit code reports it."""
    more = {"clock": REAL, "stop": {"time": 3.0}, "output": "v.h5"}
    file = write(tmp_path, "v", job({"name": "area", "trigger": {"every": 3}}, SMALL, **more))
    command = start(3, *RUN, file, tolerant=not intolerant())
    until(lambda: began(tmp_path / "v.h5"), command, "the start")
    (tmp_path / "v.h5").unlink()
    assert "mpifl: the run failed: writing" in command.ends_well(20, 3).err, str(command)


# -- where the MPI tells of deaths -------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", ["freeze", "rehost", "stop"])
def test_a_rank_dies_under_the_virtual_clock(run: Start, tmp_path: Path, faulty: Any, policy: str) -> None:
    needs_tolerance()
    file = faulty("dies", clock=VIRTUAL, faults={"lost": policy})
    done = run(4, *RUN, file, tolerant=True, deadline=40, code=3 if policy == "stop" else 0)
    path = tmp_path / "f.h5"
    if policy == "stop":
        assert "was lost: rank 2 died" in done.err, str(done)
        return
    events = complete(path, LIVE if policy == "rehost" else TWO_LOST)
    assert set(events.client[events.kind == ("rehosted" if policy == "rehost" else "lost")]) == {1, 4}
    if policy == "rehost":
        assert gap_at_checkpoint(path) < 1e-12
    else:
        replays_in_peace(run, tmp_path)
