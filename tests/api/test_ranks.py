"""The Python API under mpirun: every rank makes the same calls, and gets the same run or the same error from each."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import mpifl
from tests.api.jobs import JOB, REAL
from tests.faults.harness import needs_tolerance
from tests.mpi.conftest import Start, run, start, until
from tests.mpi.files import consumed, differing

__all__ = ["run", "start"]  # the fixtures
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(150)]

CALLS = """
import json
import mpifl
from mpi4py import MPI

JOB = json.load(open("job.json"))
replies = []

def reply(call, *args, **keys):
    try:
        with call(*args, **keys) as run:
            replies.append([run.status, str(run.path), len(run.updates), float(run.model.sum())])
    except (mpifl.ConfigError, mpifl.RunFailed) as error:
        replies.append([type(error).__name__, str(error)])

reply(mpifl.run, JOB)
reply(mpifl.run, JOB, "algorithm.step_sise=1")
reply(mpifl.run, "none.yaml")
reply(mpifl.run, JOB)
reply(mpifl.run, JOB, algorithm="nowhere:Own")
failing = {"name": "tests.mpi.own:Failing", "at": "train"}
reply(mpifl.run, JOB, algorithm=failing, faults={"lost": "stop"}, output="failed.h5")
reply(mpifl.replay, "results/small.h5", output="again.h5")
reply(mpifl.resume, "again.h5")
reply(mpifl.run, JOB, seed=8, output="last.h5")
json.dump(replies, open(f"rank{MPI.COMM_WORLD.rank}.json", "w"))
"""


@pytest.mark.smoke
def test_one_program_of_many_calls(run: Start, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    (tmp_path / "calls.py").write_text(CALLS)
    assert not run(3, "calls.py", deadline=100, code=0).out
    replies = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(3)]
    assert replies[0] == replies[1] == replies[2]
    first, key, missing, existing, own, failed, again, resumed, last = replies[0]
    assert first[:3] == ["completed", "results/small.h5", 60] and last[:3] == ["completed", "last.h5", 60]
    assert key[0] == "ConfigError" and key[1].endswith("the nearest is algorithm.step_size")
    assert missing == ["ConfigError", "job=none.yaml: no such file; expected an existing job file"]
    assert existing[0] == "ConfigError" and "overwrite=true" in existing[1]
    assert own[0] == "ConfigError" and "nowhere:Own" in own[1]
    assert failed[0] == "RunFailed" and "the rule train broke" in failed[1]
    assert again[:3] == ["completed", "again.h5", 60] and again[3] == first[3]
    assert resumed[0] == "ConfigError" and "completed" in resumed[1]
    assert mpifl.open_run(tmp_path / "failed.h5").status == "failed"
    alone = mpifl.run(JOB, output=tmp_path / "alone.h5")
    assert not differing(alone.path, tmp_path / "results/small.h5")


@pytest.mark.long
def test_a_signal_to_one_rank_interrupts_every_rank(start: Start, tmp_path: Path) -> None:
    """A signal to one rank: the file is closed, and every rank gets a KeyboardInterrupt after which it can go on."""
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "clock": REAL, "stop": {"time": 1000}}))
    (tmp_path / "interrupted.py").write_text(
        "import json, mpifl\n"
        "job = json.load(open('job.json'))\n"
        "try:\n    mpifl.run(job)\n"
        "except KeyboardInterrupt as error:\n    print(type(error).__name__, error.code)\n"
        "print(mpifl.run(job, 'stop={updates: 20}', output='next.h5').status)\n"
    )
    command = start(3, "interrupted.py")
    path = tmp_path / "results" / "small.h5"
    until(lambda: consumed(path) > 10, command, "updates")
    os.kill(command.rank(1), signal.SIGTERM)
    done = command.ends_well()
    assert sorted(done.out.split("\n")) == ["", *["Interrupted 143"] * 3, *["completed"] * 3], str(done)
    assert mpifl.open_run(path).status == "interrupted"


TWO_RUNS = """
import json, sys, mpifl
from mpi4py import MPI
job = json.load(open("job.json"))
print(mpifl.run(job, output="one.h5").status, flush=True)
try:
    mpifl.run(job, output="two.h5")
except mpifl.RunFailed as error:
    print(str(error).partition(" died ")[2], flush=True)
    if "uncaught" in sys.argv:
        raise
"""


@pytest.mark.long
@pytest.mark.parametrize(("words", "code"), [([], 0), (["uncaught"], 1)])
def test_a_second_run_where_a_rank_has_died(
    run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    """It fails on all ranks that are left, with one line; the program, which has started MPI itself and exports what it
    is warned of, ends with that, if it does not catch it."""
    needs_tolerance()
    monkeypatch.setenv("OMPI_MCA_async_mpi_finalize", "1")
    algorithm = {"name": "tests.mpi.own:Failing", "at": "dies", "trigger": {"every": 3}}
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "clock": REAL, "algorithm": algorithm}))
    (tmp_path / "program.py").write_text(TWO_RUNS)
    done = run(4, "program.py", *words, tolerant=True, deadline=40)
    died = "before this run; a program that has lost ranks has to be started again\n"
    assert done.out.count("completed") == 3 and done.out.count(died) == 3, str(done)
    assert done.code == code and done.err.count("Traceback") == (3 if code else 0), str(done)
    assert not (tmp_path / "two.h5").exists()


STARTED = """
import json, sys, mpifl
from mpi4py import MPI
print(mpifl.run(json.load(open("job.json"))).status)
"""


@pytest.mark.long
def test_a_program_that_has_started_mpi_is_warned_of_its_end(
    run: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, from rank 0; none where the variable is set."""
    needs_tolerance()
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    (tmp_path / "started.py").write_text(STARTED)
    for value, lines in ((None, 1), ("1", 0)):
        if value:
            monkeypatch.setenv("OMPI_MCA_async_mpi_finalize", value)
        done = run(3, "started.py", tolerant=True, code=0)
        assert done.err.count("OMPI_MCA_async_mpi_finalize=1") == done.err.count("RuntimeWarning") == lines, str(done)
        (tmp_path / "results" / "small.h5").unlink()
