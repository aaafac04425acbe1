"""A user's own class of every family: named package.module:Class in a job, on every rank, listed, and written back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import mpifl
from mpifl.cli import main
from mpifl.config import yaml_io
from mpifl.config.read import job_from_dict, job_to_dict, load, to_yaml
from mpifl.config.registry import FAMILIES
from mpifl.errors import ConfigError
from tests.config import own

OWN = "tests.config.own"
KEYS = {
    "algorithm": "algorithm", "trigger": "algorithm.trigger", "data": "problem.data", "partition": "problem.partition",
    "model": "problem.model", "init": "problem.model.init", "delay": "clock.delay",
    "availability": "clock.availability",
}  # fmt: skip
ALL: dict[str, Any] = {
    "name": "own",
    "seed": 3,
    "problem": {
        "data": {"name": f"{OWN}:Blobs", "rows": 40},
        "partition": f"{OWN}:Stripes",
        "model": {"name": f"{OWN}:Scaled", "init": {"name": f"{OWN}:Ones", "height": 0.5}},
        "clients": 4,
        "batch_size": 4,
    },
    "algorithm": {"name": f"{OWN}:Slow", "trigger": {"name": f"{OWN}:Fibonacci", "start": 2}},
    "clock": {
        "mode": "virtual",
        "delay": {"name": f"{OWN}:Steps", "step": 0.2},
        "availability": {"name": f"{OWN}:Shifts", "share": 0.75},
    },
    "stop": {"updates": 30},
    "output": "own.h5",
}


def test_the_classes_are_the_users_and_are_written_back() -> None:
    assert KEYS.keys() == FAMILIES.keys(), "every family has a case here"
    job = job_from_dict(ALL)
    assert job.problem.data == own.Blobs(rows=40) and job.problem.partition == own.Stripes()
    assert job.problem.model == own.Scaled(init=own.Ones(height=0.5)) and job.clock.delay == own.Steps(step=0.2)
    assert job.clock.availability == own.Shifts(share=0.75)
    assert job.algorithm == own.Slow(trigger=own.Fibonacci(start=2))
    values = job_to_dict(job)
    assert values["problem"]["data"]["name"] == f"{OWN}:Blobs" and values["problem"]["model"]["name"] == f"{OWN}:Scaled"
    assert values["algorithm"]["trigger"]["name"] == f"{OWN}:Fibonacci"
    assert job_from_dict(values) == job == job_from_dict(yaml_io.parse(to_yaml(job)))


def test_a_trigger_by_its_name_alone_and_the_built_in_one_without_a_name() -> None:
    for trigger in (f"{OWN}:Fibonacci", {"name": f"{OWN}:Fibonacci"}):
        job = job_from_dict({**ALL, "algorithm": {"name": "area", "trigger": trigger}})
        assert job.algorithm.trigger == own.Fibonacci()  # type: ignore[attr-defined]
    job = job_from_dict({**ALL, "algorithm": {"name": "area", "trigger": {"every": 4}}})
    trigger = {"every": 4, "period": None, "poisson": None, "bernoulli": None}
    assert job_to_dict(job)["algorithm"]["trigger"] == trigger


def test_a_run_of_own_classes_whose_file_names_them(tmp_path: Path) -> None:
    algorithm = {"name": "area", "trigger": {"name": f"{OWN}:Hourly", "unit": 0.4}}
    timed = mpifl.run({**ALL, "algorithm": algorithm}, output=str(tmp_path / "timed.h5"))
    times = np.asarray(timed.aggregations["time"])
    assert len(times) > 2 and np.allclose(times, 0.4 * np.arange(1, len(times) + 1))
    run = mpifl.run(ALL, output=str(tmp_path / "own.h5"))
    assert run.aggregations["updates"].tolist() == [2, 3, 5, 8, 13, 21]
    assert run.config["problem"]["data"] == {"name": f"{OWN}:Blobs", "rows": 40, "distance": 2.0}
    again = mpifl.replay(tmp_path / "own.h5", trust=True, output=str(tmp_path / "again.h5"))
    assert again.config["algorithm"]["trigger"]["name"] == f"{OWN}:Fibonacci"
    assert np.array_equal(np.asarray(run.model), np.asarray(again.model))


@pytest.mark.parametrize("family", KEYS)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "no.such.module:Thing",
            "cannot be imported: No module named 'no'; expected package.module:Class; "
            "modules are searched for in the working directory and on PYTHONPATH",
        ),
        (f"{OWN}:Missing", "cannot be imported: module 'tests.config.own' has no attribute 'Missing'"),
        (
            "tests.config.broken:Thing",
            "cannot be imported: ValueError: nothing can be imported here (broken.py:3); expected",
        ),
        ("tests.config.exits:Thing", "cannot be imported: SystemExit: 2 (exits.py:3); expected package.module:Class"),
        (f"{OWN}.Missing", "a class of your own, as package.module:Class"),
        (f"{OWN}:Plain", "a subclass of mpifl."),
        ("json:loads", "a subclass of mpifl."),
        (":", "cannot be imported: ValueError: Empty module name; expected package.module:Class"),
    ],
)
def test_a_name_that_is_wrong(tmp_path: Path, family: str, name: str, says: str) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(ALL))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "job.yaml", [f"{KEYS[family]}='{name}'"])
    line = str(caught.value)
    assert line.startswith(f"{KEYS[family]}.name={name}: ") and says in line and "\n" not in line


def test_bounds_of_own_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^problem\.data\.rows=0: not valid; expected an integer of at least 1$"):
        job_from_dict({**ALL, "problem": {**ALL["problem"], "data": {"name": f"{OWN}:Blobs", "rows": 0}}})
    with pytest.raises(ConfigError, match=r"^algorithm\.trigger\.strt=1: no such key; .*trigger\.start$"):
        job_from_dict({**ALL, "algorithm": {"name": "area", "trigger": {"name": f"{OWN}:Fibonacci", "strt": 1}}})
    with pytest.raises(ConfigError, match=r"^factor=-1: not valid; expected a number above 0$"):
        own.Slow(factor=-1)


@pytest.mark.parametrize(
    ("kind", "name", "option"),
    [
        ("algorithms", "Slow", "factor"), ("data", "Blobs", "distance"), ("data", "Stripes", "width"),
        ("models", "Scaled", "scale"), ("models", "Ones", "height"), ("delays", "Steps", "step"),
        ("triggers", "Fibonacci", "start"),
    ],
)  # fmt: skip
def test_list_shows_their_options(kind: str, name: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind, f"{OWN}:{name}"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [option])
    assert getattr(own, name).__doc__ and ("[a number above 0]" in line or "[an integer of at least 1]" in line)


def test_list_refuses_what_is_of_no_family(refused: Callable[..., str]) -> None:
    assert "a subclass of mpifl.problems.problem.Model" in refused("list", "models", f"{OWN}:Plain")
