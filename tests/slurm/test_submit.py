"""Studies and jobs that `mpifl submit` hands to a real SLURM."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpifl import open_run
from mpifl.config.yaml_io import dump
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.study import Study, load_study
from mpifl.tools.studies.sweep import sweep
from tests.slurm.test_slurm import ROOT, SLOW, ask, logs, mpifl_submit, pytestmark, slurm, until
from tests.studies.conftest import BASE, STUDY
from tests.studies.test_sweep import contents

__all__ = ["pytestmark", "slurm"]
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")


def states(slurm: dict[str, str], job: str) -> dict[str, str]:
    """The state of each task of an array."""
    text = ask(slurm, "scontrol", "show", "job", job)
    return dict(re.findall(r"ArrayTaskId=(\d+) .*?JobState=(\S+)", text, re.S))


def array_ended(slurm: dict[str, str], job: str, tasks: int) -> bool:
    found = states(slurm, job)
    return len(found) == tasks and all(state in OVER for state in found.values())


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study of eight runs that take a few seconds each on the cluster and save checkpoints."""
    (tmp_path / "own_slow.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    text = STUDY.replace("algorithm: {name: area,", 'algorithm: {name: "own_slow:Slow",').replace(
        "trials: 2", "trials: 1"
    )
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "study.yaml").write_text(text + dump({"set": {"stop.time": 2, "checkpoint.updates": 10}}))
    return load_study(tmp_path / "study.yaml", [f"output={tmp_path}/results/small"])


def test_a_study_that_is_cut_off(slurm: dict[str, str], study: Study, tmp_path: Path) -> None:
    """Its time limit cuts runs off, one node is drained, one task is cancelled; submitted again, the rest runs."""
    (tmp_path / "mpifl-site.yaml").write_text("{time: 0:02:00, warning: 60}")
    longer = "set={stop.time: 30, checkpoint.updates: 10}"  # 31 s a run, so a task has no time for all of its three
    long = load_study(tmp_path / "study.yaml", [longer, f"output={study.folder}"])
    job = mpifl_submit(slurm, tmp_path, "study.yaml", longer, "--tasks", 3)
    until(lambda: Index(long).counts()["running"] >= 3, "a run of each task")
    ask(slurm, "scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    ask(slurm, "scancel", f"{job}_2")
    until(lambda: re.search(r"Restarts=[1-9]", ask(slurm, "scontrol", "show", "job", job)), "requeue by the time limit")
    until(lambda: array_ended(slurm, job, 3), "end of the array", 400)
    found = states(slurm, job)
    assert found["0"] == found["1"] == "COMPLETED", logs(study.folder)
    assert found["2"] == "CANCELLED"
    completed = {run.path: run.path.stat().st_mtime_ns for k, run in enumerate(long.runs) if k % 3 < 2}
    assert all(open_run(path).status == "completed" for path in completed)
    again = mpifl_submit(slurm, tmp_path, "study.yaml", longer, "--tasks", 3)
    until(lambda: array_ended(slurm, again, 3), "end of the second array", 400)
    assert Index(long).counts() == {"completed": 8}
    assert {path: path.stat().st_mtime_ns for path in completed} == completed
    alone = load_study(tmp_path / "study.yaml", [longer, f"output={tmp_path}/alone"])
    sweep(alone, 2)
    assert contents(long.folder) == contents(tmp_path / "alone")


def test_what_slurm_refuses(slurm: dict[str, str], tmp_path: Path) -> None:
    """One line, exit code 2, nothing in the queue, and no folder of logs that was not there."""
    (tmp_path / "base.yaml").write_text(BASE)
    env = {**slurm, "PYTHONPATH": f"{ROOT}:{slurm['PYTHONPATH']}", "XDG_CONFIG_HOME": str(tmp_path)}
    for words, says in (
        ("--partition none", "invalid partition specified: none"),
        ("--time 2-00:00:00", "Requested time limit is invalid"),
        ("site.nodes=3", "More processors requested than permitted"),
        ("site.ranks_per_node=64", "More processors requested than permitted"),
        ("site.gpus_per_node=4", "Invalid generic resource (gres) specification"),
        ("--seeds 0-1500", "Invalid job array specification"),
        ("site.options=[--constraint=gpu]", "Invalid feature specification"),
        ("site.options=[--no-such-option]", "unrecognized option '--no-such-option'"),
    ):
        command = [sys.executable, "-m", "mpifl", "submit", "base.yaml", *words.split()]
        done = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        assert done.stderr.startswith("mpifl: submit=sbatch: ") and says in done.stderr
        assert not (tmp_path / "results").exists()
    assert not ask(slurm, "squeue", "--noheader")
