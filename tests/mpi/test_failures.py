"""Errors during a run: a client's error costs the client, the server's the run; each is reported once."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from tests.faults.harness import began, needs_tolerance, pids
from tests.faults.harness import job as started
from tests.mpi.cases import job
from tests.mpi.conftest import MPIFL, RUN, Start, in_one_job, until, write
from tests.mpi.files import differing
from tests.tiers import long, parameters

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 20}}
VIRTUAL = {**REAL, "mode": "virtual"}


@pytest.fixture
def failing(tmp_path: Path) -> Any:
    """Writes the job that fails in a rule."""

    def job(
        at: str, clock: dict[str, Any] = REAL, dim: int = 20, stop: Any = None, name: str = "failing", **more: Any
    ) -> Path:
        algorithm = {"name": "tests.mpi.own:Failing", "at": at, "step_size": 0.05, "trigger": {"every": 3}}
        problem = {"clients": 6, "model": {"name": "quadratic", "dim": dim}}
        rest = {"seed": 1, "clock": clock, "evaluate": {"updates": 10}, "output": "f.h5", **more}
        rest["stop"] = stop or {"time": 120}
        return write(tmp_path, name, {"problem": problem, "algorithm": algorithm, **rest})

    return job


@pytest.mark.parametrize(
    ("ranks", "clock", "dim"),
    [pytest.param(4, REAL, 20, marks=pytest.mark.smoke), long(4, VIRTUAL, 20000), long(0, REAL, 20)],
)
def test_a_client_raises(run: Start, failing: Any, tmp_path: Path, ranks: int, clock: dict[str, Any], dim: int) -> None:
    """It is lost, the others continue, and a replay loses it at the same place."""
    done = run(ranks, *RUN, failing("train", clock, dim, {"updates": 120}))
    where = 1 + 1 % (ranks - 1) if ranks else 0
    says = f"raised on rank {where} on {socket.gethostname()} (process "
    assert done.code == 0, str(done)
    assert done.err.count("Traceback") == 1 and f"mpifl: client 1 {says}" in done.err, str(done)
    assert "\nRuntimeError: the rule train broke\n" in done.err, str(done)
    with open_run(tmp_path / "f.h5") as file:
        assert file.status == "completed" and len(file.updates) == 120
        assert file.clients.state.tolist() == ["live", "lost", *["live"] * 4]
        assert file.clients.updates[1] == 3  # its rounds 0, 1, 2
        lost = file.events[file.events.kind == "lost"]
        assert lost.client.tolist() == [1]
        (text,) = lost.text
        assert text.startswith(says) and text.endswith("RuntimeError: the rule train broke")
    run(3 if ranks else 0, *MPIFL, "replay", "f.h5", "--trust").ends_well()
    assert not differing(tmp_path / "f.h5", tmp_path / "f-replay.h5", but=("events",))


@pytest.mark.parametrize("ranks", [long(3), 0])
def test_a_loss_that_fails_the_run(run: Start, failing: Any, tmp_path: Path, ranks: int) -> None:
    done = run(ranks, *RUN, failing("train", faults={"lost": "stop"}))
    assert done.code == 3 and done.err.count("Traceback") == 1, str(done)
    assert "mpifl: the run failed: client 1 was lost: raised on rank " in done.err, str(done)
    with open_run(tmp_path / "f.h5") as file:
        assert file.status == "failed" and file.attrs["wall_seconds"] < 20
        (text,) = file.events.text[file.events.kind == "failed"]
        assert text.endswith("RuntimeError: the rule train broke")


@pytest.mark.parametrize(("at", "rank"), [("init_client", 2), long("init_server", 0)])
def test_a_rule_raises_before_the_run(run: Start, failing: Any, tmp_path: Path, at: str, rank: int) -> None:
    done = run(4, *RUN, failing(at))
    assert done.code == 3 and done.err.count("Traceback") == 1, str(done)
    assert f"rank {rank} on {socket.gethostname()}:\n" in done.err and f"RuntimeError: the rule {at}" in done.err
    assert not (tmp_path / "f.h5").exists()


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {  # what client 1 sends: clock, entries of a vector, what is said
    "longer": (REAL, 20, "client 1 sends float32 of shape (21,), not float32 of shape (20,)"),
    "shorter": (VIRTUAL, 20000, "client 1 sends float32 of shape (19999,), not float32 of shape (20000,)"),
    "wider": (REAL, 20000, "client 1 sends float64 of shape (20000,), not float32 of shape (20000,)"),
    "two": (VIRTUAL, 20, "client 1 sends 2 vectors, more than vectors_up"),
    "none": (VIRTUAL, 20, "client 1 sends 0 vectors, fewer than min_vectors_up (1)"),
    "list": (VIRTUAL, 20000, "client 1 sends a list in place of a vector, not float32 of shape (20000,)"),
    "many steps": (VIRTUAL, 20, f"client 1 sends local_steps={2**70}, not an integer from 0 to 2^31 - 1"),
    "nan": (VIRTUAL, 20, "the update is not finite"),
    "infinite": (VIRTUAL, 20000, "the update is not finite"),
    "large": (VIRTUAL, 20, "the update's norm"),
}


def test_updates_are_refused(failing: Any, tmp_path: Path) -> None:
    """Once each: the client's state is restored, it gets a new message, and continues; so does a replay."""
    more = {"stop": {"updates": 120}, "faults": {"norm": 1e6}}
    jobs = [failing(at, clock, dim, name=f"r{k}", output=f"{k}.h5", **more)
            for k, (at, (clock, dim, _)) in enumerate(REFUSED.items())]  # fmt: skip
    again = [["replay", f"{k}.h5", "--trust"] for k in range(len(jobs))]
    for reply, (_, _, says) in zip(in_one_job(tmp_path, 4, [["run", str(file)] for file in jobs]), REFUSED.values()):
        assert {*reply.codes} == {0} and reply.out.endswith("; 1 update refused\n"), reply
        assert reply.err.startswith("mpifl: update refused: client 1") and reply.err.count("\n") == 1, reply
        (name,) = reply.changed
        with open_run(tmp_path / name) as file:
            assert file.status == "completed" and len(file.updates) == 120
            assert file.clients.state.tolist() == ["live"] * 6
            assert file.events.kind.tolist()[:1] == ["refused"] and file.events.client[0] == 1
            assert file.events.text[0].startswith(says)
            assert np.isfinite(file.model).all() and file.clients.updates[1] > 5
    for k, reply in enumerate(in_one_job(tmp_path, 0, again)):
        assert reply.codes == [0], reply
        assert not differing(tmp_path / f"{k}.h5", tmp_path / f"{k}-replay.h5", but=("events",))


@pytest.mark.parametrize("ranks", [3, long(0)])
def test_a_client_is_set_aside(run: Start, failing: Any, tmp_path: Path, ranks: int) -> None:
    """After the given number of refusals in a row."""
    done = run(ranks, *RUN, failing("always nan", VIRTUAL, 20, {"updates": 120}, faults={"refusals": 4}))
    assert done.code == 0 and done.out.endswith("; of 6 clients 1 aside; 4 updates refused\n"), str(done)
    assert done.err.startswith("mpifl: update refused: client 1: the update is not finite\n"), str(done)
    with open_run(tmp_path / "f.h5") as file:
        assert file.clients.state[1] == "aside" and file.clients.updates[1] == 3
        told = file.events[file.events.client == 1]
        assert told.kind.tolist() == ["refused"] * 4 + ["aside"]
        assert told.text.iloc[-1] == "4 updates refused in a row: the update is not finite"


def test_nobody_is_left(run: Start, tmp_path: Path) -> None:
    """A run that diverges ends when all updates are infinite."""
    problem = {"clients": 4, "model": {"name": "quadratic", "dim": 5}}
    case = job({"name": "fedavg", "step_size": 1e30}, problem, stop={"time": 1e4}, output="f.h5")
    done = run(3, *RUN, write(tmp_path, "diverges", case), code=3)
    says = r"all clients are lost; the last, client \d: 3 updates refused in a row: the update is not finite\n"
    assert re.search(says, done.err), str(done)
    with open_run(tmp_path / "f.h5") as file:
        assert file.status == "failed" and set(file.clients.state) == {"aside"}


def test_every_rank_that_dies_is_named(tmp_path: Path) -> None:
    """Three of six: at once or one by one, in at most a line a second; the final line counts their clients."""
    needs_tolerance()
    file = write(tmp_path, "dying", job({"name": "area", "trigger": {"every": 3}}, clock=REAL, stop={"time": 2.5}))
    with started(tmp_path, 7, "run", file, "output=d.h5") as command:
        until(lambda: began(tmp_path / "d.h5"), command, "the start")
        ranks = pids(command)
        for rank in (2, 4, 5):
            os.kill(ranks[rank], signal.SIGKILL)
        done = command.end(30)
    lines = [line for line in done.err.splitlines() if line.startswith("mpifl: ")]
    named = [rank for line in lines for rank in re.findall(r"\d+", line.split(" died, with ")[0])]
    assert sorted(map(int, named)) == [2, 4, 5] and len(lines) <= 3, str(done)
    assert done.code == 0 and done.out.endswith("; of 7 clients 3 lost\n"), str(done)


@pytest.mark.parametrize(
    ("at", "ranks"),
    parameters(
        [("receive", 3), ("aggregate", 3), ("message", 3), ("model", 3), ("receive", 0)],
        [("aggregate", 3), ("receive", 0)],
    ),
)
def test_the_server_raises(run: Start, failing: Any, tmp_path: Path, at: str, ranks: int) -> None:
    done = run(ranks, *RUN, failing(at))
    assert done.code == 3 and done.err.count("Traceback") == 1 and f"RuntimeError: the rule {at} broke\n" in done.err, (
        str(done)
    )
    assert f"rank 0 on {socket.gethostname()}:\n" in done.err
    with open_run(tmp_path / "f.h5") as file:
        assert file.status == "failed" and len(file.updates) > 10
        (text,) = file.events.text
        assert re.fullmatch(rf"RuntimeError: the rule {at} broke \(own\.py:\d+, in _raise\)", text)
