"""A search by successive halving: which runs it computes, how far, and that interruptions and ranks change nothing."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpifl
from mpifl.cli import main
from mpifl.runfile.writer import RunWriter
from mpifl.text import format_duration
from mpifl.tools.analysis.trials import load_trial
from mpifl.tools.studies.follow import state
from mpifl.tools.studies.halving import settle
from mpifl.tools.studies.index import Index, entries_of
from mpifl.tools.studies.search import Search, rungs_of, stages_of, time_left
from mpifl.tools.studies.study import Study, load_study
from mpifl.tools.studies.sweep import dry_run, sweep
from tests.studies.conftest import written as written_with
from tests.studies.test_sweep import contents

BASE = """
name: base
seed: 0
problem:   {clients: 3, model: {name: quadratic, dim: 4}, dtype: float64}
algorithm: {name: async-sgd}
clock:     {mode: virtual, delay: {name: exponential, rate: 20}}
stop:      {time: 4}
evaluate:  {every: 0.1}
"""
STUDY = """
name: searched
job: base.yaml
axes:
  method: {SGD: {algorithm: async-sgd}, Buffer: {algorithm: {name: fedbuff, trigger: {every: 2}}}}
  algorithm.step_size: {from: 0.0001, to: 1, loguniform: 4}
trials: 1
select: {over: algorithm.step_size, by: train_loss}
search: {eta: 2}
"""
Write = Callable[..., Path]
ONE = (", Buffer: {algorithm: {name: fedbuff, trigger: {every: 2}}}", "")  # one method alone


def written(folder: Path, *changes: tuple[str, str], more: str = "") -> Path:
    """The path of the study, written with these changes."""
    return written_with(folder, more, ("/${name}\n", "\n"), *changes, base=BASE, study=STUDY)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return partial(written, tmp_path)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose search has ended."""
    path = written(tmp_path_factory.mktemp("searched"))
    assert search(load_study(path)).counts() == {"completed": 2, "stopped": 6}
    return path


class Broken(ThreadPoolExecutor):
    """Runs tasks one after the other in this process, and ends the sweep before one of them."""

    def __init__(self, tasks: float) -> None:
        super().__init__(1)
        self._left = tasks

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:  # type: ignore[override]
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return super().submit(*args, **kwargs)


def search(study: Study, tasks: float = math.inf) -> Index:
    """Sweeps a study in this process, where it takes no time to start one; ended after so many runs."""
    with Broken(tasks) as executor:
        return sweep(study, 1, executor=executor)


@pytest.mark.parametrize(
    ("count", "eta", "rungs", "least"),
    [(64, 4, None, 1), (64, 4, 2, 1), (20, 3, None, 1), (20, 3, None, 3), (3, 4, None, 1), (16, 4, 1, 1)],
)
def test_rungs_are_those_of_the_formula(count: int, eta: int, rungs: int | None, least: int) -> None:
    """n_k = floor(n / eta^k) combinations reach r eta^k; the last rung is the end, and leaves `least` or more."""
    found = rungs_of(Search(eta=eta, rungs=rungs), count, 32.0, least)
    last = len(found) - 1
    first = 32.0 / eta**last
    assert found == [(count // eta**k, pytest.approx(first * eta**k)) for k in range(last + 1)]
    assert found[-1].end == 32.0 and found[-1].combinations >= least
    assert last + 1 == rungs or count // eta ** (last + 1) < least


def test_the_time_left_counts_each_stage_from_the_rung_before() -> None:
    """16 combinations to 0.5 s, 4 to 2 s, 1 to 8 s, then 2 further trials of what is left; a second of the clock takes
    2 s, of which a quarter of the first stage is over, on 2 processes."""
    rungs = rungs_of(Search(eta=4), 16, 8.0)
    stages = stages_of([rungs], 1, 2)
    assert stages == [(16, 8.0), (4, 6.0), (1, 6.0), (2, 16.0)]
    assert stages_of([rungs, rungs[:1]], 3, 0) == [(96, 48.0), (12, 18.0), (3, 18.0), (0, 0.0)]
    computed = [(0.5, 1.0)] * 3 + [(0.5, None)]
    assert time_left(stages, computed, 2) == 2 * (6 / 2 + 6 / 2 + 6 / 1 + 16 / 2)
    assert time_left(stages, [(0.5, 1.0)] * 16, 2) == 2 * (6 / 2 + 6 / 1 + 16 / 2)
    assert time_left(stages, [(0.0, None)], 2) is None


@pytest.mark.long
def test_the_time_left_of_a_search_that_was_ended_and_goes_on(write: Write, searched: Path) -> None:
    """Three of 8 runs have come to 1 s; 16 s are planned: 8 to 1 s, 4 from there to 2 s, 2 from there to 4 s."""
    study = load_study(write())
    assert Index(study).estimate([], 1) is None
    with pytest.raises(KeyboardInterrupt):
        search(study, 3)
    index = Index(study)
    took = sum(entry.seconds or 0.0 for entry in index.entries.values())
    assert took and index.estimate([], 1) == pytest.approx(13 * took / 3)
    assert dry_run(study, 1).endswith(f"about {format_duration(13 * took / 3)} left")
    entries = [replace(entry, seconds=entry.seconds and 60.0) for entry in entries_of(study.folder)]
    trials = {run.path: load_trial(run.path) for run in study.runs if run.path.exists()}
    assert "3 stopped, 5 waiting, about 13 min 0 s left" in state(study.folder, entries, trials).replace("\n", " ")
    assert search(study).counts() == {"completed": 2, "stopped": 6}
    assert contents(study.folder) == contents(load_study(searched).folder), "it makes the same choices"


def losses(study: Study, method: str) -> dict[float, dict[float, float]]:
    """The loss by time, of each step size."""
    found = {}
    for run in study.runs:
        if run.labels["method"] == method:
            with mpifl.open_run(run.path) as file:
                rows = file.evaluations
            found[run.labels["algorithm.step_size"]] = dict(zip(rows.time.round(9), rows.train_loss, strict=True))
    return found


def test_a_search_finds_what_the_definition_says(searched: Path, tmp_path: Path) -> None:
    """Of all runs to the end, the best by their losses at 1 s, then at 2 s; a run that was stopped has their bits."""
    study = load_study(searched)
    whole = load_study(searched, ["search=null", f"output={tmp_path}/whole"])
    search(whole)
    one, other = contents(study.folder), contents(whole.folder)
    for method in ("SGD", "Buffer"):
        full, ends = losses(whole, method), {step: max(rows) for step, rows in losses(study, method).items()}
        first = sorted(full, key=lambda step: full[step][1.0])
        second = sorted(first[:2], key=lambda step: full[step][2.0])
        assert ends == {first[3]: 1.0, first[2]: 1.0, second[1]: 2.0, second[0]: 4.0}
        (left,) = (run.path.name for run in study.runs if [*run.labels.values()] == [method, second[0]])
        assert one[left] == other[left]
    for run in study.runs:
        with mpifl.open_run(run.path) as short, mpifl.open_run(whole.folder / run.path.name) as full_run:
            count = len(short.updates)
            assert short.updates.equals(full_run.updates.iloc[:count]) and count > 0


def test_a_search_that_is_done_computes_nothing_again(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = load_study(searched)
    before = {file: file.stat().st_mtime_ns for file in study.folder.glob("*.h5")}
    assert main(["sweep", str(searched)]) == 0
    assert {file: file.stat().st_mtime_ns for file in study.folder.glob("*.h5")} == before
    end = "searched: 2 of 8 runs completed, 6 stopped"
    assert end in capsys.readouterr().out and dry_run(study).splitlines()[-1] == end
    first, second = settle(study, Index(study))
    assert first == "Successive halving of algorithm.step_size: combinations 4 to 1 s, 2 to 2 s, 1 to 4 s."
    steps = [e.labels["algorithm.step_size"] for e in Index(study).entries.values() if e.status == "completed"]
    assert second == f"Left by the search: method SGD: {steps[0]:g}; method Buffer: {steps[1]:g}."
    assert main(["report", str(searched)]) == 0
    out = capsys.readouterr().out
    assert first in out and second in out and "missing" not in out
    grid = sorted({run.labels["algorithm.step_size"] for run in study.runs})
    assert ("selected at the edge of its grid" in out) == bool({*steps} & {grid[0], grid[-1]})
    assert main(["show", str(searched)]) == 0
    assert "8 runs: 2 completed, 6 stopped" in capsys.readouterr().out


@pytest.mark.long
def test_a_run_killed_after_its_last_evaluation_is_computed_to_its_end(
    searched: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file has every row of the rung, but neither the model nor a final status, also where the search stops it."""
    study, cut, close = load_study(write(ONE)), dict[Path, bytes](), RunWriter.close

    def cut_off(self: RunWriter, *args: Any) -> None:
        self.flush()
        cut[Path(self.path)] = Path(self.path).read_bytes()  # as a kill leaves it
        close(self, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunWriter, "close", cut_off)
        search(study, 4)
    for path, content in cut.items():
        path.write_bytes(content)
    assert Index(study).counts() == {"interrupted": 4}
    assert search(study).counts() == Index(study).counts() == {"completed": 1, "stopped": 3}
    whole = contents(load_study(searched).folder)
    assert contents(study.folder) == {run.path.name: whole[run.path.name] for run in study.runs}


@pytest.mark.long
def test_a_search_that_is_killed_makes_the_same_choices(write: Write, tmp_path: Path) -> None:
    path = write(("loguniform: 4", "loguniform: 16"), more="set: {stop.time: 64, evaluate.every: 0.5}\n")
    words = [sys.executable, "-m", "mpifl", "sweep", str(path), "--processes", "2"]
    rng, study = random.Random(8), load_study(path)
    for _ in range(8):
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        time.sleep(rng.uniform(1.0, 5.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert sweep(study, 2).counts()["completed"] == 2
    other = load_study(path, [f"output={tmp_path}/whole"])
    sweep(other, 2)
    assert contents(study.folder) == contents(other.folder)
    assert Index(study).counts() == Index(other).counts() == {"completed": 2, "stopped": 30}


def test_what_diverges_ranks_last(write: Write, printed: Callable[..., Any]) -> None:
    """The losses of three of four step sizes are infinite, or their runs fail; the exit code is 0 all the same."""
    steps = ("{from: 0.0001, to: 1, loguniform: 4}", "[1.0e+40, 1.0e+160, 0.01, 1.0e+300]")
    path = write(steps, ONE, more="retries: 0\n")
    study = load_study(path)
    with np.errstate(all="ignore"):
        search(study)
    assert main(["sweep", str(path)]) == 0
    (left,) = (e for e in Index(study).entries.values() if e.status == "completed")
    assert left.labels["algorithm.step_size"] == 0.01
    assert "Left by the search: method SGD: 0.01." in printed("report", path).out


@pytest.mark.long
def test_trials_that_do_not_decide_are_computed_for_what_is_left(write: Write) -> None:
    study = load_study(write(ONE, ("trials: 1", "trials: 3"), ("by: train_loss", "by: train_loss, seeds: [1]")))
    index = search(study)
    assert Counter(e.seed for e in index.entries.values() if e.status == "completed") == {0: 1, 1: 1, 2: 1}
    stopped = [run for run in study.runs if index.entries[run.identity].status == "stopped"]
    assert {run.seed for run in stopped if run.path.exists()} == {1}


def test_rungs_by_updates(write: Write) -> None:
    study = load_study(write(ONE, more="set: {stop: {updates: 90}, evaluate: {updates: 10}}\n"))
    assert search(study).counts() == {"completed": 1, "stopped": 3}
    assert sorted(len(mpifl.open_run(run.path).updates) for run in study.runs) == [23, 23, 45, 90]  # 22.5 rounded up


def test_a_budget_draws_the_same_combinations_for_each_method(write: Write) -> None:
    axes = "algorithm.step_size: {from: 0.0001, to: 1, loguniform: 4}"
    two = f"{axes}\n  algorithm.local_steps: [1, 2, 3]"
    path = write((axes, two), ("over: algorithm.step_size", "over: [algorithm.step_size, algorithm.local_steps]"),
                 ("async-sgd", "fedasync"), ("{eta: 2}", "{budget: 6}"))  # fmt: skip
    drawn: dict[str, set[tuple[float, int]]] = {"SGD": set(), "Buffer": set()}
    for run in load_study(path).runs:
        drawn[run.labels["method"]].add((run.labels["algorithm.step_size"], run.labels["algorithm.local_steps"]))
    assert len(drawn["SGD"]) == 6 and drawn["SGD"] == drawn["Buffer"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("set.clock.mode=real", "clock.mode=real: a search compares runs at equal virtual times"),
        ("set.stop.accuracy=0.9", "stop=None: a search divides one horizon into rungs; expected either stop.time"),
        ("set.stop={updates: 50}", "evaluate=None: with stop.updates a search needs evaluations at intervals"),
        ("set.evaluate.every=2", "the first rung ends at 1 s, before the first evaluation of train_loss at 2 s"),
        ("set.evaluate.train_every=11", "ends at 1 s, before the first evaluation of train_loss at 1.1 s"),
        ("select=null", "search=successive-halving: a search needs to know which combinations to try"),
        ("select.rule=largest-finite", "search=successive-halving: a search needs to know which combinations to try"),
        ("budget=3", "budget=3: a search has a budget of its own; expected search.budget"),
        ("search.eta=1", "search.eta=1: not valid; expected an integer of at least 2"),
        ("search.rungs=0", "search.rungs=0: not valid; expected an integer of at least 1"),
        ("search.rule=hyperband", "search.rule=hyperband: not valid; expected successive-halving"),
        ("search.etta=3", "search.etta=3: no such key; the nearest is search.eta"),
        ("search=64", "search=64: not valid; expected a section with rule, budget, eta, rungs or null"),
        ("search.budget=0", "search.budget=0: not valid; expected an integer of at least 1"),
        ("set.stop.plateau={metric: train_loss}", "stop=None: a search divides one horizon into rungs"),
        ("--part=0/2", "--part=0/2: a search compares all runs of a rung, so it cannot be split; expected 0/1"),
    ],
)  # fmt: skip
def test_wrong_searches_are_refused_before_any_run(
    write: Write, refused: Callable[..., str], words: str, says: str
) -> None:
    path = write()
    assert says in refused("sweep", path, words)
    assert not list(path.parent.glob("out/*.h5"))
