"""Ranks that end in any way while others go on (ULFM): the run notices each, and every process ends."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpifl import open_run
from tests.faults.harness import job as started
from tests.faults.harness import needs_tolerance, pids
from tests.mpi.cases import job
from tests.mpi.conftest import Start, until, write
from tests.tiers import parameters

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
REAL = {"mode": "real", "delay": {"name": "exponential", "rate": 20}}
VIRTUAL = {**REAL, "mode": "virtual"}
PROBLEM = {"clients": 6, "model": {"name": "quadratic", "dim": 20}, "dtype": "float64"}


@pytest.fixture
def faulty(tmp_path: Path) -> Any:
    """Writes a job of 6 clients whose client 1, on rank 2 of 4, fails in its round 3."""
    needs_tolerance()
    return partial(written, tmp_path)


def written(folder: Path, trouble: str, clock: dict[str, Any] = REAL, all: bool = False, **more: Any) -> Path:
    algorithm = {"name": "tests.mpi.faulty:Faulty", "trouble": trouble, "all": all, "trigger": {"every": 3}}
    rest = {"stop": {"updates": 100}, "output": "f.h5", "clock": clock, **more}
    return write(folder, "faulty", job(algorithm, PROBLEM, **rest))


@pytest.mark.parametrize(
    ("trouble", "status", "clock"),
    parameters(
        [("exits", 0, REAL), ("exits in C", 1, VIRTUAL), ("succeeds", 0, REAL), ("dies", 0, REAL)],
        [("exits", 0, REAL), ("exits in C", 1, VIRTUAL)],
    ),
)
def test_a_rank_that_exits_is_noticed(
    faulty: Any, tmp_path: Path, trouble: str, status: int, clock: dict[str, Any]
) -> None:
    """Its two clients are lost and the run completes; the launcher ends with the status of a rank that exits in C."""
    with started(tmp_path, 4, "run", faulty(trouble, clock)) as command:
        done = command.end(40)
    assert done.code == status and "rank 2 died, with 2 clients" in done.err, str(done)
    assert done.out.endswith("; of 6 clients 2 lost\n"), str(done)
    with open_run(tmp_path / "f.h5") as run:
        assert run.status == "completed" and len(run.updates) == 100
        assert run.clients.state.tolist() == ["live", "lost", "live", "live", "lost", "live"]


@pytest.mark.long
def test_the_others_go_on_after_a_rank_has_exited(faulty: Any, tmp_path: Path) -> None:
    """Longer than a rank would after the death of rank 0, which reports that of rank 2."""
    with started(tmp_path, 4, "run", faulty("exits in C", stop={"time": 8.0})) as command:
        done = command.end(40)
    assert done.code == 1 and "rank 0" not in done.err, str(done)
    assert ": completed, " in done.out and done.out.endswith("; of 6 clients 2 lost\n"), str(done)


def test_most_ranks_may_exit(faulty: Any, tmp_path: Path) -> None:
    """All clients of five ranks do at their fourth contact: the run then fails, and reports that itself."""
    with started(tmp_path, 6, "run", faulty("exits", all=True)) as command:
        done = command.end(40)
    assert done.code == 3 and "the run failed: all clients are lost" in done.err, str(done)


def test_clients_of_a_rank_that_exits_move(faulty: Any, tmp_path: Path) -> None:
    """By the policy of ranks that are killed."""
    with started(tmp_path, 4, "run", faulty("exits", faults={"lost": "rehost"})) as command:
        done = command.end(40)
    assert done.code == 0, str(done)
    with open_run(tmp_path / "f.h5") as run:
        moved = run.events[run.events.kind == "rehosted"]
        assert sorted(moved.client) == [1, 4] and moved.text.str.endswith("rank 2 died").all()


def test_a_rank_that_exits_before_the_run_ends_it(faulty: Any, tmp_path: Path) -> None:
    """A module that exits on a client rank when it is imported fails the run."""
    lines = [
        "import os", "from mpifl.algorithms.fedavg import FedAvg", "class Mine(FedAvg): ...",
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '2': os._exit(7)",
    ]  # fmt: skip
    (tmp_path / "leaves.py").write_text("\n".join(lines))
    case = job({"name": "leaves:Mine"}, PROBLEM, output="f.h5", stop={"updates": 100})
    with started(tmp_path, 4, "run", write(tmp_path, "leaves", case)) as command:
        done = command.end(40)
    assert done.code and "rank 2" in done.err and "died" in done.err, str(done)


def test_a_server_that_exits_ends_the_job(faulty: Any, tmp_path: Path) -> None:
    with started(tmp_path, 4, "run", faulty("server exits")) as command:
        done = command.end(40)
    assert done.code in (3, 5) and done.err.count("rank 0 died") == 3, str(done)


@pytest.mark.long
@pytest.mark.parametrize("trouble", ["hangs", "computes"])
def test_clients_that_compute_end_without_the_server(faulty: Any, tmp_path: Path, trouble: str) -> None:
    """Rank 0 is killed while all clients compute for ever: each rank ends itself."""
    with started(tmp_path, 4, "run", faulty(trouble, all=True)) as command:
        until((tmp_path / "trouble").exists, command, "trouble")
        os.kill(pids(command)[0], signal.SIGKILL)
        done = command.end(40)
    assert done.code == 3 and done.err.count("ends: rank 0 died") == 3, str(done)


@pytest.mark.parametrize(
    ("clock", "all", "says"),
    [
        (REAL, True, "no update for 8 s: the server waits for client"),
        (VIRTUAL, False, "no update for 8 s: the server waits for clients 1, 4 on rank 2; faults.patience=null"),
        (REAL, False, "the run is over: the server waits for clients 1, 4 on rank 2; faults.patience limits that"),
    ],
)
@pytest.mark.long
def test_the_log_names_whom_the_server_waits_for(
    start: Start, tmp_path: Path, clock: dict[str, Any], all: bool, says: str
) -> None:
    """One line within 10 s; a signal then ends the run."""
    faults = {"grace": 4}
    command = start(4, "-m", "mpifl", "run", written(tmp_path, "hangs", clock, all, faults=faults))
    until((tmp_path / "trouble").exists, command, "trouble")
    time.sleep(11)
    os.kill(command.rank(0), signal.SIGTERM)
    done = command.end(40)
    assert done.err.count("the server waits for") == 1 and says in done.err, str(done)


@pytest.mark.parametrize(
    ("ranks", "pool", "step", "code"),
    parameters(
        [(3, False, 0.1, 0), (0, True, 0.1, 0), (0, False, 1e300, 3)], [(3, False, 0.1, 0), (0, False, 1e300, 3)]
    ),
)
def test_threads_of_the_user_do_not_keep_the_command(
    run: Start, tmp_path: Path, ranks: int, pool: bool, step: float, code: int
) -> None:
    """The process ends after the last line, with the exit code of the command. A large step diverges: the run fails."""
    algorithm = {"name": "tests.mpi.faulty:Lingering", "pool": pool, "step_size": step}
    case = job(algorithm, PROBLEM, clock=VIRTUAL, stop={"updates": 20})
    done = run(ranks, "-m", "mpifl", "run", "-q", write(tmp_path, "l", case), deadline=30)
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
    done = run(0, "program.py", deadline=30)
    assert done.out == "thread over\n", str(done)


@pytest.mark.long
def test_a_completed_run_with_a_rank_that_hangs_prints_no_abort(run: Start, tmp_path: Path) -> None:
    """MPICH would print `Abort(0)`; Open MPI's launcher has words of its own."""
    file = written(tmp_path, "hangs", stop={"updates": 50}, faults={"patience": 2.0})
    done = run(4, "-m", "mpifl", "run", file, deadline=40)
    assert done.code == 0 and "Abort(" not in done.err and "completed, 50 updates" in done.out, str(done)
