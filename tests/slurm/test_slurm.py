"""The SLURM batch scripts on a real SLURM: two nodes on this host, started by cluster.sh beside this file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpifl import open_run

ROOT = Path(__file__).parents[2]
CLUSTER = Path(__file__).with_name("cluster.sh")
SCRIPTS = ROOT / "jobs" / "slurm"
DAEMONS = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
MISSING = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name, path=DAEMONS)]
DEADLINE = 180  # seconds for one job

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(400),
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


def submit(slurm: dict[str, str], *arguments: str | Path) -> tuple[str, str]:
    """SLURM's state and exit code of the job once it has ended, such as ("COMPLETED", "0:0")."""
    command = ["sbatch", "--parsable", *map(str, arguments)]
    job = subprocess.run(command, env=slurm, cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE).stdout.strip()
    show, end = "", time.monotonic() + DEADLINE
    while time.monotonic() < end:
        command = ["scontrol", "show", "job", job]
        show = subprocess.run(command, env=slurm, text=True, check=True, stdout=subprocess.PIPE).stdout
        fields = dict(re.findall(r"(JobState|ExitCode)=(\S+)", show))
        if fields["JobState"] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            return fields["JobState"], fields["ExitCode"]
        time.sleep(0.5)
    pytest.fail(f"job {job} has not ended in {DEADLINE} s:\n{show}")


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
