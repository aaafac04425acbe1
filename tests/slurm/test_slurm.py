"""The SLURM batch scripts on a real SLURM: two nodes on this host, started by cluster.sh beside this file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpifl import open_run
from mpifl.cli import main
from mpifl.errors import ConfigError
from mpifl.records.checkpoint import folder_of, sets
from tests.faults.harness import Tally, tally
from tests.mpi.conftest import write
from tests.mpi.files import differing

ROOT = Path(__file__).parents[2]
CLUSTER = Path(__file__).with_name("cluster.sh")
SCRIPTS = ROOT / "jobs" / "slurm"
DAEMONS = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
MISSING = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name, path=DAEMONS)]
DEADLINE = 300  # seconds for one job, all times that it is started

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(500),
    pytest.mark.skipif(os.environ.get("MPIFL_TEST_SLURM") != "1", reason="MPIFL_TEST_SLURM=1 is not set"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (see tests/slurm/cluster.sh)"),
]

# Both nodes have this host's name, so each rank leaves a file that says on which one it is.
WITNESS = """
import os, pathlib
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMIX_RANK")
if rank is not None:
    pathlib.Path({folder!r}, f"{{rank}}-{{os.environ['SLURMD_NODENAME']}}").touch()
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A running cluster: the environment to submit from. It ends with the test, whatever came."""
    folder = tmp_path / "cluster"
    try:
        up = subprocess.run([CLUSTER, "up", folder], text=True, stdout=subprocess.PIPE, timeout=120)
        assert up.returncode == 0, up.stdout
        (tmp_path / "ranks").mkdir()
        (tmp_path / "sitecustomize.py").write_text(WITNESS.format(folder=str(tmp_path / "ranks")))
        yield {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))},
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), DAEMONS)),
            "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
    finally:
        subprocess.run([CLUSTER, "down", folder], check=True, timeout=120)


def ask(slurm: dict[str, str], *command: str | Path) -> str:
    """What one of SLURM's commands prints."""
    words = list(map(str, command))
    return subprocess.run(words, env=slurm, cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE).stdout.strip()


def facts(slurm: dict[str, str], job: str) -> dict[str, str]:
    """What SLURM knows of a job."""
    return dict(re.findall(r"(JobState|ExitCode|Restarts)=(\S+)", ask(slurm, "scontrol", "show", "job", job)))


def until(done: Callable[[], object], what: str, deadline: float = DEADLINE) -> None:
    end = time.monotonic() + deadline
    while not done():
        if time.monotonic() > end:
            pytest.fail(f"no {what} in {deadline} s")
        time.sleep(0.2)


def finished(slurm: dict[str, str], job: str) -> tuple[str, str]:
    """SLURM's state and exit code of the job once it has ended, such as ("COMPLETED", "0:0")."""
    until(lambda: facts(slurm, job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), f"end of job {job}")
    return facts(slurm, job)["JobState"], facts(slurm, job)["ExitCode"]


def submit(slurm: dict[str, str], *arguments: str | Path) -> tuple[str, str]:
    return finished(slurm, ask(slurm, "sbatch", "--parsable", *arguments))


def test_run_over_two_nodes(slurm: dict[str, str], tmp_path: Path) -> None:
    output, run_file = tmp_path / "job.out", tmp_path / "run.h5"
    state = submit(
        slurm, "--nodes=2", "--ntasks-per-node=4", f"--output={output}",
        SCRIPTS / "several-nodes.sbatch", "jobs/quickstart.yaml", "stop.time=3", f"output={run_file}",
    )  # fmt: skip
    assert state == ("COMPLETED", "0:0"), output.read_text()
    run = open_run(run_file)
    assert run.status == "completed"
    assert run.attrs["ranks"] == 8
    assert set(run.clients["rank"]) == set(range(1, 8))
    assert set(run.updates["client"]) == set(run.clients.index)  # every client's updates came
    nodes = dict(path.name.split("-") for path in (tmp_path / "ranks").iterdir())
    assert set(nodes) == {str(rank) for rank in range(8)}
    assert Counter(nodes.values()) == {"n1": 4, "n2": 4}


def test_run_on_one_node(slurm: dict[str, str], tmp_path: Path) -> None:
    output, run_file = tmp_path / "job.out", tmp_path / "run.h5"
    state = submit(
        slurm, "--ntasks-per-node=3", f"--output={output}",
        SCRIPTS / "one-node.sbatch", "jobs/quickstart.yaml", "stop.time=1", f"output={run_file}",
    )  # fmt: skip
    assert state == ("COMPLETED", "0:0"), output.read_text()
    assert open_run(run_file).attrs["ranks"] == 3


def test_mistake_in_the_job_ends_it_with_exit_code_2(slurm: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "job.out"
    state = submit(
        slurm, "--nodes=2", "--ntasks-per-node=2", f"--output={output}",
        SCRIPTS / "several-nodes.sbatch", "jobs/quickstart.yaml", "stop.tyme=3",
    )  # fmt: skip
    assert state == ("FAILED", "2:0"), output.read_text()
    assert "stop.tyme" in output.read_text()


# -- a run that does not end in one go ---------------------------------------------------------------------------------
SLOW = """
import os, time
from dataclasses import dataclass
from mpifl.algorithms.area import Area

@dataclass(frozen=True)
class Slow(Area):
    def train(self, client, message, objective):
        time.sleep(float(os.environ.get("SLOW", "0")))
        return super().train(client, message, objective)
"""


@pytest.fixture(scope="module")
def counted() -> Iterator[Tally]:
    with tally(7, "slurm") as count:
        yield count


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[Path, Path]]:
    """Writes a job of so many updates in virtual time, and runs it without SLURM: the job's file, the run file."""
    (tmp_path / "own_slow.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)

    def job(updates: int) -> tuple[Path, Path]:
        algorithm = {"name": "own_slow:Slow", "step_size": 0.1, "step_weights": "one", "trigger": {"every": 4}}
        problem = {"clients": 14, "model": {"name": "quadratic", "dim": 30, "sigma": 0.2}}
        clock = {"mode": "virtual", "delay": {"name": "exponential", "rate": 10, "spread": 3}}
        more = {"seed": 1, "stop": {"updates": updates}, "evaluate": {"updates": updates // 9}}
        file = write(tmp_path, "slow", {"algorithm": algorithm, "problem": problem, "clock": clock, **more})
        assert main(["run", str(file), f"output={tmp_path / 'whole.h5'}"]) == 0
        return file, tmp_path / "whole.h5"

    return job


def consumed(path: Path) -> int:
    """The updates in a run file, which may not be there yet."""
    try:
        with open_run(path) as run:
            return len(run.updates)
    except ConfigError:
        return 0


def two_nodes(seconds: float) -> tuple[str | Path, ...]:
    """What sbatch is given; a contact takes so many seconds, and seven go on at a time."""
    return "--nodes=2", "--ntasks-per-node=4", f"--export=ALL,SLOW={seconds}", SCRIPTS / "several-nodes.sbatch"


def check_resumed(path: Path, whole: Path, output: Path, times: int) -> None:
    assert not differing(path, whole, but=("events",)), "not the run that nobody disturbed"
    with open_run(path) as run:
        assert run.status == "completed" and run.attrs["ranks"] == 8
        assert run.events.kind.tolist().count("resumed") == times, output.read_text()


def test_warned_saved_and_started_again(
    slurm: dict[str, str], slow: Callable[[int], tuple[Path, Path]], tmp_path: Path, counted: Tally
) -> None:
    """Twice; without checkpoints by time or count, there are those that the signal asks for."""
    file, whole = slow(3000)
    output, path = tmp_path / "job.out", tmp_path / "run.h5"
    with counted.run("scancel --batch --signal=USR1, twice") as told:
        job = ask(slurm, "sbatch", "--parsable", f"--output={output}", *two_nodes(0.05), file, f"output={path}")
        for k in (1, 2):
            until(lambda k=k: consumed(path) > k * 700 and facts(slurm, job)["JobState"] == "RUNNING", "updates")
            ask(slurm, "scancel", "--batch", "--signal=USR1", job)
            until(lambda k=k: facts(slurm, job)["Restarts"] == str(k), "requeue")
            assert sets(folder_of(path)), output.read_text()
        assert finished(slurm, job) == ("COMPLETED", "0:0"), output.read_text()
        check_resumed(path, whole, output, 2)
        told[0] = "saved, started again, bit-identical"


def test_time_limit(
    slurm: dict[str, str], slow: Callable[[int], tuple[Path, Path]], tmp_path: Path, counted: Tally
) -> None:
    file, whole = slow(1800)
    output, path = tmp_path / "job.out", tmp_path / "run.h5"
    limit = ("--time=1", "--signal=B:USR1@10")  # SLURM warns 10 to 40 s before the end of the minute
    with counted.run("time limit") as told:
        job = ask(slurm, "sbatch", "--parsable", f"--output={output}", *limit, *two_nodes(0.12), file, f"output={path}")
        assert finished(slurm, job) == ("COMPLETED", "0:0"), output.read_text()
        times = int(facts(slurm, job)["Restarts"])
        assert times >= 1, output.read_text()
        check_resumed(path, whole, output, times)
        told[0] = "saved, started again, bit-identical"


def test_a_node_fails(
    slurm: dict[str, str], slow: Callable[[int], tuple[Path, Path]], tmp_path: Path, counted: Tally
) -> None:
    """SLURM kills the job, and starts it again once there are two nodes; it goes on from the last checkpoint."""
    file, whole = slow(3000)
    output, path = tmp_path / "job.out", tmp_path / "run.h5"
    every = "checkpoint.updates=200"
    with counted.run("a node fails") as told:
        job = ask(slurm, "sbatch", "--parsable", f"--output={output}", *two_nodes(0.05), file, f"output={path}", every)
        until(lambda: sets(folder_of(path))[-1:] > [2], "checkpoints")
        ask(slurm, "scontrol", "update", "nodename=n2", "state=down", "reason=test")
        until(lambda: facts(slurm, job)["Restarts"] == "1", "requeue")  # the node comes back: ReturnToService=2
        assert finished(slurm, job) == ("COMPLETED", "0:0"), output.read_text()
        check_resumed(path, whole, output, 1)
        told[0] = "started again from the last checkpoint, bit-identical"
