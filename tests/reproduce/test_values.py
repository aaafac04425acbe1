"""Measures, differences and verdicts where trials diverge or learn nothing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

import mpifl
from mpifl.tools.analysis.trials import Group, Trial, load_trial
from mpifl.tools.reproduce.claims import judge_difference
from mpifl.tools.reproduce.page import format_summary
from mpifl.tools.reproduce.spec import Claim, Measure
from mpifl.tools.reproduce.values import Difference, mean_curve, paired, summarise, trial_value
from tests.reproduce.test_reproduce import page, publish, row, runs  # noqa: F401 - a fixture


def group(*rows: Sequence[float], metric: str = "train_loss") -> Group:
    """A trial for each row of values, at 0, 1, 2, ... s and updates."""
    trials = []
    for seed, values in enumerate(rows):
        k = range(len(values))
        frame = pd.DataFrame({"time": np.array(k, float), "updates": k, "version": k, metric: values})
        trials.append(Trial(Path(), "completed", "virtual", {}, frame, 1.0, 0.0, 1, seed))
    return Group({}, trials)


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([3.0, 2.0, nan], {}, inf),
        ([3.0, 2.0, inf], {}, inf),
        ([3.0, nan, 2.0, 1.0], {"tail": 2}, 1.5),  # back from there
        ([3.0, nan, 1.0], {"tail": 2}, inf),
        ([3.0, 2.0, nan], {"until": 1}, 2.0),
        ([3.0, 2.0, nan], {"at": "best"}, 2.0),
        ([3.0, 2.0, nan], {"reaches": 2.5}, 1.0),  # it has been there
        ([3.0, 2.0, nan], {"reaches": 1.5}, inf),
        ([3.0, 2.0, nan], {"log": True}, inf),
        ([3.0, 2.0, 0.0], {"log": True}, -inf),  # no loss at all is not the worst
        ([nan, 3.0, 2.0], {}, 2.0),
        ([nan, nan, nan], {}, nan),  # no such metric
    ],
)
def test_a_diverged_trial_has_the_worst_value(values: list[float], options: dict[str, Any], expected: float) -> None:
    (trial,) = group(values).trials
    np.testing.assert_equal(trial_value(Measure("train_loss", **options), trial), expected)


def test_the_worst_accuracy_is_below_all() -> None:
    for metric in ("test_accuracy", "auroc"):
        (trial,) = group([0.1, 0.9, nan], metric=metric).trials
        assert trial_value(Measure(metric), trial) == -inf


def test_the_mean_is_over_the_others_and_the_table_counts() -> None:
    loss = Measure("train_loss")
    some, all_of_them = group([3, 1], [3, nan], [3, 2]), group([3, nan], [3, inf])
    found = summarise(loss, some)
    assert (found.mean, found.diverged, len(found.values)) == (1.5, 1, 3)
    assert format_summary(loss, found) == "1.50 (1.00-2.00), 1 of 3 diverged"
    assert format_summary(loss, summarise(loss, all_of_them)) == "diverged, 2 of 2"
    assert format_summary(loss, summarise(loss, group([nan]))) == "-"


@pytest.mark.parametrize("x", ["time", "updates"])
def test_a_mean_curve_ends_where_a_trial_diverges(x: str) -> None:
    """The diverged trial does not keep the value that it had before."""
    curve = mean_curve(group([4, 2, nan, nan], [4, 4, 4, 4]), "train_loss", x)
    np.testing.assert_equal(curve["mean"].to_numpy(), [4, 3, nan, nan])
    found = summarise(Measure("train_loss", reaches=2.5, x=x), group([4, 2, nan, nan], [4, 3, 1, 1]))
    assert found.mean == 1 and found.values.tolist() == [1, 2]
    assert summarise(Measure("train_loss", reaches=1.0, x=x), group([4, 2, nan], [4, 3, 1])).mean == inf


def test_pairs_with_a_diverged_trial_are_kept() -> None:
    """By seed: 1 - 3, inf - 2, 1 - inf, inf - inf; a pair without a value on one side is none."""
    left, right = group([5, 1], [5, nan], [5, 1], [5, nan], [nan]), group([5, 3], [5, 2], [5, inf], [5, nan], [1])
    np.testing.assert_equal(paired(Measure("train_loss"), [left], [right]).values, [-2, inf, -inf, nan])


@pytest.mark.parametrize(
    ("relation", "values", "verdict"),
    [
        ("above", [inf, 1], "holds"),  # every pair
        ("above", [inf, -1], "not decided"),
        ("above", [-inf, -1], "does not hold"),
        ("below", [-inf, -inf], "holds"),
        ("below", [inf, inf], "does not hold"),
        ("above", [nan, inf], "not decided"),  # both sides diverged
        ("above", [inf], "not decided"),  # one seed
        ("near", [inf, 0.5], "not decided"),
        ("near", [inf, -2], "does not hold"),
        ("above", [], "no values"),
        ("above", [1.0, 1.1], "holds"),  # 1.05 -+ 12.7 * 0.05
        ("above", [1.0, 1.3], "not decided"),
    ],
)
def test_verdicts_with_infinite_differences(relation: Any, values: list[float], verdict: str) -> None:
    claim = Claim({}, relation, {}, "loss", by=1 if relation == "near" else 0)
    assert judge_difference(claim, Difference(np.array(values))) == verdict


def changed_runs(folder: Path, source: Path, name: str, column: str, value: Any) -> str:
    """The runs in another folder, those of a name with another last value of a column of /evaluations."""
    shutil.copytree(source / "runs", folder / "runs")
    paths = list((folder / "runs").glob(name))
    assert paths
    for path in paths:
        with h5py.File(path, "r+", libver="latest") as file:
            if column == "model":
                file["model/x"][...] = 0
            else:
                file[f"evaluations/{column}"][-1] = file[f"evaluations/{column}"][0] if value is None else value
    return f"output={folder}/runs"


def test_a_page_with_diverged_trials(runs: Path, tmp_path: Path) -> None:  # noqa: F811
    publish(runs, {("AREA", "loss"): (1.0, 0.0, 9.0)})
    text = page(runs, tmp_path, changed_runs(tmp_path / "one", runs, "*AREA-0-*.h5", "train_loss", nan))
    assert ", 1 of 3 diverged" in row(text, "AREA")[2] and row(text, "AREA")[-1] == "loss diverged in 1 of 3 trials"
    assert "0 of 1 published cells are met." in text and "loss: 0 of 1 means are in the published range" in text
    claim = row(text, "loss of AREA is below that of FedAvg")
    assert " and 1 of 3 diverged, " in claim[2] and claim[2].endswith(": 1 of 3 not finite") and claim[3] == "3"
    text = page(runs, tmp_path, changed_runs(tmp_path / "all", runs, "*AREA-*.h5", "train_loss", inf))
    assert row(text, "AREA")[2] == "diverged, 3 of 3"
    assert row(text, "loss of AREA is below that of FedAvg")[5] == "does not hold"
    assert "diverged" not in row(text, "accuracy of AREA is above that of FedAvg")[2]


def test_null_models_are_named_and_decide_nothing(runs: Path, tmp_path: Path) -> None:  # noqa: F811
    """A final model of zeros, and one that is measured as the first was."""
    publish(runs, {})
    plain = page(runs, tmp_path)
    assert "Null models" not in plain and row(plain, "accuracy of AREA is above that of FedAvg")[5] == "holds"
    text = page(runs, tmp_path, changed_runs(tmp_path / "zero", runs, "*FedAvg-1-*.h5", "model", 0))
    assert "**Null models:** method FedAvg (1 of 3 trials). The final model is the zero vector" in text
    for claim in ("accuracy of AREA is above that of FedAvg", "loss of AREA is below that of FedAvg"):
        assert row(text, claim)[5] == "not decided: null models"
    assert "Claims that hold: 0; that do not: 0; not decided: 2." in text
    output = ""
    for k, column in enumerate(("train_loss", "test_loss", "test_accuracy", "client_accuracy_mean")):
        source = tmp_path / f"first{k - 1}" if k else runs
        output = changed_runs(tmp_path / f"first{k}", source, "*AREA-*.h5", column, None)
    assert "**Null models:** method AREA (3 of 3 trials)." in page(runs, tmp_path, output)


def test_a_training_loss_that_is_measured_less_often_has_not_diverged(tmp_path: Path) -> None:
    """Evaluations that leave it out have the last value that was measured: 7 evaluations, of which 0, 3 and 6 do."""
    job = {
        "name": "rows", "seed": 0, "problem": {"data": "digits", "clients": 4, "model": "logistic"},
        "algorithm": "fedavg", "clock": {"mode": "virtual"}, "stop": {"updates": 26},
        "evaluate": {"updates": 4, "train_every": 3}, "output": str(tmp_path / "run.h5"),
    }  # fmt: skip
    with mpifl.run(job) as run:
        measured = run.evaluations.train_loss[::3].tolist()
    trial = load_trial(tmp_path / "run.h5")
    expected = [measured[k // 3] for k in range(len(trial.evaluations))]
    assert len(measured) == 3 and trial.evaluations.train_loss.tolist() == expected
    assert not trial.diverged("train_loss") and trial.last("train_loss") == measured[-1]
