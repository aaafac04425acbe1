"""Studies under MPI: runs spread over an MPI job's ranks, on groups of its ranks, and under launchers of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import mpifl
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.study import Study, load_study
from mpifl.tools.studies.sweep import sweep
from tests.mpi.conftest import MPIFL, Start, launched, until
from tests.studies.conftest import write
from tests.studies.test_search import written as searched
from tests.studies.test_sweep import contents

__all__ = ["write"]

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]
Write = Callable[..., Path]
ONE_STEP = ("[10, 100]", "[10]"), ("[0.1, 1]", "[1]")  # changes to the study: two runs


@pytest.fixture
def study(write: Write, tmp_path: Path) -> Write:
    """Writes a study of four runs, with further lines and changes; returns its path."""
    four = ("  clock.delay.spread: [0, 5]\n", ""), ("trials: 2", "trials: 1"), (f"{tmp_path}/out/${{name}}", "out")
    return lambda more="", *changes: write(more, *four, *changes)


def assert_as_alone(folder: Path, *overrides: str, processes: int = 1) -> Study:
    """The run files are those of a sweep of one process without MPI, which is returned."""
    alone = load_study(folder / "study.yaml", [f"output={folder}/alone", "ranks=1", *overrides])
    sweep(alone, processes)
    assert contents(folder / "out") == contents(folder / "alone")
    return alone


def times(folder: Path) -> dict[Path, int]:
    """When each run file of a completed run was changed."""
    found = {}
    for path in (folder / "out").glob("*.h5"):
        with mpifl.open_run(path) as file:
            if file.status == "completed":
                found[path] = path.stat().st_mtime_ns
    return found


# -- a rank for each run -----------------------------------------------------------------------------------------------
@pytest.mark.smoke
def test_whole_runs_side_by_side(run: Start, study: Write, tmp_path: Path) -> None:
    """Rank 0 hands out the runs; started again, nothing is left to do."""
    study()
    done = run(3, *MPIFL, "sweep", "study.yaml", code=0)
    assert done.out.splitlines()[-1] == "out: small: 4 of 4 runs completed"
    assert_as_alone(tmp_path)
    before = times(tmp_path)
    run(2, *MPIFL, "sweep", "study.yaml", code=0)
    assert times(tmp_path) == before and len(before) == 4


@pytest.mark.long
@pytest.mark.parametrize(("processes", "ranks"), [(3, 1), (4, 3)])
def test_a_search_makes_the_same_choices_on_any_number_of_ranks(
    run: Start, tmp_path: Path, processes: int, ranks: int
) -> None:
    path = searched(tmp_path)
    done = run(processes, *MPIFL, "sweep", path.name, f"ranks={ranks}", code=0)
    assert done.out.splitlines()[-1].endswith("searched: 2 of 8 runs completed, 6 stopped")
    assert_as_alone(tmp_path)


@pytest.mark.long
def test_wrong_input_and_failed_runs(run: Start, study: Write, tmp_path: Path) -> None:
    study("", ("[10, 100]", "[10, 1.0e+45]"))
    for ranks, words, says in (
        (
            3,
            ["trials=0"],
            "mpifl: trials=0: not a number of trials; expected a number of at least 1, or a list of seeds",
        ),
        (2, ["--processes", "2"], "mpifl: --processes=2: under mpirun each rank but 0"),
        (3, ["ranks=3"], "mpifl: ranks=3: 3 ranks were started, of which rank 0 only dispatches runs"),
    ):
        wrong = run(ranks, *MPIFL, "sweep", "study.yaml", *words, code=2)
        (line,) = [line for line in wrong.err.splitlines() if line.startswith("mpifl: ")]
        assert line.startswith(says) and not (tmp_path / "out").exists()
    failed = run(3, *MPIFL, "sweep", "study.yaml", "retries=0", code=3)
    assert "3 of 4 runs completed, 1 failed" in failed.out


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "more"), [(3, []), (5, ["ranks=2"])], ids=["single", "groups"])
def test_a_killed_rank_ends_the_job_and_the_next_one_continues(
    start: Start, study: Write, tmp_path: Path, ranks: int, more: list[str]
) -> None:
    """At five instants; completed runs are not run again."""
    study()
    command = [*MPIFL, "sweep", "study.yaml", "trials=8", *more]
    completed: dict[Path, int] = {}
    for k in range(5):
        (tmp_path / "out" / "index.json").unlink(missing_ok=True)
        job = start(ranks, *command)
        until(lambda: (tmp_path / "out" / "index.json").exists(), job, "index")
        time.sleep(0.3 * (k % 4))
        with contextlib.suppress(ValueError, ProcessLookupError):  # the job has ended
            os.kill(job.rank(1 + k % (ranks - 1)), signal.SIGKILL)
        job.end()
        now = times(tmp_path)
        assert completed.items() <= now.items()
        completed = now
    assert start(ranks, *command).end().code == 0
    assert len(Index(assert_as_alone(tmp_path, "trials=8", processes=2)).entries) == 32


# -- groups of ranks ---------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_groups_of_ranks(run: Start, study: Write, tmp_path: Path) -> None:
    """Of six ranks one starts the runs, two groups of two compute them, one is idle; the numbers do not change."""
    study("ranks: 2\n")
    done = run(6, *MPIFL, "sweep", "study.yaml", code=0)
    assert done.out.splitlines()[-1] == "out: small: 4 of 4 runs completed"
    for file in (tmp_path / "out").glob("*.h5"):
        with mpifl.open_run(file) as each:
            assert (each.attrs["ranks"], set(each.clients["rank"])) == (2, {1})
    assert_as_alone(tmp_path)


# Prints, on each rank, its number and how many ranks with clients of other groups come before its own on its host.
BEFORE = """
import os, sys
from mpi4py import MPI
from mpifl.transport.groups import worker_groups
from mpifl.transport.handshake import RANKS_BEFORE
comm = MPI.COMM_WORLD
def show(group):
    sys.stdout.write(f"{comm.rank} {os.environ[RANKS_BEFORE]}\\n")
with worker_groups(comm, int(sys.argv[1]), show, show):
    pass
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "expected"), [(1, {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6}), (3, {1: 0, 2: 0, 3: 0, 4: 2, 5: 2, 6: 2})]
)
def test_groups_of_a_host_take_its_gpus_in_turn(
    run: Start, tmp_path: Path, ranks: int, expected: dict[int, int]
) -> None:
    """Of three ranks two have clients, so that the second group begins with the third GPU."""
    (tmp_path / "before.py").write_text(BEFORE)
    done = run(8, "before.py", ranks, code=0)
    assert {int(rank): int(before) for rank, before in map(str.split, done.out.splitlines())} == expected


@pytest.mark.long
def test_groups_work_side_by_side_in_real_time(run: Start, study: Write, tmp_path: Path) -> None:
    """Each of four runs takes 2 s by the clock; the first of two groups is not waited for by the second."""
    study("ranks: 3\nset: {stop.time: 2, clock: {mode: real, delay: {name: exponential, rate: 50}}}\n")
    run(7, *MPIFL, "sweep", "study.yaml", code=0)
    spans = []
    for file in (tmp_path / "out").glob("*.h5"):
        with mpifl.open_run(file) as each:
            assert (each.attrs["ranks"], set(each.clients["rank"])) == (3, {1, 2})
            assert len(each.updates) > 10
            spans.append((each.attrs["began"], each.attrs["began"] + each.attrs["wall_seconds"]))
    spans.sort()
    assert len(spans) == 4
    assert spans[1][0] < spans[0][1]  # the second began before the first ended


@pytest.mark.long
@pytest.mark.parametrize("step", ["1.0e+45", "10"])
def test_a_run_that_fails_leaves_the_other_groups_alone(run: Start, study: Write, tmp_path: Path, step: str) -> None:
    """By refused updates, and by an error of the server's rule, which would end an MPI job of one run."""
    named = ("algorithm: {name: area,", 'algorithm: {name: "tests.mpi.own:FailingAtTen",')
    study("ranks: 2\nretries: 0\n", named, ("[10, 100]", f"[{step}, 100]"))
    done = run(5, *MPIFL, "sweep", "study.yaml")
    assert done.code == 3 and "3 of 4 runs completed, 1 failed" in done.out
    why = "KeyError: 'a mistake' (own.py:" if step == "10" else "all clients are lost"
    assert why in done.out


@pytest.mark.long
def test_a_signal_ends_the_runs_of_all_groups(start: Start, study: Write, tmp_path: Path) -> None:
    """As ahead of a time limit: the launcher passes USR1 on to all ranks; the runs save checkpoints and continue."""
    path = study("ranks: 2\nset: {stop.time: 20, checkpoint.every: 1}\n", *ONE_STEP)
    command = start(5, *MPIFL, "sweep", "study.yaml")
    until(lambda: len({file.parent for file in (tmp_path / "out").glob("*.ckpt/*.json")}) == 2, command, "checkpoints")
    os.kill(command.process.pid, signal.SIGUSR1)
    assert command.end().code == 143
    assert Index(load_study(path, [f"output={tmp_path}/out"])).counts() == {"interrupted": 2}
    assert start(5, *MPIFL, "sweep", "study.yaml").end(120).code == 0
    assert_as_alone(tmp_path, processes=2)


SCRIPT = """
import json, sys, mpifl
from mpi4py import MPI
assert mpifl.sweep("study.yaml").counts() == {"completed": 4}
try:
    mpifl.sweep(mpifl.load_study("study.yaml", "ranks=5"))
except (mpifl.ConfigError, mpifl.RunFailed) as error:
    print(f"rank {MPI.COMM_WORLD.rank}: {type(error).__name__}", flush=True)
"""


@pytest.mark.long
def test_from_python(run: Start, study: Write, tmp_path: Path) -> None:
    """Every rank calls it, and gets the index, or an error."""
    study("ranks: 2\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run(3, "-m", "mpi4py", "script.py", code=0)
    lines = done.out.replace("rank", "\nrank").split("\n")  # those of several ranks may run into one another
    assert sorted(filter(None, lines)) == ["rank 0: ConfigError", "rank 1: RunFailed", "rank 2: RunFailed"]


# -- a launcher for each run -------------------------------------------------------------------------------------------
@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher that the other tests use starts the runs."""
    monkeypatch.setenv("MPIFL_MPIEXEC", launched(1)[0])


@pytest.mark.long
@pytest.mark.usefixtures("launcher")
def test_a_sweep_starts_the_launcher(run: Start, study: Write, tmp_path: Path) -> None:
    path = study("ranks: 2\nretries: 0\n", ("[10, 100]", "[10, 1.0e+45]"))
    done = run(0, *MPIFL, "sweep", "study.yaml", "--processes", "2")
    assert done.code == 3 and "3 of 4 runs completed, 1 failed" in done.out
    assert "the run failed: all clients are lost" in done.out
    alone = load_study(path, [f"output={tmp_path}/alone", "ranks=1"])
    sweep(alone, 1)
    made, expected = contents(tmp_path / "out"), contents(tmp_path / "alone")
    completed = [run.path.name for run in alone.runs if Index(alone).entries[run.identity].status == "completed"]
    assert len(completed) == 3
    assert all(made[name] == expected[name] for name in completed)
    assert not list((tmp_path / "out").glob(".*.yaml"))


@pytest.mark.long
@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_sweep_that_ends_leaves_no_ranks_behind(
    start: Start, study: Write, tmp_path: Path, number: signal.Signals
) -> None:
    """On SIGTERM the ranks save a checkpoint, from which the run continues; on SIGKILL they end with it."""
    path = study("ranks: 2\nset: {stop.time: 100, checkpoint.every: 1}\n", *ONE_STEP)
    command = start(0, *MPIFL, "sweep", "study.yaml", "--processes", "1")
    until(lambda: list((tmp_path / "out").glob("*.ckpt/*.json")), command, "checkpoint")
    os.kill(command.process.pid, number)
    assert command.end().code == (143 if number == signal.SIGTERM else -9)  # it fails if a process is left behind
    if number == signal.SIGTERM:
        assert Index(load_study(path, [f"output={tmp_path}/out"])).counts() == {"interrupted": 1, "waiting": 1}
    assert start(0, *MPIFL, "sweep", "study.yaml", "--processes", "1").end(120).code == 0
    assert_as_alone(tmp_path, processes=2)
