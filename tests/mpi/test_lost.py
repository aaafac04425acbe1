"""Clients that raise or never answer, on real ranks: where they continue, and how the job ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from mpifl.checkpoint.sets import newest
from mpifl.runfile.checkpoint_folder import folder_of
from mpifl.tools.verify.run_file import check_file
from tests.faults.harness import FULL, needs_tolerance
from tests.faults.spy import gap_at_checkpoint
from tests.mpi.cases import job
from tests.mpi.conftest import MPIFL, RUN, Start, write
from tests.mpi.files import differing

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not FULL, reason="minutes: in the full pass, make faults"),
]
VIRTUAL = {"mode": "virtual", "delay": {"name": "exponential", "rate": 5}}
REAL = {**VIRTUAL, "mode": "real"}  # 200 updates take longer than PATIENCE
SMALL = {"clients": 6, "model": {"name": "quadratic", "dim": 20}, "dtype": "float64"}
LARGE = {"clients": 6, "model": {"name": "quadratic", "dim": 9000}, "dtype": "float64"}


@pytest.fixture
def faulty(tmp_path: Path) -> Any:
    """Writes a job of 6 clients whose client 1 fails in its round 3."""

    def made(trouble: str, problem: dict[str, Any] = SMALL, **more: Any) -> Path:
        algorithm = {"name": "tests.mpi.own:Failing", "at": trouble, "step_weights": "one"}
        rest = {"stop": {"updates": 200}, "checkpoint": {"updates": 15}, "output": "f.h5", **more}
        return write(tmp_path, "faulty", job({**algorithm, "trigger": {"every": 3}}, problem, **rest))

    return made


def complete(path: Path, states: list[str]) -> Any:
    """The events of a run that completed, with its clients in these states."""
    check_file(path)
    with open_run(path) as run:
        assert run.status == "completed" and not run.open_ended and len(run.updates) == 200
        assert run.clients.state.tolist() == states and np.isfinite(run.model).all()
        return run.events


PATIENCE = 4  # s, on a machine that is busy with other things too
LIVE, TWO_LOST = ["live"] * 6, ["live", "lost", "live", "live", "lost", "live"]


@pytest.mark.parametrize(
    ("clock", "problem", "more"),
    [
        (REAL, SMALL, {}),
        (VIRTUAL, LARGE, {}),
        (VIRTUAL, SMALL, {"checkpoint": {"updates": 150}}),  # from its first state
    ],
)
def test_a_client_moves(
    run: Start, faulty: Any, tmp_path: Path, clock: Any, problem: Any, more: dict[str, Any]
) -> None:
    """A client that raised continues on another rank, and the server's sums over all clients are right."""
    done = run(4, *RUN, faulty("train", problem, clock=clock, faults={"lost": "rehost"}, **more))
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


@pytest.mark.parametrize("lost", ["freeze", "rehost"])
@pytest.mark.parametrize(("trouble", "clock"), [("hangs", REAL), ("hangs", VIRTUAL), ("dies", VIRTUAL)])
def test_a_rank_that_never_answers_or_dies(
    run: Start, faulty: Any, tmp_path: Path, trouble: str, clock: Any, lost: str
) -> None:
    """The client is abandoned with those that wait for it on its rank, or they move to ranks that answer; the job ends
    with the run's exit code."""
    if tolerant := trouble == "dies":
        needs_tolerance()
    file = faulty(trouble, clock=clock, faults={"patience": PATIENCE, "lost": lost}, checkpoint={"updates": 50})
    run(4, *RUN, file, tolerant=tolerant, deadline=40, code=0)
    path = tmp_path / "f.h5"
    events = complete(path, LIVE if lost == "rehost" else TWO_LOST)
    rows = events[events.kind == ("rehosted" if lost == "rehost" else "lost")]
    assert set(rows.client) == {1, 4} and len(rows) == 2
    if lost == "freeze":
        assert tolerant or set(rows.text) == {f"gave no answer for {PATIENCE} s"}
        (tmp_path / "peace").touch()  # a replay from the record, with clients that do not fail
        run(0, *MPIFL, "replay", "f.h5", "--trust", code=0)
        assert not differing(path, tmp_path / "f-replay.h5", but=("events",))
        return
    assert not rows.text.str.startswith("to rank 2").any(), rows.text.tolist()
    with open_run(path) as run_:
        assert {1, 4} <= set(run_.updates.client[rows.updates.max() :])
    if tolerant:
        assert gap_at_checkpoint(path) < 1e-12
