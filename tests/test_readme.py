"""What the README shows is true of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mpifl import config
from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.common.local import Local
from mpifl.algorithms.common.participation import Trigger
from tests.loops import quadratics, run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_the_algorithm_in_one_file_finds_the_optimum_of_equal_clients() -> None:
    (code,) = (b for b in blocks("python") if "class Mean" in b)
    names = {"dataclass": dataclass, "field": field, "Local": Local, "Trigger": Trigger, "State": State,
             "Message": Message, "Update": Update, "__name__": __name__}  # fmt: skip
    exec(code, names)
    algorithm = names["Mean"](step_size=0.5, trigger=Trigger(every=2))
    log = run(algorithm, quadratics((1, 1), (3, 3)), [0, 1] * 200)
    np.testing.assert_allclose(log.server.x, 3, atol=1e-12)


def test_the_job_is_valid(tmp_path: Path) -> None:
    (text,) = (b for b in blocks("yaml") if b.startswith("name:"))
    (tmp_path / "job.yaml").write_text(text)
    job = config.load(tmp_path / "job.yaml")
    assert (job.name, job.output, job.problem.clients) == ("area-mnist", "results/area-mnist.h5", 128)


def test_every_command_shown_exists() -> None:
    from mpifl.cli import COMMANDS

    shown = set(re.findall(r"^mpifl (\w+)", "\n".join(blocks("sh")), re.M))
    assert shown and shown <= set(COMMANDS)


def test_every_job_named_exists() -> None:
    jobs = re.findall(r"\bjobs/[\w/-]+\.(?:yaml|sbatch)", README)
    assert jobs and all((Path(__file__).parents[1] / job).is_file() for job in jobs)


def test_the_algorithm_of_the_tutorial_runs(tmp_path: Path) -> None:
    """As the page has it: mine.py where the command is given, and the command's own words."""
    page = (ROOT / "docs" / "tutorials" / "own-algorithm.md").read_text(encoding="utf-8")
    (code,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "class HeavyBall" in b)
    (tmp_path / "mine.py").write_text(code)
    (words,) = re.findall(r'jobs/quickstart.yaml name=heavy "(.*?)" "stop', page)
    command = [sys.executable, "-m", "mpifl", "run", str(ROOT / "jobs" / "quickstart.yaml"), "name=heavy", words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, "stop={updates: 200}"], env=environment, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"completed, 200 updates" in done.stdout
