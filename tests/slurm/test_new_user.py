"""A new user of a SLURM site: from a wheel in an empty environment to a report of 20 seeds, without a checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from mpifl import open_run
from tests.docs.pages import ROOT, blocks
from tests.packaging.conftest import build, source
from tests.slurm.test_slurm import finished, logs, pytestmark, slurm, until
from tests.slurm.test_submit import array_ended, states

__all__ = ["pytestmark", "slurm", "source"]
NOT_STARTED = "The PMIx server's listener thread failed to start"  # mpirun of Open MPI 5, before it starts a rank
TUTORIAL = ROOT / "docs" / "tutorials" / "cluster.md"


@pytest.fixture
def user(slurm: dict[str, str], source: Path, tmp_path: Path) -> dict[str, str]:
    """A user's shell: an environment with the wheel, and a home without settings.

    What the wheel requires is that of the environment of the tests, which saves its download.
    """
    wheel = build("wheel", source, tmp_path)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True, timeout=120)
    python = tmp_path / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, timeout=120)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    path = f"{python.parent}:{Path(sys.executable).parent}:{slurm['PATH']}"  # the latter: mpirun, of the site's module
    kept = {
        name: value
        for name, value in slurm.items()
        if name not in ("PYTHONPATH", "MPIFL_MPIEXEC", "MPIFL_DATA", "MPIFL_LOG_LEVEL")
    }
    return {**kept, "PATH": path, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.mark.timeout(1200)
def test_from_pip_install_to_a_report_of_20_seeds(user: dict[str, str], tmp_path: Path) -> None:
    """The files are those of the tutorial, but for what this site lacks: modules, accounts and its partition's name."""
    (folder := tmp_path / "experiment").mkdir()
    for block in blocks(TUTORIAL):
        if block.action == "file":
            text = re.sub(r"^(partition|account|setup):.*\n", "", block.text, flags=re.M)
            (folder / block.argument).write_text(text.replace("ranks_per_node: 4", "ranks_per_node: 3\nat_once: 4"))

    def mpifl(*words: str) -> str:
        done = subprocess.run(["mpifl", *words], cwd=folder, env=user, text=True, capture_output=True, timeout=400)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "commit" in mpifl("--version")
    assert "jobs/quickstart.yaml" in mpifl("list", "jobs")
    mpifl("check", "job.yaml")
    mpifl("run", "job.yaml", "output=trial.h5", "stop.time=1")
    assert "#SBATCH --array=0-19%4" in mpifl("submit", "job.yaml", "--seeds", "0-19", "--dry-run")
    answer = mpifl("submit", "job.yaml", "--seeds", "0-19")
    (job,) = re.findall(r"Submitted batch job (\d+)", answer)
    assert f"logs: {folder}/results" in answer
    until(lambda: array_ended(user, job, 20), "end of the array", 400)
    not_started = [int(task) for task, state in states(user, job).items() if state != "COMPLETED"]
    for seed in not_started:
        assert NOT_STARTED in (folder / "results" / f"digits-{job}-{seed}.log").read_text(), logs(folder)
        (again,) = re.findall(r"job (\d+)", mpifl("submit", "job.yaml", "--seeds", str(seed)))  # as open-mpi.md says
        assert finished(user, again) == ("COMPLETED", "0:0"), logs(folder)
    for seed in range(20):
        with open_run(folder / "results" / f"digits-seed-{seed}.h5") as run:
            assert (run.status, run.attrs["ranks"], run.attrs["seed"]) == ("completed", 3, seed), logs(folder)
            assert run.attrs["git_commit"]
        if seed not in not_started:
            log = (folder / "results" / f"digits-{job}-{seed}.log").read_text()
            assert f"seed {seed}\n" in log and "completed" in log
    report = mpifl("report", "results", "--out", "report")
    assert re.search(r"^20 +\d+\.\d+ \(", report, re.M), report  # trials, and their mean accuracy
    assert {"report.md", "accuracy.png", "loss.png"} <= {path.name for path in (folder / "report").iterdir()}

    # The run file of a job that is submitted again is refused; nothing starts.
    words = ["mpifl", "submit", "job.yaml", "--seeds", "3,20"]
    again = subprocess.run(words, cwd=folder, env=user, text=True, capture_output=True, timeout=60)
    assert again.returncode == 2 and again.stderr.count("\n") == 1 and "the file exists" in again.stderr
    # One run on two nodes, of a job of the package, without a file of settings.
    answer = mpifl("submit", "jobs/quickstart.yaml", "stop.time=1", "site.nodes=2", "site.ranks_per_node=2")
    (single,) = re.findall(r"Submitted batch job (\d+)", answer)
    assert finished(user, single) == ("COMPLETED", "0:0"), logs(folder)
    assert open_run(folder / "results" / "quickstart.h5").attrs["ranks"] == 4
