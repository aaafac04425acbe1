"""Functions and classes of a user's own, by name or as objects, and modules that are edited between two runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mpifl
from mpifl.algorithms.base import Message, State, Update
from mpifl.algorithms.fedavg import FedAvg
from mpifl.errors import ConfigError
from mpifl.objective import Objective

ROOT = Path(__file__).parents[1]
JOB: dict[str, Any] = {
    "name": "own", "seed": 1, "problem": {"clients": 2, "model": {"name": "quadratic", "dim": 3}},
    "clock": {"mode": "virtual", "delay": {"name": "exponential", "rate": 10}}, "stop": {"updates": 4},
    "evaluate": {"updates": 4}, "overwrite": True,
}  # fmt: skip
METHOD = """
from dataclasses import dataclass
from mpifl.algorithms.base import Update
from mpifl.algorithms.fedavg import FedAvg
from distance import DISTANCE

@dataclass(frozen=True)
class Moving(FedAvg):
    def train(self, client, message, objective):
        return Update((message.vectors[0] + {sign}DISTANCE,), 1)
"""


class Moving(FedAvg):
    """Each round adds 1 to every parameter."""

    def train(self, client: State, message: Message, objective: Objective) -> Update:
        return Update((message.vectors[0] + 1,), 1)


def moved(method: Any) -> float:
    """How far a run of two rounds takes the first parameter."""
    with mpifl.run(JOB, algorithm=method) as run:
        start = mpifl.load_problem(run.config).initial(1)
        return float(run.model[0] - start[0])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("key", ["algorithm", "problem"])
def test_a_module_that_changes_the_working_directory_is_refused(folder: Path, key: str) -> None:
    """Else the run file would be written there, over another one."""
    (folder / "sub").mkdir()
    (folder / "sub" / "own.h5").write_text("another file")
    (folder / f"mover_{key}.py").write_text(f"import os\nos.chdir({str(folder / 'sub')!r})\nmake = Method = None\n")
    given = {"algorithm": {"name": "mover_algorithm:Method"}, "problem": {"entry": "mover_problem:make"}}[key]
    with pytest.raises(ConfigError, match=f"it changes the working directory to {folder}/sub, to which paths of"):
        mpifl.run(JOB, output="own.h5", **{"algorithm": "fedavg", key: given})
    assert Path.cwd() == folder and sorted(path.name for path in folder.rglob("*.h5")) == ["own.h5"]
    assert (folder / "sub" / "own.h5").read_text() == "another file"


def test_a_run_has_the_code_of_modules_as_they_are_now(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that a job names, and one that it imports; also if an edit leaves size and second unchanged."""
    for name in ("moving", "distance"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    method = {"name": "moving:Moving", "cohort": 2}
    (folder / "distance.py").write_text("DISTANCE = 1")
    (folder / "moving.py").write_text(METHOD.format(sign="+"))
    assert moved(method) == 2
    (folder / "moving.py").write_text(METHOD.format(sign="-"))
    assert moved(method) == -2
    (folder / "distance.py").write_text("DISTANCE = 3")
    assert moved(method) == -6
    module = sys.modules["moving"]
    assert moved(method) == -6 and sys.modules["moving"] is module, "what is as it was is not imported again"


def test_a_class_in_place_of_its_name() -> None:
    assert moved({"name": Moving, "cohort": 2}) == 2
    assert mpifl.load_job(JOB, algorithm=FedAvg).algorithm == FedAvg()
    assert mpifl.open_run("results/own.h5").config["algorithm"]["name"] == f"{__name__}:Moving"


class Local:
    class Made(Moving):
        pass

    def entry(self) -> None: ...


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (type("Lost", (Moving,), {}), "Lost"),
        (lambda: None, "<lambda>"),
        (Local().entry, "Local.entry"),
        (partial(moved, 1), "partial"),
    ],
)
def test_what_no_name_leads_to_is_refused(thing: Any, name: str) -> None:
    text = f":{name}: ranks and replays cannot find it by this name; expected a function or class"
    for key, given in (
        ("algorithm.name", {"algorithm": {"name": thing}}),
        ("problem.entry", {"problem": {"entry": thing}}),
    ):
        with pytest.raises(mpifl.ConfigError, match=f"^{re.escape(key)}=.*{re.escape(text)}"):
            mpifl.load_job(JOB, **given)
    assert mpifl.load_job(JOB, algorithm=Local.Made).algorithm == Local.Made(), "found inside another class"


SCRIPT = """
import sys
import mpifl
import torch

def make(clients=3):
    sets = [torch.utils.data.TensorDataset(torch.ones(2, 1), torch.zeros(2, 1)) for _ in range(clients)]
    return torch.nn.Linear(1, 1), torch.nn.functional.mse_loss, sets



run = mpifl.run({job}, problem={{"entry": {entry}, "options": {{"clients": 4}}}}, algorithm={{"name": "fedavg"}})
print(run.attrs["clients"], run.config["problem"]["entry"])
"""


@pytest.mark.long
def test_a_function_of_a_script_or_notebook_as_entry(folder: Path) -> None:
    """It is recorded under the name `__main__:make`, which leads to it in this process and in no other."""
    pytest.importorskip("torch")
    script = SCRIPT.format(job={**JOB, "problem": {}}, entry="make")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.returncode) == ("4 __main__:make\n", 0), done.stderr
    command = [sys.executable, "-m", "mpifl", "replay", "results/own.h5", "--trust"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and last.startswith("mpifl: problem.entry=__main__:make: "), done.stderr
    assert "has to be in a module of its own" in last


CLOSING = """
import os, sys
from dataclasses import dataclass
from mpifl.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Closing(FedAvg):
    def train(self, client, message, objective):
        if message.round == 0:
            {close}
        return super().train(client, message, objective)
"""


@pytest.mark.parametrize(
    ("close", "where"),
    [
        ("sys.stdout.close()", "err"),
        ("os.close(1)", "err"),
        ("sys.stdout = None", "err"),
        ("sys.stdout.close(), sys.stderr.close()", ""),
        ("sys.stderr.close()", "out"),
    ],
)
def test_code_that_closes_stdout_or_stderr_does_not_make_a_run_fail(folder: Path, close: str, where: str) -> None:
    (folder / "closing.py").write_text(CLOSING.format(close=close))
    job = {**JOB, "problem": {**JOB["problem"], "clients": 1}, "algorithm": {"name": "closing:Closing", "cohort": 1}}
    (folder / "job.yaml").write_text(json.dumps(job))
    command = [sys.executable, "-m", "mpifl", "run", "job.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done
    found = {"out": done.stdout, "err": done.stderr}
    assert {stream for stream, text in found.items() if "own.h5: completed, 4 updates" in text} == {where} - {""}
    with mpifl.open_run("results/own.h5") as run:
        assert run.status == "completed"
