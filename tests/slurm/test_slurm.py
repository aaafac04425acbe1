"""Jobs that `mpifl submit` hands to a real SLURM: two nodes on this host, started by cluster.sh beside this file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mpifl import open_run
from mpifl.cli import main
from mpifl.runfile.checkpoint_folder import folder_of, sets
from tests.faults.harness import Counted, counting
from tests.mpi.conftest import write
from tests.mpi.files import consumed, differing

ROOT = Path(__file__).parents[2]
CLUSTER = Path(__file__).with_name("cluster.sh")
JOB = ROOT / "jobs" / "quickstart.yaml"
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


def mpifl_submit(slurm: dict[str, str], folder: Path, *words: object) -> str:
    """Submits in a folder with `mpifl submit`; the number of the job."""
    command = [sys.executable, "-m", "mpifl", "submit", *map(str, words)]
    env = {"SLOW": "0.02", **slurm, "PYTHONPATH": f"{ROOT}:{slurm['PYTHONPATH']}", "XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (number,) = re.findall(r"Submitted batch job (\d+)", done.stdout)
    return str(number)


def logs(folder: Path) -> str:
    """What the batch jobs of a folder logged; a text, since pytest shortens everything else in a message."""
    paths = [path for path in folder.glob("**/*.log") if path.parent.name != "cluster"]
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(paths))


def test_run_over_two_nodes(slurm: dict[str, str], tmp_path: Path) -> None:
    job = mpifl_submit(slurm, tmp_path, JOB, "stop.time=3", "site.nodes=2", "site.ranks_per_node=4")
    assert finished(slurm, job) == ("COMPLETED", "0:0"), logs(tmp_path)
    run = open_run(tmp_path / "results" / "quickstart.h5")
    assert run.status == "completed"
    assert run.attrs["ranks"] == 8
    assert set(run.clients["rank"]) == set(range(1, 8))
    assert set(run.updates["client"]) == set(run.clients.index)  # every client's updates came
    nodes = dict(path.name.split("-") for path in (tmp_path / "ranks").iterdir())
    assert set(nodes) == {str(rank) for rank in range(8)}
    assert Counter(nodes.values()) == {"n1": 4, "n2": 4}


def test_a_group_of_ranks_on_two_nodes(slurm: dict[str, str], tmp_path: Path) -> None:
    """Ranks 1 to 3 compute each client: one beside the server, two on the other node; the bits of one process."""
    words = ["stop={updates: 40}", "clock.mode=virtual", "problem.batch_size=12", "problem.micro_batches=6"]
    words += ["problem.clients=4", "ranks_per_client=3"]
    job = mpifl_submit(slurm, tmp_path, JOB, *words, "site.nodes=2", "site.ranks_per_node=2")
    assert finished(slurm, job) == ("COMPLETED", "0:0"), logs(tmp_path)
    path = tmp_path / "results" / "quickstart.h5"
    nodes = dict(path.name.split("-") for path in (tmp_path / "ranks").iterdir())
    assert nodes == {"0": "n1", "1": "n1", "2": "n2", "3": "n2"}
    with open_run(path) as run:
        assert json.loads(run.attrs["hosts"]) == ["n1", "n1", "n2", "n2"] and set(run.clients["rank"]) == {1}
    assert main(["run", str(JOB), *words, f"output={tmp_path}/one.h5"]) == 0
    assert not differing(path, tmp_path / "one.h5")


def test_run_on_one_node(slurm: dict[str, str], tmp_path: Path) -> None:
    """Ranks that SLURM starts itself."""
    words = ["stop.time=1", "site.ranks_per_node=2", "site.launcher=srun", "site.mpi=pmix"]
    job = mpifl_submit(slurm, tmp_path, JOB, *words)
    assert finished(slurm, job) == ("COMPLETED", "0:0"), logs(tmp_path)
    assert open_run(tmp_path / "results" / "quickstart.h5").attrs["ranks"] == 2


def test_mistake_that_shows_on_the_nodes_ends_the_job_with_exit_code_2(slurm: dict[str, str], tmp_path: Path) -> None:
    """The folder of the data is gone when the job starts."""
    words = ["problem.data=mnist", f"problem.root={tmp_path}/gone", "site.ranks_per_node=2"]
    job = mpifl_submit(slurm, tmp_path, JOB, *words)
    assert finished(slurm, job) == ("FAILED", "2:0"), logs(tmp_path)
    log = logs(tmp_path)
    assert len([line for line in log.splitlines() if line.startswith("mpifl: ")]) == 1
    assert not list(tmp_path.glob("results/*.h5"))


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

counted = counting(7, "slurm")


class Disturbed(NamedTuple):
    """A job under way on two nodes, which something is to happen to."""

    slurm: dict[str, str]
    id: str
    path: Path  # of the run file

    def facts(self) -> dict[str, str]:
        return facts(self.slurm, self.id)


Disturb = Callable[..., contextlib.AbstractContextManager[Disturbed]]


@pytest.fixture
def disturbed(slurm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Counted) -> Disturb:
    """A job in virtual time runs without SLURM; then under it, while a block does something to it: the same file."""
    (tmp_path / "own_slow.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    whole, path = tmp_path / "whole.h5", tmp_path / "results" / "run.h5"

    @contextlib.contextmanager
    def start(what: str, outcome: str, updates: int, contact: float, *keys: str) -> Any:
        """So many updates, of contacts that take so many seconds, seven at a time; keys of the job and the site."""
        algorithm = {"name": "own_slow:Slow", "step_size": 0.1, "step_weights": "one", "trigger": {"every": 4}}
        problem = {"clients": 14, "model": {"name": "quadratic", "dim": 30, "sigma": 0.2}}
        clock = {"mode": "virtual", "delay": {"name": "exponential", "rate": 10, "spread": 3}}
        more = {"seed": 1, "stop": {"updates": updates}, "evaluate": {"updates": updates // 9}}
        file = write(tmp_path, "slow", {"algorithm": algorithm, "problem": problem, "clock": clock, **more})
        assert main(["run", str(file), f"output={whole}"]) == 0
        with counted(what) as told:
            words = (file, f"output={path}", "site.nodes=2", "site.ranks_per_node=4", *keys)
            job = Disturbed(slurm, mpifl_submit({**slurm, "SLOW": str(contact)}, tmp_path, *words), path)
            yield job
            assert finished(slurm, job.id) == ("COMPLETED", "0:0"), logs(tmp_path)
            assert not differing(path, whole, but=("events",)), "not the run that nobody disturbed"
            starts = int(job.facts()["Restarts"])
            assert starts >= 1, logs(tmp_path)
            with open_run(path) as run:
                assert run.status == "completed" and run.attrs["ranks"] == 8
                assert run.events.kind.tolist().count("resumed") == starts, logs(tmp_path)
            told[0] = outcome

    return start


SAVED = "saved, started again, bit-identical"


def test_warned_saved_and_started_again(disturbed: Disturb) -> None:
    """Twice; without checkpoints by time or count, there are those that the signal asks for."""
    with disturbed("scancel --batch --signal=USR1, twice", SAVED, 3000, 0.05) as job:
        for k in (1, 2):
            until(lambda k=k: consumed(job.path) > k * 700 and job.facts()["JobState"] == "RUNNING", "updates")
            ask(job.slurm, "scancel", "--batch", "--signal=USR1", job.id)
            until(lambda k=k: job.facts()["Restarts"] == str(k), "requeue")
            assert sets(folder_of(job.path))


def test_a_run_that_nears_its_time_limit_is_saved_and_started_again(disturbed: Disturb) -> None:
    """SLURM warns 10 to 40 s before the end of the minute, as often as it takes."""
    with disturbed("time limit", SAVED, 1800, 0.12, "site.time=0:01:00", "site.warning=10"):
        pass


def test_a_node_fails(disturbed: Disturb) -> None:
    """SLURM kills the job, and starts it again once there are two nodes; it goes on from the last checkpoint."""
    outcome = "started again from the last checkpoint, bit-identical"
    with disturbed("a node fails", outcome, 3000, 0.05, "checkpoint.updates=200") as job:
        until(lambda: sets(folder_of(job.path))[-1:] > [2], "checkpoints")
        ask(job.slurm, "scontrol", "update", "nodename=n2", "state=down", "reason=test")
        until(lambda: job.facts()["Restarts"] == "1", "requeue")  # the node comes back: ReturnToService=2


def test_a_preempted_run_continues_from_its_last_checkpoint(disturbed: Disturb, tmp_path: Path) -> None:
    """A job of a partition with priority takes the nodes."""
    outcome = "started again from the last checkpoint, bit-identical"
    with disturbed("preempted", outcome, 3000, 0.05, "checkpoint.updates=200") as job:
        until(lambda: sets(folder_of(job.path))[-1:] > [2], "checkpoints")
        log = tmp_path / "urgent.out"
        words = ("sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", f"--output={log}")
        urgent = subprocess.run([*words, "--wrap", "true"], env=job.slurm, check=True, text=True, capture_output=True)
        until(lambda: job.facts()["Restarts"] == "1", "requeue")
        assert finished(job.slurm, urgent.stdout.strip()) == ("COMPLETED", "0:0")
