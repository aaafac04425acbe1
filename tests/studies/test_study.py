"""A study file: its runs, their identities, and what is wrong in one line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpifl.algorithms.area import Area
from mpifl.algorithms.fedavg import FedAvg
from mpifl.algorithms.participation import Trigger
from mpifl.config.read import load
from mpifl.tools.studies.study import describe, identify, load_study

Write = Callable[..., Path]


def test_the_runs_of_a_study(write: Write, tmp_path: Path) -> None:
    study = load_study(write())
    assert len(study.runs) == (2 + 2) * 2 * 2
    run, last = study.runs[0], study.runs[-1].job
    assert describe(run) == FIRST
    assert (run.job.algorithm, run.job.seed, run.job.stop.time) == (Area(step_size=10, trigger=Trigger(every=2)), 0, 1)
    assert run.path == tmp_path / "out" / "small" / f"small-AREA-10-0-0-{run.identity}.h5"
    assert (last.algorithm, last.clock.delay.spread, last.seed) == (FedAvg(step_size=1, cohort=3), 5, 1)
    assert len({run.identity for run in study.runs}) == len({run.path for run in study.runs}) == len(study.runs)


def test_an_identity_is_that_of_the_resolved_job(write: Write) -> None:
    """A larger study, another name or other labels, and defaults that are given explicitly do not change it."""
    before = {run.identity for run in load_study(write()).runs}
    spelled = ("{name: area, trigger: {every: 2}}", "{name: area, trigger: {every: 2}, reply: before}")
    larger = load_study(write("", ("name: small", "name: larger"), ("trials: 2", "trials: 3"), spelled,
                              ("AREA: ", "Ours: ")))  # fmt: skip
    assert before < {run.identity for run in larger.runs}
    other = load_study(write("set: {stop.time: 2}\n"))
    assert not before & {run.identity for run in other.runs}


def test_an_identity_has_the_keys_that_differ_from_their_defaults() -> None:
    """So a key that a later version adds does not change it; name, output and checkpoints do not belong to it."""
    values = {
        "name": "a", "seed": 3, "problem": {"data": "digits", "clients": 6, "partition": "iid", "l2": 0.5},
        "stop": {"time": 2}, "algorithm": {"name": "area", "step_size": 10, "reply": "before"},
        "clock": {"mode": "virtual", "delay": "exponential"}, "checkpoint": {"every": 1}, "evaluate": {"every": 1},
    }  # fmt: skip
    differ = {
        "seed": 3, "problem": {"data": {"name": "digits"}, "clients": 6, "partition": {"name": "iid"}, "l2": 0.5},
        "stop": {"time": 2.0}, "algorithm": {"name": "area", "step_size": 10.0},
        "clock": {"mode": "virtual", "delay": {"name": "exponential"}},
    }  # fmt: skip
    expected = hashlib.sha256(json.dumps(differ, sort_keys=True).encode()).hexdigest()[:12]
    assert identify(load(values)) == expected
    same = ["name=b", "output=c.h5", "output_tensorboard=true", "overwrite=true", "checkpoint={}"]
    assert identify(load(values, same), 3) == expected
    changes = ("problem.validation_split=0.2", "problem.l2=0", "evaluate.every=2", "seed=4", "clock.mode=real")
    assert len({expected, *(identify(load(values, [change])) for change in changes)}) == 6
    real = load(values, ["clock.mode=real"])
    assert identify(real) != identify(real, 3)  # the order of arrivals depends on the ranks


@pytest.mark.parametrize("label", ["x" * 300, "ä" * 100, "数" * 90])
def test_names_of_run_files_are_cut(write: Write, label: str) -> None:
    """At 120 bytes, between two letters; a file system's limit is 255, and a checkpoint folder's name is longer."""
    (run, *_) = load_study(write("", ("AREA: ", f"{label}: "))).runs
    name = run.path.name.removesuffix(f"-{run.identity}.h5")
    assert 117 <= len(name.encode()) <= 120
    assert name == f"small-{label}"[: len(name)]


@pytest.mark.parametrize(("by", "rule"), [("train_loss", "min"), ("validation_loss", "min"), ("gradient_norm", "min"),
                                          ("validation_accuracy", "max")])  # fmt: skip
def test_the_rule_that_fits_the_metric(write: Write, by: str, rule: str) -> None:
    keys = "set: {problem.validation_split: 0.2, evaluate.gradient: true}\n"
    select = load_study(write(f"{keys}select: {{over: method, by: {by}}}\n")).options.select
    assert select and select.rule == rule


def test_overrides_and_trials_that_vary_more_than_the_seed(write: Write, tmp_path: Path) -> None:
    path = write("set: {stop.time: 2}\n")
    words = [f"output={tmp_path}/else", "set.stop.time=3", "axes.clock.delay.spread=[1]"]
    study = load_study(path, ["trials={seeds: [4, 9], vary: [problem.partition.seed]}", *words])
    assert len(study.runs) == 8 and study.folder == tmp_path / "else"
    assert {(run.job.stop.time, run.job.clock.delay.spread) for run in study.runs} == {(3, 1)}
    assert {(run.job.seed, run.job.problem.partition.seed) for run in study.runs} == {(4, 4), (9, 9)}


def test_exclude_and_budget(write: Write) -> None:
    study = load_study(write("exclude: [{method: AREA, clock.delay.spread: 5}, {algorithm.step_size: 0.1}]\n"))
    assert [[*run.labels.values()] for run in study.runs if run.seed == 0] == [
        ["AREA", 10, 0], ["AREA", 100, 0], ["FedAvg", 1, 0], ["FedAvg", 1, 5],
    ]  # fmt: skip
    some = load_study(write("budget: 3\n"))
    assert len(some.runs) == 3 * 2
    assert {run.identity for run in some.runs} < {run.identity for run in load_study(write()).runs}
    assert [run.identity for run in load_study(write("budget: 3\n")).runs] == [run.identity for run in some.runs]
    assert len(load_study(write("budget: 99\n")).runs) == 16


CHANGED = [  # what stands in place of what, and the line
    ("name: a/b\n", "name: small\n", "name=a/b: contains other characters; expected letters, digits, and any of _ . -"),
    ("name: small\nname: b", "name: small", "duplicate key name"),
    ("", "name: small\n", "name=???: required"),
    ("", "job: base.yaml\n", "job=???: required"),
    ("job: bsae.yaml", "job: base.yaml", "bsae.yaml: no such file"),
    ("job: [a]", "job: base.yaml", "job="),
    ("axis:", "axes:", "axis="),
    ("axes: 3\nset:", "axes:", "axes=3: not a section; expected axes by name"),
    ("clock.delay.spraed", "clock.delay.spread", "clock.delay.spraed=0: no such key; the nearest is"),
    ("[0, 0]", "[0, 5]", "these two combinations give the same job; expected combinations that differ in a key"),
    ("seed: [1, 2]", "clock.delay.spread: [0, 5]", "axes.seed=1: no such key here; trials has the seeds of the runs"),
    (
        "{from: 1, to: 9, linear: 400}, clock.jobs: {from: 1, to: 2, linear: 400}}",
        "[10, 100]}",
        "AREA=160000 combinati",
    ),
    (
        "{from: 0, to: 1, linear: 1000000000}",
        "[0, 5]",
        "spread.linear=1000000000: too many; expected at most 100,000 v",
    ),
    ("{from: 0, to: 1, linear: 90000}", "[0, 5]", "axes=360000 combinations: too many; expected at most 100,000"),
    *(
        (f"trials: {trials}", "trials: 2", says)
        for trials, says in (
            ("0", "trials=0: not a number of trials; expected a number of at least 1, or a list of seeds"),
            ("true", "trials=True: not a number of trials; expected a number of at least 1, or a list of seeds"),
            ("[0, 0]", "trials=[0, 0]: a seed occurs twice; expected distinct seeds"),
            ("[]", "trials=[]: empty; expected at least one seed"),
            ("[-1]", "trials.seeds"),
            ("{seeds: 2, vary: [problem.partition.sede]}", "problem.partition.sede=0: no such key"),
            ("1000000000", "trials=1000000000: too many; expected at most 100,000 trials"),
            ("20000", "trials=20000: the study has 160,000 runs; expected at most 100,000"),
        )
    ),
    ("", "trials: 2", "trials=???: required"),
]
FIRST = "method AREA, algorithm.step_size 10, clock.delay.spread 0, seed 0"
ADDED = [  # what stands below the study, and the line
    ("exclude: [{methd: AREA}]", "exclude[0].methd=AREA: no such axis; the nearest is method"),
    ("exclude: [{method: X}]", '"X"}: no combination has these; expected labels of at least one combination of the'),
    ("exclude: [3]", "exclude[0]=3: not a section; expected labels by axis: {method: AREA}"),
    ("exclude: {}", "exclude={}: not a list; expected a list of labels by axis"),
    ("exclude: [{method: AREA}, {method: FedAvg}]", "exclude=2 items: they leave no combination of the axes; expected"),
    ("set: {stop.tiem: 3}", "stop.tiem=3: no such key; the nearest is stop.time"),
    ("set: {seed: 3}", "set.seed=3: no such key here; trials has the seeds of the runs"),
    ("set: {output: x.h5}", "set.output=x.h5: no such key here; the folder of the run files is the key output"),
    ("select: {over: step_sise}", "step_sise: no such axis; expected one of method, algorithm.step_size, clock.delay"),
    ("select: {over: method, by: loss}", "select.by=loss: not valid"),
    ("select: {over: method, by: test_accuracy}", "selecting by a test metric would tune on the test data"),
    ("select: {over: method, by: validation_loss}", f"select.by=validation_loss: {FIRST} has no"),
    ("select: {over: method, by: gradient_norm}", f"{FIRST} has no gradient norm"),
    (
        "set: {evaluate.gradient: true}\nselect: {over: method, by: gradient_mapping}",
        "seed 0 has no gradient mapping; expected runs that have it; select by gradient_norm: its method has no g",
    ),
    ("select: {over: method, rule: largest-finite}", "method has the value AREA; expected an axis of numbers"),
    ("select: {over: method, seeds: [0, 1]}", "not a part of the trials' seeds; expected some, not all, of [0, 1]"),
    ("select: {over: method, seeds: [5]}", "not a part of the trials' seeds; expected some, not all, of [0, 1]"),
    ("budget: 0", "budget=0: not valid; expected an integer of at least 1 or null"),
    ("retries: -1", "retries=-1: not valid; expected an integer of at least 0"),
    ("ranks: two", "ranks=two: not valid; expected an integer of at least 1"),
    ("ranks: 8", "ranks=8: the clients of a run take at most 6 ranks, and the server one more; expected at most 7"),
    ("ouput: x", "ouput=x: no such key; the nearest is output"),
]
WRONG = CHANGED + [(f"trials: 2\n{line}", "trials: 2", says) for line, says in ADDED]


@pytest.mark.parametrize(("new", "old", "says"), WRONG)
def test_a_wrong_study_is_refused_before_any_run(
    write: Write, tmp_path: Path, refused: Callable[..., str], new: str, old: str, says: str
) -> None:
    study = write("", (old, new))
    for options in (["--dry-run"], []):
        assert says in refused("sweep", study, *options)
    assert not (tmp_path / "out").exists()


def test_the_gradient_of_f_alone_does_not_select_among_minimisers_of_f_plus_g(
    write: Write, refused: Callable[..., str]
) -> None:
    composite = ("name: fedavg, cohort: 3}", "name: feddr, cohort: 3, regulariser: {name: l1}}")
    study = write("set: {evaluate.gradient: true}\nselect: {over: method, by: gradient_norm}\n", composite)
    said = refused("sweep", study, "--dry-run")
    assert "method FedAvg" in said and "has no gradient norm that is 0 at its optimum" in said
    assert said.endswith("select by gradient_mapping: its method minimises f + g\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "sweep='': no file; expected a STUDY.yaml first, then key=value"),
        ("no.yaml", "study=no.yaml: no such file"),
        ("{study} --processes 0", "argument --processes: 0: an integer of at least 1"),
        ("{study} output=${{seed}}", "output=${seed}: contains a reference other than ${name}; expected a folder"),
        ("{study} trials", "sweep=trials: not key=value; expected key=value after the STUDY.yaml"),
        ("{study} output={study}", "a folder"),
    ],
)
def test_wrong_command_lines(write: Write, refused: Callable[..., str], line: str, says: str) -> None:
    assert says in refused("sweep", *line.format(study=write()).split())


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("", "ranks=3: no mpirun was found beside the Python interpreter or on the PATH; name one in MPIFL_MPIEXEC"),
        ("none/mpirun", "MPIFL_MPIEXEC=none/mpirun: no such program; expected one that starts MPI ranks, such as"),
    ],
)
def test_ranks_without_a_launcher(
    write: Write, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, named: str, says: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MPIFL_MPIEXEC", named)
    monkeypatch.setattr("mpifl.tools.studies.compute.sys", SimpleNamespace(executable=str(tmp_path / "python")))
    assert says in refused("sweep", write(), "ranks=3")
    assert not (tmp_path / "out").exists()
