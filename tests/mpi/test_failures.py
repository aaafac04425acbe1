"""Errors during a run, and ranks that end: a client's costs the client, the server's the run; each is reported once."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifl import open_run
from tests.faults.harness import began, needs_tolerance, pids
from tests.mpi.cases import job
from tests.mpi.conftest import MPIFL, RUN, Command, Start, in_one_job, until, write
from tests.mpi.files import differing
from tests.tiers import long, parameters

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 20}}
VIRTUAL = {**REAL, "mode": "virtual"}


def failing(folder: Path, at: str, clock: dict[str, Any] = REAL, dim: int = 20, all: bool = False, **more: Any) -> Path:
    """Writes a job of 6 clients whose client 1, on rank 2 of 4, fails in its round 3, or each does."""
    algorithm = {"name": "tests.mpi.own:Failing", "at": at, "all": all, "trigger": {"every": 3}}
    problem = {"clients": 6, "model": {"name": "quadratic", "dim": dim}}
    rest = {"stop": {"time": 120}, "clock": clock, "evaluate": {"updates": 10}, "output": "f.h5", **more}
    return write(folder, f"failing-{at.replace(' ', '-')}", job(algorithm, problem, seed=1, **rest))


@pytest.mark.parametrize(("clock", "dim"), [pytest.param(REAL, 20, marks=pytest.mark.smoke), long(VIRTUAL, 20000)])
def test_a_client_raises(run: Start, tmp_path: Path, clock: dict[str, Any], dim: int) -> None:
    """It is lost, the others continue, and a replay loses it at the same place."""
    done = run(4, *RUN, failing(tmp_path, "train", clock, dim, stop={"updates": 120}))
    says = f"raised on rank 2 on {socket.gethostname()} (process "
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
    run(3, *MPIFL, "replay", "f.h5", "--trust", code=0)
    assert not differing(tmp_path / "f.h5", tmp_path / "f-replay.h5", but=("events",))


@pytest.mark.parametrize(("at", "rank"), [("init_client", 2), long("init_server", 0)])
def test_a_rule_raises_before_the_run(run: Start, tmp_path: Path, at: str, rank: int) -> None:
    done = run(4, *RUN, failing(tmp_path, at))
    assert done.code == 3 and done.err.count("Traceback") == 1, str(done)
    assert f"rank {rank} on {socket.gethostname()}:\n" in done.err and f"RuntimeError: the rule {at}" in done.err
    assert not (tmp_path / "f.h5").exists()


def test_input_that_is_refused_when_the_ranks_have_begun_releases_them(run: Start, tmp_path: Path) -> None:
    """By an algorithm whose `participation` raises: one line, exit code 2, a closed file, and no rank waits."""
    done = run(4, *RUN, failing(tmp_path, "participation"), deadline=60)
    assert done.code == 2, str(done)
    assert "algorithm.at=participation: is too much for these clients" in done.err and "Traceback" not in done.err
    with open_run(tmp_path / "f.h5") as file:
        assert file.status == "failed" and file.events.kind.tolist() == ["failed"]


def test_a_rank_that_dies_within_its_report_is_lost(start: Start, tmp_path: Path) -> None:
    """Between the frame that announces the text and the text: the others continue."""
    needs_tolerance()
    file = failing(tmp_path, "dies in its report", stop={"updates": 120})
    done = start(4, *MPIFL, "run", file, tolerant=True).end(60)
    assert done.code == 0, str(done)
    with open_run(tmp_path / "f.h5") as file:
        assert file.status == "completed" and len(file.updates) == 120
        assert file.clients.state.tolist() == ["live", "lost", "live", "live", "lost", "live"]  # those of rank 2
        assert file.events[file.events.kind == "lost"].text.tolist() == ["rank 2 died"] * 2


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {  # what client 1 sends: clock, entries of a vector, what is said
    "longer": (REAL, 20, "client 1 sends float32 of shape (21,), not float32 of shape (20,)"),
    "shorter": (VIRTUAL, 20000, "client 1 sends float32 of shape (19999,), not float32 of shape (20000,)"),
    "wider": (REAL, 20000, "client 1 sends float64 of shape (20000,), not float32 of shape (20000,)"),
    "two": (VIRTUAL, 20, "client 1 sends 2 vectors, more than vectors_up"),
    "none": (VIRTUAL, 20, "client 1 sends 0 vectors, fewer than min_vectors_up (1)"),
    "list": (VIRTUAL, 20000, "client 1 sends a list in place of a vector, not float32 of shape (20000,)"),
    "many-steps": (VIRTUAL, 20, f"client 1 sends local_steps={2**70}, not an integer from 0 to 2^31 - 1"),
    "nan": (VIRTUAL, 20, "the update is not finite"),
    "infinite": (VIRTUAL, 20000, "the update is not finite"),
    "large": (VIRTUAL, 20, "the update's norm"),
}


def test_updates_are_refused(tmp_path: Path) -> None:
    """Once each: the client's state is restored, it gets a new message, and continues; so does a replay."""
    more = {"stop": {"updates": 120}, "faults": {"norm": 1e6}}
    files = [failing(tmp_path, at, clock, dim, output=f"{at}.h5", **more) for at, (clock, dim, _) in REFUSED.items()]
    again = [["replay", f"{at}.h5", "--trust"] for at in REFUSED]
    for reply, (_, _, says) in zip(in_one_job(tmp_path, 4, [["run", str(file)] for file in files]), REFUSED.values()):
        assert set(reply.codes) == {0} and re.search("; 1 update refused[;\n]", reply.out), reply
        assert reply.err.startswith("mpifl: update refused: client 1") and reply.err.count("\n") == 1, reply
        (name,) = reply.changed
        with open_run(tmp_path / name) as file:
            assert file.status == "completed" and len(file.updates) == 120
            assert file.clients.state.tolist() == ["live"] * 6
            assert file.events.kind.tolist()[:1] == ["refused"] and file.events.client[0] == 1
            assert file.events.text[0].startswith(says)
            assert np.isfinite(file.model).all() and file.clients.updates[1] > 5
    for at, reply in zip(REFUSED, in_one_job(tmp_path, 0, again)):
        assert reply.codes == [0], reply
        assert not differing(tmp_path / f"{at}.h5", tmp_path / f"{at}-replay.h5", but=("events",))


def test_every_rank_that_dies_is_named(start: Start, tmp_path: Path) -> None:
    """Three of six: at once or one by one, in at most a line a second; the final line counts their clients."""
    needs_tolerance()
    file = write(tmp_path, "dying", job({"name": "area", "trigger": {"every": 3}}, clock=REAL, stop={"time": 2.5}))
    command = start(7, *MPIFL, "run", file, "output=d.h5", tolerant=True)
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
def test_the_server_raises(run: Start, tmp_path: Path, at: str, ranks: int) -> None:
    done = run(ranks, *RUN, failing(tmp_path, at))
    assert done.code == 3 and done.err.count("Traceback") == 1, str(done)
    assert f"RuntimeError: the rule {at} broke\n" in done.err, str(done)
    assert f"rank 0 on {socket.gethostname()}:\n" in done.err
    with open_run(tmp_path / "f.h5") as file:
        assert file.status == "failed" and len(file.updates) > 10
        (text,) = file.events.text
        assert re.fullmatch(rf"RuntimeError: the rule {at} broke \(own\.py:\d+, in _raise\)", text)


# -- ranks that end in any way while others go on (ULFM): the run notices each, and every process ends ----------------
PROBLEM = {"clients": 6, "model": {"name": "quadratic", "dim": 20}, "dtype": "float64"}


@pytest.fixture
def begun(start: Start, tmp_path: Path) -> Callable[..., Command]:
    """begun(at, ...) starts such a job on 4 ranks that outlive each other."""
    needs_tolerance()

    def begin(at: str, *args: Any, ranks: int = 4, **more: Any) -> Command:
        file = failing(tmp_path, at, *args, **{"stop": {"updates": 100}, **more})
        return start(ranks, *MPIFL, "run", file, tolerant=True)

    return begin


@pytest.mark.parametrize(
    ("trouble", "status", "clock"),
    parameters(
        [("exits", 0, REAL), ("exits in C", 1, VIRTUAL), ("succeeds", 0, REAL), ("dies", 0, REAL)],
        [("exits", 0, REAL), ("exits in C", 1, VIRTUAL)],
    ),
)
def test_a_rank_that_exits_is_noticed(
    begun: Any, tmp_path: Path, trouble: str, status: int, clock: dict[str, Any]
) -> None:
    """Its two clients are lost and the run completes; the launcher ends with the status of a rank that exits in C."""
    done = begun(trouble, clock).end(40)
    assert done.code == status and "rank 2 died, with 2 clients" in done.err, str(done)
    assert done.out.endswith("; of 6 clients 2 lost\n"), str(done)
    with open_run(tmp_path / "f.h5") as run:
        assert run.status == "completed" and len(run.updates) == 100
        assert run.clients.state.tolist() == ["live", "lost", "live", "live", "lost", "live"]


@pytest.mark.long
def test_the_others_go_on_after_a_rank_has_exited(begun: Any) -> None:
    """Longer than a rank would after the death of rank 0, which reports that of rank 2."""
    done = begun("exits in C", stop={"time": 8.0}).end(40)
    assert done.code == 1 and "rank 0" not in done.err, str(done)
    assert ": completed, " in done.out and done.out.endswith("; of 6 clients 2 lost\n"), str(done)


@pytest.mark.long
def test_most_ranks_may_exit(begun: Any) -> None:
    """All clients of five ranks do at their fourth contact: the run then fails, and reports that itself."""
    done = begun("exits", all=True, ranks=6).end(40)
    assert done.code == 3 and "the run failed: all clients are lost" in done.err, str(done)


def test_clients_of_a_rank_that_exits_move(begun: Any, tmp_path: Path) -> None:
    """By the policy of ranks that are killed."""
    begun("exits", faults={"lost": "rehost"}).ends_well(40)
    with open_run(tmp_path / "f.h5") as run:
        moved = run.events[run.events.kind == "rehosted"]
        assert sorted(moved.client) == [1, 4] and moved.text.str.endswith("rank 2 died").all()


def test_a_rank_that_exits_before_the_run_ends_it(run: Start, tmp_path: Path) -> None:
    """A module that exits on a client rank when it is imported fails the run."""
    needs_tolerance()
    lines = [
        "import os", "from mpifl.algorithms.fedavg import FedAvg", "class Mine(FedAvg): ...",
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '2': os._exit(7)",
    ]  # fmt: skip
    (tmp_path / "leaves.py").write_text("\n".join(lines))
    case = job({"name": "leaves:Mine"}, PROBLEM, output="f.h5", stop={"updates": 100})
    done = run(4, *MPIFL, "run", write(tmp_path, "leaves", case), tolerant=True, deadline=40)
    assert done.code and "rank 2" in done.err and "died" in done.err, str(done)


def test_a_server_that_exits_ends_the_job(begun: Any) -> None:
    done = begun("server exits").end(40)
    assert done.code in (3, 5) and done.err.count("rank 0 died") == 3, str(done)


@pytest.mark.long
@pytest.mark.parametrize("trouble", ["hangs", "computes"])
def test_clients_that_compute_end_without_the_server(begun: Any, tmp_path: Path, trouble: str) -> None:
    """Rank 0 is killed while all clients compute for ever: each rank ends itself."""
    command = begun(trouble, all=True)
    until((tmp_path / "trouble").exists, command, "trouble")
    os.kill(pids(command)[0], signal.SIGKILL)
    done = command.end(40)
    assert done.code == 3 and done.err.count("ends: rank 0 died") == 3, str(done)


@pytest.mark.long
def test_the_log_names_whom_a_run_that_is_over_waits_for(start: Start, tmp_path: Path) -> None:
    """One line within 10 s; a signal then ends it."""
    command = start(4, *MPIFL, "run", failing(tmp_path, "hangs", stop={"updates": 100}, faults={"grace": 4}))
    until((tmp_path / "trouble").exists, command, "trouble")
    time.sleep(11)
    os.kill(command.rank(0), signal.SIGTERM)
    done = command.end(40)
    says = "the run is over: the server waits for clients 1, 4 on rank 2; faults.patience limits that"
    assert done.err.count("the server waits for") == 1 and says in done.err, str(done)


@pytest.mark.parametrize(
    ("ranks", "pool", "step", "code"),
    parameters([(3, False, 0.1, 0), (0, True, 0.1, 0), (0, False, 1e300, 3)], [(0, False, 1e300, 3)]),
)
def test_threads_of_the_user_do_not_keep_the_command(
    run: Start, tmp_path: Path, ranks: int, pool: bool, step: float, code: int
) -> None:
    """The process ends after the last line, with the exit code of the command. A large step diverges: the run fails."""
    algorithm = {"name": "tests.mpi.own:Lingering", "pool": pool, "step_size": step}
    case = job(algorithm, PROBLEM, clock=VIRTUAL, stop={"updates": 20})
    done = run(ranks, *MPIFL, "run", "-q", write(tmp_path, "l", case), deadline=30)
    assert done.code == code and "KeyboardInterrupt" not in done.err, str(done)
    assert done.out.count(", 20 updates in " if code == 0 else ": failed, ") == 1, str(done)


def test_a_library_call_leaves_threads_and_signals(run: Start, tmp_path: Path) -> None:
    """After `mpifl.run` a thread that is no daemon goes on, and the program ends when it ends."""
    case = job({"name": "fedavg"}, PROBLEM, clock=VIRTUAL, stop={"updates": 20}, output="l.h5")
    lines = [
        "import signal, threading, time, mpifl",
        "threading.Thread(target=lambda: (time.sleep(1.5), print('thread over', flush=True))).start()",
        "before = signal.getsignal(signal.SIGURG)",
        f"mpifl.run(mpifl.load_job({str(write(tmp_path, 'l', case))!r}))",
        "assert signal.getsignal(signal.SIGURG) == before",
    ]
    (tmp_path / "program.py").write_text("\n".join(lines))
    assert run(0, "program.py", deadline=30).out == "thread over\n"


@pytest.mark.long
def test_a_completed_run_with_a_rank_that_hangs_prints_no_abort(run: Start, tmp_path: Path) -> None:
    """MPICH would print `Abort(0)`; Open MPI's launcher has words of its own."""
    file = failing(tmp_path, "hangs", stop={"updates": 50}, faults={"patience": 2.0})
    done = run(4, *MPIFL, "run", file, deadline=40)
    assert done.code == 0 and "Abort(" not in done.err and "completed, 50 updates" in done.out, str(done)
