"""The suite: its scenarios, targets and search spaces."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mpifl
from mpifl import execution
from mpifl.config import read
from mpifl.errors import ConfigError
from mpifl.problems.models.quadratic import QuadraticProblem
from mpifl.tools.arena.suite import configurations, load_suite, read_method, scenario_study, stored_table
from tests.arena.conftest import MINE


def test_the_quick_tier_needs_no_files_and_is_part_of_the_standard_tier() -> None:
    """Six scenarios without data from outside, and about 24 in all; at least 15 methods, some of them synchronous."""
    suite = load_suite()
    quick, standard = suite.tier("quick"), suite.tier("standard")
    assert len(quick) == 6 and len(standard) == 24 and quick.items() <= standard.items()
    assert {str(read.load(each.path).problem.data.name) for each in quick.values()} <= {"digits", "synthetic", "none"}
    assert len(suite.methods) >= 15 and {"FedAvg", "SCAFFOLD", "FedAdam", "MIFA"} <= suite.methods.keys()
    assert not set(suite.tuning_seeds) & set(suite.reporting_seeds) and len(suite.reporting_seeds) == 10
    assert {*suite.held_out} <= {*standard, *suite.methods} and len(suite.held_out) == 4
    assert {*suite.home} <= suite.methods.keys()


@pytest.mark.parametrize("name", load_suite().scenarios)
def test_each_scenario_is_a_study_also_without_its_data(name: str, tmp_path: Path) -> None:
    """8 configurations at 2 tuning and 10 reporting seeds, and a Delta that is a share of the number of clients."""
    suite = load_suite()
    method = read_method("FedBuff", {"algorithm": {"name": "fedbuff", "trigger": {"every": {"clients": 0.5}}}})
    study = scenario_study(suite, suite.scenarios[name], {"FedBuff": method}, tmp_path)
    assert len(study.runs) == 8 * 12
    assert {run.job.algorithm.trigger.every for run in study.runs} == {study.runs[0].job.problem.clients // 2}


@pytest.mark.long
@pytest.mark.parametrize("name", load_suite().scenarios)
def test_each_horizon_has_five_rounds_of_fedavg_with_its_defaults(name: str, tmp_path: Path) -> None:
    """A method that waits for a tenth of the clients, 20 local steps each, is compared by more than its first model.

    When its rounds end does not depend on the task, so quadratics stand for it.
    """
    suite = load_suite()
    study = scenario_study(suite, suite.scenarios[name], {"FedAvg": suite.methods["FedAvg"]}, tmp_path)
    for run in study.runs:
        job = read.job_to_dict(run.job)
        clients, algorithm = job["problem"]["clients"], job["algorithm"]
        if algorithm["step_size"] != 0.1:
            continue  # one of the draws
        assert (algorithm["local_steps"], algorithm["cohort"]) == (20, max(1, round(clients / 10)))
        job |= {"problem": {"clients": clients, "model": {"name": "quadratic", "dim": 2}}, "overwrite": True}
        job |= {"evaluate": {"updates": 10**6}, "output": str(tmp_path / "run.h5")}
        with mpifl.run(job) as done:
            assert len(done.aggregations) >= 5, run.seed


@pytest.mark.long
@pytest.mark.parametrize("name", load_suite().scenarios)
def test_each_scenario_divides_its_data_among_its_clients(name: str) -> None:
    """At a tuning seed and at a reporting seed; a scenario whose data are not under MPIFL_DATA is skipped."""
    suite = load_suite()
    for seed in (suite.tuning_seeds[0], suite.reporting_seeds[0]):
        job = read.load(suite.scenarios[name].path, keys={"seed": seed})
        if "MPIFL_DATA" not in os.environ and not name.startswith(("quadratic", "synthetic", "digits")):
            pytest.skip("its data are not under MPIFL_DATA")
        assert execution.load_problem(job).clients == job.problem.clients


@pytest.mark.parametrize("name", [name for name, each in load_suite().scenarios.items() if each.task == "quadratic"])
def test_the_target_of_a_quadratic_is_a_fifth_of_a_percent_above_the_optimum(name: str) -> None:
    """f* + 0.002 (f(x_0) - f*), to four digits."""
    scenario = load_suite().scenarios[name]
    problem = execution.load_problem(read.load(scenario.path))
    assert isinstance(problem, QuadraticProblem)
    least = problem.evaluate(problem.optimum())["train_loss"]
    first = problem.evaluate(problem.initial(0))["train_loss"]
    assert scenario.target == pytest.approx(least + 0.002 * (first - least), rel=5e-4)


def test_what_a_quadratic_loses_without_its_slow_client_is_as_its_file_says() -> None:
    scenario = load_suite().scenarios["quadratic-slow"]
    problem = execution.load_problem(read.load(scenario.path))
    assert isinstance(problem, QuadraticProblem)
    optima = [problem.optimum(np.arange(16) < n) for n in (16, 15)]  # client 15 is the slow one
    losses = [problem.evaluate(x)["train_loss"] for x in optima]
    assert "{:.2f} at its minimiser, and {:.2f} at that of the other 15".format(*losses) in scenario.why


def test_draws_are_the_defaults_and_one_value_in_each_part_of_a_range() -> None:
    suite = load_suite()
    space = {"trigger.every": {"clients": [0.01, 1]}, "server_step": {"from": 0.01, "to": 1}}
    section = {"algorithm": {"name": "fedbuff", "trigger": {"every": {"clients": 0.5}}}, "space": space}
    method, scenario = read_method("any", section), suite.scenarios["quadratic-slow"]
    found = configurations(suite, scenario, "any", method)
    assert len(found) == suite.configurations and found[0] == {"name": "fedbuff", "trigger": {"every": 8}}
    for key, low, high in (("step_size", 0.001, 10), ("server_step", 0.01, 1)):
        places = np.log([each[key] / low for each in found[1:]]) / np.log(high / low) * len(found[1:])
        assert sorted(np.floor(places - 1e-9).tolist()) == list(range(len(found) - 1)), key
    counts = [each["trigger"]["every"] for each in found[1:]]
    assert set(counts) == {1, 16} and abs(counts.count(1) - counts.count(16)) <= 1
    assert configurations(suite, scenario, "another", method) == found
    elsewhere = configurations(suite, suite.scenarios["digits-iid"], "any", method)
    assert elsewhere[0]["trigger"]["every"] == 500
    assert all(one["server_step"] != other["server_step"] for one, other in zip(found[1:], elsewhere[1:], strict=True))


def test_a_method_with_a_step_an_update_has_step_sizes_divided_by_the_number_of_clients() -> None:
    """Its n clients move the model by n steps while a mean of their updates would move it by one."""
    suite = load_suite()
    section = {"algorithm": {"name": "async-sgd"}}
    one, other = (read_method("any", section | more) for more in ({}, {"per_update": True}))
    for name, n in (("quadratic-slow", 16), ("digits-iid", 1000)):
        found = [configurations(suite, suite.scenarios[name], "any", each) for each in (one, other)]
        steps = [[each.get("step_size", 0.1) for each in sections] for sections in found]
        np.testing.assert_allclose(steps[1], np.divide(steps[0], n), rtol=6e-3)
    assert {name for name, each in suite.methods.items() if each.per_update} == {
        "ASGD", "Ringmaster", "Rescaled ASGD", "Ringleader", "ACE"
    }  # fmt: skip


def test_the_first_configuration_has_a_step_size_of_a_tenth() -> None:
    """As the guide says; where an update moves the model by a whole step, a tenth over the number of clients."""
    suite = load_suite()
    for name, method in suite.methods.items():
        first = configurations(suite, suite.scenarios["quadratic-slow"], name, method)[0]
        job = read.load(suite.scenarios["quadratic-slow"].path, keys={"algorithm": first})
        step = job.algorithm.step_size * (16 if method.per_update else 1)  # type: ignore[attr-defined]
        assert step == pytest.approx(0.1), name


def test_a_range_in_times_of_messages_follows_the_scenario() -> None:
    suite = load_suite()
    found = [configurations(suite, suite.scenarios[name], "FAVAS", suite.methods["FAVAS"]) for name in
             ("digits-off", "mnist-phones")]  # fmt: skip
    assert [{each["period"] for each in sections} for sections in found] == [{10, 20, 40, 100}, {150, 300, 600, 1500}]


def test_cohorts_are_drawn_among_clients_that_are_on_where_some_are_off(tmp_path: Path) -> None:
    suite = load_suite()
    methods = {name: suite.methods[name] for name in ("MIFA", "FedAvg", "ASGD", "FAVAS")}
    for name, expected in (("digits-off", "available"), ("digits-labels", "all")):
        for run in scenario_study(suite, suite.scenarios[name], methods, tmp_path).runs:
            drawn = run.labels["method"] != "ASGD"
            assert run.job.clock.availability.cohort_from == (expected if drawn else "all")


@pytest.mark.parametrize("spec", [{"from": 0, "to": 1}, {"from": 2, "to": 1}, [], 3, {"clients": 0.5},
                                  {"from": 0.1, "to": "1"}, {"clients": ["half"]}])  # fmt: skip
def test_a_wrong_range_is_refused(spec: object) -> None:
    method = read_method("mine", {"algorithm": {"name": "fedbuff"}, "space": {"server_step": spec}})
    suite = load_suite()
    with pytest.raises(ConfigError, match=r"^methods.mine.space.server_step="):
        configurations(suite, suite.scenarios["quadratic-slow"], "mine", method)


@pytest.mark.parametrize(
    ("text", "wrong"), [("3", "ARENA=3: not valid"), ('{"algorithm": 3}', "ARENA={'algorithm': 3}: not valid"),
                        ('{"space": 3}', "ARENA.space=3: not valid; expected a range for each option"),
                        ('{"spce": {}}', "ARENA.spce={}: no such key; the nearest is space"),
                        ('{"space": {"local_steps": []}}', "ARENA.space.local_steps=[]: not a valid range; expected"),
                        ('{"knows": ["all"]}', "ARENA.knows=all: nothing that a method can be told; expected one of"),
                        ('{"space": {"step_size": [1]}}', "ARENA.space.step_size=[1]: the suite has the range of")],
)  # fmt: skip
def test_mistakes_in_arena_of_a_method(
    text: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mistaken", raising=False)
    (tmp_path / "mistaken.py").write_text(MINE.replace('{"space": {"local_steps": [1, 2]}}', text))
    assert wrong in refused("arena", "--method", "mistaken:Mine", "--scenario", "quadratic-slow")


MISTAKES = {
    "--tier large": "--tier=large: no such tier; expected one of quick, standard",
    "--scenario moon": "--scenario=moon: no such scenario of this tier; expected one of quadratic-slow, ",
    "--method Mine": "--method=Mine: not of the form module:Class; expected a subclass",
    "--method none:Mine": "--method=none:Mine: cannot be imported: No module named 'none'",
    "--tier quick --scenario mnist-tail": "the quick tier does not have this scenario; give --tier standard",
    "--scenario mnist-tail --no-runs": "--no-runs=results/arena: this folder has no runs of these scenarios",
    "--ranks 2": "--ranks=2: only arena verify takes it; leave it out",
    "verify s.json --scenario digits-off": "--scenario=digits-off: the verification of this file does not take it",
    "--no-runs --out /dev/null": "--out=/dev/null/arena-1: cannot be written: Not a directory; expected a folder",
    "moon": "arena=moon: no such argument; expected verify FILE, or options alone",
    "verify": "arena verify='': no path; expected a submission NAME.json, or a table",
    f"verify {stored_table('quick')} --method Mine": "--method=Mine: not a method of the suite; expected one of",
    "--no-runs --scenario digits-off": "this folder has no runs of these scenarios; leave out --no-runs",
}


def test_a_method_without_a_step_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stepless.py").write_text(MINE.replace("LocalTraining", "Algorithm"))
    wrong = "--method=stepless:Mine: this class has no option step_size, which the suite tunes in all methods; expected"
    assert wrong in refused("arena", "--method", "stepless:Mine", "--scenario", "quadratic-slow")


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_on_the_command_line(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert MISTAKES[line] in refused("arena", *line.split())
