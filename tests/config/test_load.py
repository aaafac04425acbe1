"""Reading a job: precedence, interpolation, short forms, defaults; and that a written job reads back equal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifl.algorithms.base import Algorithm
from mpifl.config import job as sections
from mpifl.config import read, yaml_io
from mpifl.config.job import Job
from mpifl.config.packaged import JOBS, find_file, find_jobs
from mpifl.config.read import job_from_dict, job_to_dict, load
from mpifl.config.registry import FAMILIES
from mpifl.config.schema import fields_of, meanings
from mpifl.errors import ConfigError
from tests.config.test_own_classes import KEYS
from tests.tiers import examples

JOB = """\
name: base
seed: 3
problem: {data: digits, clients: 4}
algorithm: area
stop: {time: 20}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "base.yaml"
    found.write_text(JOB)
    return found


def again(job: Job, folder: Path) -> Job:
    path = folder / "again.yaml"
    path.write_text(read.to_yaml(job))
    return load(path)


def test_keys_that_are_not_given_have_their_defaults(path: Path) -> None:
    job = load(path)
    assert job.output == "results/base.h5" and not job.overwrite
    assert job.clock.mode == "real" and read.job_to_dict(job)["clock"]["delay"] == {"name": "none"}
    assert job.evaluate == sections.Evaluate(every=1.0)
    assert job.checkpoint.every is None


def test_overrides_come_in_order_replace_their_key_and_precede_interpolation(path: Path) -> None:
    job = load(path, ["name=first", "output=out/${name}-${seed}.h5", "name=second"])
    assert job.output == "out/second-3.h5"
    assert load(path, ["stop.updates=7"]).stop == sections.Stop(time=20, updates=7)
    assert load(path, ["stop={updates: 7}"]).stop == sections.Stop(updates=7)
    assert load(path, ["stop.updates=7", "stop.time=null"]).stop == sections.Stop(updates=7)


def test_a_name_stands_for_a_section_and_numbers_may_be_text(path: Path) -> None:
    job = load(path, ["algorithm.step_size=2", "problem.l2='1e-3'", "stop.time=1e2"])
    assert job.problem.l2 == 1e-3 and job.stop.time == 100.0
    assert type(job.algorithm.step_size) is float  # type: ignore[attr-defined]
    short = load(path, ["problem.partition=dirichlet", "clock={mode: virtual, delay: exponential}"])
    long = load(path, ["problem.partition={name: dirichlet}", "clock={mode: virtual, delay: {name: exponential}}"])
    assert short == long
    assert load(path, ["algorithm.step_size=2"]) == load(path, ["algorithm={name: area, step_size: 2.0}"])


def test_a_reference_takes_nested_keys_sections_and_items_of_lists(path: Path) -> None:
    job = load(path, ["output=far/${algorithm.name}.h5", "algorithm={name: area, local_steps: '${seed}'}"])
    assert job.output == "far/area.h5" and job.algorithm.local_steps == 3  # type: ignore[attr-defined]
    model = "model: {name: torch-mlp, hidden: [8, 4]}"
    problem = f"problem={{data: digits, clients: 4, {model}, batch_size: '${{problem.model.hidden.1}}'}}"
    assert load(path, [problem]).problem.batch_size == 4
    assert load(path, ["stop={updates: 5}", "evaluate='${stop}'"]).stop.updates == 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1E5", 1e5), ("-2.5e+3", -2500.0), (".5", 0.5), ("1_000", 1000), ("'1e-3'", "1e-3"),
        ("2024-01-01", "2024-01-01"), ("yes", True), ("~", None), ("0x10", 16), ("1.", 1.0),
        ("e5", "e5"), ("[1, x]", [1, "x"]),
    ],
)  # fmt: skip
def test_yaml_values_have_the_expected_types_and_read_back_equal(text: str, value: Any) -> None:
    found = yaml_io.parse(f"key: {text}")["key"]
    assert (found, type(found)) == (value, type(value))
    assert yaml_io.parse(yaml_io.dump({"key": value})) == {"key": value}
    assert yaml.safe_load(yaml_io.dump({"key": value})) == {"key": value}, "as plain PyYAML reads a run file"


@pytest.mark.parametrize(("key", "name"), [(KEYS[s], n) for s in FAMILIES for n in FAMILIES[s].names()])
def test_every_choice_reads_back_equal(path: Path, tmp_path: Path, key: str, name: str) -> None:
    try:
        job = load(path, [f"{key}={name}"])
    except ConfigError as error:  # one that cannot stand alone here must say what it needs, with its key
        assert str(error).startswith(("problem.", "clock.", "algorithm."))
        return
    assert again(job, tmp_path) == job
    assert read.job_from_dict(json.loads(json.dumps(read.job_to_dict(job)))) == job


def test_every_field_says_what_it_means_by_the_string_below_it() -> None:
    for family in FAMILIES.values():
        for cls in map(family.find, family.names()):
            said = meanings(cls)
            assert not [f for f in fields_of(cls) if f != "name" and not said.get(f)], cls
    assert meanings(Own)["rate"] == "how fast"


@given(
    seed=st.integers(0, 2**63 - 1),
    step=st.floats(1e-300, 1e300),
    l2=st.floats(0, 1e6),
    name=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.+=,@-]{0,40}", fullmatch=True),
)
@settings(max_examples=examples(30), deadline=None)
def test_any_values_read_back_equal(tmp_path_factory: Any, seed: int, step: float, l2: float, name: str) -> None:
    values = {"name": name, "seed": seed, "problem": {"data": "digits", "clients": 3, "l2": l2}, "stop": {"updates": 1}}
    values |= {"algorithm": {"name": "area", "step_size": step}, "output": f"{name}.h5"}
    job = read.job_from_dict(values)
    assert (job.seed, job.algorithm.step_size, job.problem.l2) == (seed, step, l2)  # type: ignore[attr-defined]
    assert again(job, tmp_path_factory.mktemp("job")) == job


@dataclass(frozen=True)
class Inner:
    """A nested part."""

    low: float = 0.0
    pair: tuple[int, int] = (1, 2)


class Rules(Algorithm):
    """Methods that are never called."""

    init_server = message = receive = aggregate = train = lambda self, *args: None  # type: ignore[assignment]


@dataclass(frozen=True)
class Own(Rules):
    """A user's own algorithm, with every type that a field may have."""

    steps: int
    rate: float = 1.0
    """how
    fast"""
    on: bool = False
    label: str | None = None
    weights: float | list[float] = 1.0
    table: list[list[float]] | None = None
    points: tuple[float, ...] = ()
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None


def test_a_users_own_algorithm(path: Path, tmp_path: Path) -> None:
    name = f"{__name__}:Own"
    text = "steps: 2, rate: 3, label: 1e5x, weights: [1, 2.5], table: [[1], [2, 3]], points: [4], "
    job = load(path, [f"algorithm={{name: '{name}', {text} inner: {{pair: [3, 4]}}, maybe: {{low: '1e-2'}}}}"])
    assert job.algorithm == Own(
        2, 3.0, False, "1e5x", [1.0, 2.5], [[1.0], [2.0, 3.0]], (4.0,), Inner(0.0, (3, 4)), Inner(0.01)
    )
    assert read.job_to_dict(job)["algorithm"]["name"] == name
    assert again(job, tmp_path) == job
    for override, line in [
        ("steps=null", "algorithm.steps=None: not valid; expected an integer"),
        ("on=1", "algorithm.on=1: not valid; expected true or false"),
        ("label=3", "algorithm.label=3: not valid; expected text or null"),
        ("weights=x", "algorithm.weights=x: not valid; expected a number or a list of numbers"),
        ("table=[[1], [x]]", "algorithm.table[1][0]=x: not valid; expected a number"),
        ("points=[true]", "algorithm.points[0]=True: not valid; expected a number"),
        ("inner.pair=[1]", "algorithm.inner.pair=[1]: there are 1 values; expected a list of 2"),
        ("inner.lo=1", "algorithm.inner.lo=1: no such key; the nearest is algorithm.inner.low"),
        ("inner.rate=1", "algorithm.inner.rate=1: no such key; the nearest is algorithm.rate"),
        ("maybe=3", "algorithm.maybe=3: not valid; expected a section with low, pair or null"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load(path, [f"algorithm={{name: '{name}', steps: 1}}", f"algorithm.{override}"])
        assert str(caught.value) == line


def test_a_rank_that_hosts_clients_imports_nothing_heavy(path: Path) -> None:
    """It builds the job from values: no YAML library, no HDF5, no data set, one algorithm."""
    job = load(path)
    values = json.loads(json.dumps(job_to_dict(job)))
    assert job_from_dict(values) == job
    code = (
        "import json, sys; from mpifl.config.read import job_from_dict; "
        "job_from_dict(json.loads(sys.argv[1])); print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, json.dumps(values)]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert not {"yaml", "h5py", "pandas", "matplotlib", "sklearn", "scipy", "torch", "mpi4py"} & loaded
    assert {type(job.algorithm).__module__} >= {m for m in loaded if re.fullmatch(r"mpifl\.algorithms\.fed\w+", m)}


def test_jobs_of_the_package_are_found_unless_there_is_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_file("jobs/area/mnist-virtual.yaml") == JOBS / "area" / "mnist-virtual.yaml"
    for name in ("quickstart.yaml", "jobs", "jobs/area", "jobs/none.yaml", "jobs/../mpifl/py.typed", "/jobs/x.yaml"):
        assert find_file(name) == Path(name)
    assert load("jobs/quickstart.yaml").name == "quickstart"
    assert printed("list", "jobs", "quickstart").out.startswith("jobs/quickstart.yaml  Asynchronous AREA")

    (tmp_path / "jobs").mkdir()
    text = (JOBS / "quickstart.yaml").read_text()
    (tmp_path / "jobs" / "quickstart.yaml").write_text(f"# mine\n{text.replace('name: quickstart', 'name: mine', 1)}")
    (tmp_path / "jobs" / "first.yaml").write_text("problem: {clients: 2}\n")  # its first key
    assert "jobs/first.yaml" in find_jobs()
    assert find_file("jobs/quickstart.yaml") == Path("jobs/quickstart.yaml")
    assert load("jobs/quickstart.yaml").name == "mine"
    assert printed("list", "jobs", "quickstart").out == "jobs/quickstart.yaml  mine\n"


# -- problem.torch -----------------------------------------------------------------------------------------------------
def torch_job(clock: str = "virtual", **problem: Any) -> dict[str, Any]:
    given = {"model": "torch-logistic", "clients": 4, **problem}
    delay = {"name": "exponential", "rate": 1}
    return {
        "name": "a", "seed": 0, "problem": given, "algorithm": {"name": "fedavg"}, "stop": {"updates": 4},
        "output": "a.h5", "clock": {"mode": clock, "delay": delay},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"clock": "virtual"}, (False, True, 1)),
        ({"clock": "real"}, (True, False, None)),
        ({"clock": "virtual", "torch": {"batched": True, "threads": 3}}, (True, True, 3)),
        ({"clock": "real", "torch": {"batched": False, "deterministic": True}}, (False, True, None)),
    ],
)
def test_null_is_what_the_clock_needs(given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    section = read.job_from_dict(torch_job(**given)).problem.torch
    assert section and (section.batched, section.deterministic, section.threads) == expected


def test_a_replay_computes_one_by_one_with_the_threads_of_the_run(tmp_path: Any) -> None:
    recorded = read.job_to_dict(read.job_from_dict(torch_job(clock="real")))
    again = read.replayed(recorded, tmp_path / "b.h5", [], threads=5).problem.torch
    assert again and (again.batched, again.deterministic, again.threads) == (False, True, 5)
    recorded["problem"]["torch"]["threads"] = 2
    again = read.replayed(recorded, tmp_path / "b.h5", [], threads=5).problem.torch
    assert again and again.threads == 2
    numpy = read.job_to_dict(read.job_from_dict(torch_job(model="logistic")))
    assert read.replayed(numpy, tmp_path / "b.h5", []).problem.torch is None
