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
from tests.mpi.conftest import MPIFL, Start, all_refused, launched, until
from tests.studies.conftest import write
from tests.studies.test_search import written as searched
from tests.studies.test_sweep import contents
from tests.tiers import long

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
@pytest.mark.parametrize(("processes", "more", "ranks", "hosts"), [(3, "", 1, {0}), long(6, "ranks: 2\n", 2, {1})])
def test_whole_runs_side_by_side(
    run: Start, study: Write, tmp_path: Path, processes: int, more: str, ranks: int, hosts: set[int]
) -> None:
    """Rank 0 hands out the runs; started again, nothing is left to do. Of six ranks two groups of two compute the runs,
    one is idle; the numbers do not change."""
    study(more)
    done = run(processes, *MPIFL, "sweep", "study.yaml", code=0)
    assert done.out.splitlines()[-1] == "out: small: 4 of 4 runs completed"
    for file in (tmp_path / "out").glob("*.h5"):
        with mpifl.open_run(file) as each:
            assert (each.attrs["ranks"], set(each.clients["rank"])) == (ranks, hosts)
    assert_as_alone(tmp_path)
    before = times(tmp_path)
    run(processes, *MPIFL, "sweep", "study.yaml", code=0)
    assert times(tmp_path) == before and len(before) == 4


@pytest.mark.long
def test_a_search_makes_the_same_choices_on_several_ranks(run: Start, tmp_path: Path) -> None:
    done = run(4, *MPIFL, "sweep", searched(tmp_path), "ranks=3", code=0)
    assert done.out.splitlines()[-1].endswith("searched: 2 of 8 runs completed, 6 stopped")
    assert_as_alone(tmp_path)


@pytest.mark.long
def test_wrong_input_and_failed_runs(run: Start, study: Write, tmp_path: Path) -> None:
    study("", ("[10, 100]", "[10, 1.0e+45]"))
    wrong = [
        (["trials=0"], "trials=0: not a number of trials; expected a number of at least 1, or a list of seeds"),
        (["--processes", "2"], "--processes=2: under mpirun each rank but 0"),
        (["ranks=3"], "ranks=3: 3 ranks were started, of which rank 0 only dispatches runs"),
    ]
    all_refused(tmp_path, 3, [(["sweep", "study.yaml", *words], says) for words, says in wrong])
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
    start(ranks, *command).ends_well()
    assert len(Index(assert_as_alone(tmp_path, "trials=8", processes=2)).entries) == 32


# -- groups of ranks ---------------------------------------------------------------------------------------------------
# Prints, on each rank, its number and how many ranks with clients of other groups come before its own on its host.
BEFORE = """
import os, sys
from mpi4py import MPI
from mpifl.transport.groups import worker_groups
from mpifl.transport.handshake import RANKS_BEFORE
comm = MPI.COMM_WORLD
def show(group):
    sys.stdout.write(f"{comm.rank} {os.environ[RANKS_BEFORE]}\\n")
with worker_groups(comm, 3, show, show):
    pass
"""


@pytest.mark.long
def test_groups_of_a_host_take_its_gpus_in_turn(run: Start, tmp_path: Path) -> None:
    """Of three ranks two have clients, so that the second group begins with the third GPU."""
    (tmp_path / "before.py").write_text(BEFORE)
    done = run(8, "before.py", code=0)
    assert sorted(done.out.splitlines()) == ["1 0", "2 0", "3 0", "4 2", "5 2", "6 2"]


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
    (_, first_end), (second_begin, _), *_ = sorted(spans)
    assert len(spans) == 4 and second_begin < first_end


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "failed", "why"),
    [
        (("[10, 100]", "[10, 1.0e+45]"), 1, "all clients are lost"),
        (("{name: area,", "{name: 'tests.mpi.own:Failing', at: aggregate,"), 2, "the rule aggregate broke (own.py:"),
    ],
)
def test_a_run_that_fails_leaves_the_other_groups_alone(
    run: Start, study: Write, change: tuple[str, str], failed: int, why: str
) -> None:
    """By refused updates, and by an error of the server's rule, which would end an MPI job of one run."""
    study("ranks: 2\nretries: 0\n", change)
    done = run(5, *MPIFL, "sweep", "study.yaml", code=3)
    assert f"{4 - failed} of 4 runs completed, {failed} failed" in done.out and why in done.out


@pytest.mark.long
def test_a_signal_ends_the_runs_of_all_groups(start: Start, study: Write, tmp_path: Path) -> None:
    """As ahead of a time limit: the launcher passes USR1 on to all ranks; the runs save checkpoints and continue."""
    path = study("ranks: 2\nset: {stop.time: 20, checkpoint.every: 1}\n", *ONE_STEP)
    command = start(5, *MPIFL, "sweep", "study.yaml")
    until(lambda: len({file.parent for file in (tmp_path / "out").glob("*.ckpt/*.json")}) == 2, command, "checkpoints")
    os.kill(command.process.pid, signal.SIGUSR1)
    command.ends_well(code=143)
    assert Index(load_study(path, [f"output={tmp_path}/out"])).counts() == {"interrupted": 2}
    start(5, *MPIFL, "sweep", "study.yaml").ends_well(120)
    assert_as_alone(tmp_path, processes=2)


SCRIPT = """
import mpifl
from mpi4py import MPI
assert mpifl.sweep("study.yaml").counts() == {"completed": 4}
try:
    mpifl.sweep(mpifl.load_study("study.yaml", "ranks=5"))
except (mpifl.ConfigError, mpifl.RunFailed) as error:
    print(f"rank {MPI.COMM_WORLD.rank}: {type(error).__name__}", flush=True)
"""


@pytest.mark.long
def test_every_rank_gets_the_index_of_a_sweep_or_an_error(run: Start, study: Write, tmp_path: Path) -> None:
    """Every rank calls it, and gets the index, or an error."""
    study("ranks: 2\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run(3, "-m", "mpi4py", "script.py", code=0)
    lines = done.out.replace("rank", "\nrank").split("\n")  # those of several ranks may run into one another
    assert sorted(filter(None, lines)) == ["rank 0: ConfigError", "rank 1: RunFailed", "rank 2: RunFailed"]


# -- a launcher for each run -------------------------------------------------------------------------------------------
@pytest.mark.long
def test_a_sweep_starts_the_launcher(run: Start, study: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run fails; those that complete have the rows of a sweep of one process."""
    monkeypatch.setenv("MPIFL_MPIEXEC", launched(1)[0])
    path = study("ranks: 2\nretries: 0\n", ("[10, 100]", "[10, 1.0e+45]"))
    done = run(0, *MPIFL, "sweep", "study.yaml", "--processes", "2", code=3)
    assert "3 of 4 runs completed, 1 failed" in done.out and "the run failed: all clients are lost" in done.out
    sweep(load_study(path, [f"output={tmp_path}/alone", "ranks=1"]), 1)
    made, expected = contents(tmp_path / "out"), contents(tmp_path / "alone")
    completed = [file.name for file in times(tmp_path)]
    assert len(completed) == 3 and all(made[name] == expected[name] for name in completed)
    assert not list((tmp_path / "out").glob(".*.yaml"))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_sweep_that_ends_leaves_no_ranks_behind(
    start: Start, study: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """On SIGTERM the ranks save a checkpoint, from which the run continues; on SIGKILL they end with it."""
    monkeypatch.setenv("MPIFL_MPIEXEC", launched(1)[0])
    path = study("ranks: 2\nset: {stop.time: 100, checkpoint.every: 1}\n", *ONE_STEP)
    command = start(0, *MPIFL, "sweep", "study.yaml", "--processes", "1")
    until(lambda: list((tmp_path / "out").glob("*.ckpt/*.json")), command, "checkpoint")
    os.kill(command.process.pid, number)
    assert command.end().code == (143 if number == signal.SIGTERM else -9)  # it fails if a process is left behind
    if number == signal.SIGTERM:
        assert Index(load_study(path, [f"output={tmp_path}/out"])).counts() == {"interrupted": 1, "waiting": 1}
    start(0, *MPIFL, "sweep", "study.yaml", "--processes", "1").ends_well(120)
    assert_as_alone(tmp_path, processes=2)
