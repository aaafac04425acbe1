"""The numbers of the report and of `show`, checked against small run files worked out by hand."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml

import mpifl
from mpifl.errors import ConfigError
from mpifl.runfile.create import Start
from mpifl.runfile.fairness import summarise
from mpifl.runfile.tables import AggregationRow, ClientEvaluationRow, EvaluationRow, MetricRow, UpdateRow
from mpifl.runfile.writer import RunWriter
from mpifl.tools.analysis.labels import Labels
from mpifl.tools.analysis.options import Options
from mpifl.tools.analysis.report import report
from mpifl.tools.analysis.show import show
from mpifl.tools.analysis.tables import format_number
from mpifl.tools.analysis.trials import Trial, differing_keys, flatten, group_trials, load_trial, short_names

KEPT: list[RunWriter] = []


def run_file(
    path: Path,
    accuracies: list[float],
    losses: list[float] | None = None,
    status: str | None = "completed",
    seed: int = 0,
    horizon: float | None = 4.0,
    steps: int = 0,
    personal: list[float] | None = None,
    by_client: list[float] | None = None,
    metrics: dict[str, float] | None = None,
    **algorithm: Any,
) -> Path:
    """Evaluations at 0, 1, 2, ... s; four updates, at 0.5, 1, 1.5, 2 s, with staleness 0, 1, 2, 3.

    personal: mean accuracies of personal models, with quartiles 0.1 below, at and 0.05 above them. by_client:
    accuracies of the clients. metrics: values at the first evaluation of metrics that the job names.
    """
    settings = {"name": "area", "step_size": 1.0} | algorithm
    config = {"name": path.stem, "seed": seed, "output": str(path), "algorithm": settings, "stop": {"time": horizon}}
    config["evaluate"] = {"updates": 1, "metrics": [*(metrics or {})]}
    attrs = {"name": path.stem, "algorithm": settings["name"], "config": yaml.safe_dump(config), "clock": "virtual",
             "seed": seed}  # fmt: skip
    count = len(by_client or [0, 0])
    clients = {"samples": [3] * count, "rank": [1] * count, "rate": None}
    writer = RunWriter(path, Start(attrs, clients, np.zeros(2), [("w", (2,))]))
    for k in range(4):
        writer.append(UpdateRow((k + 1) / 2, 0 if k else 1, 0, k, 1, 16, 0.0))
    for k in range(steps):
        writer.append(AggregationRow(k / 10, k))
    for k, accuracy in enumerate(accuracies):
        own = {"mean": personal[k], "q25": personal[k] - 0.1, "median": personal[k], "q75": personal[k] + 0.05,
               "best": max(personal[: k + 1])} if personal else {}  # fmt: skip
        more = {f"personal_accuracy_{name}": value for name, value in own.items()}
        if by_client:
            more |= {f"client_accuracy_{name}": value for name, value in summarise(np.array(by_client)).items()}
        loss = (losses or [1.0] * 99)[k]
        writer.append(EvaluationRow(k, 2 * k, k, train_loss=loss, test_accuracy=accuracy, **more))
    writer.extend([ClientEvaluationRow(0, i, value) for i, value in enumerate(by_client or [])])
    writer.extend([MetricRow(0, name, value) for name, value in (metrics or {}).items()])
    if status is None:
        writer.flush()
        writer._stop.set()  # as if killed: no heartbeat from now on
        KEPT.append(writer)  # collected, it would close the file
    else:
        writer.close(status, np.ones(2))
    return path


def test_groups_are_in_the_order_of_the_study() -> None:
    """Files are read in the order of their names, 10 before 5."""
    empty = Trial(Path("a.h5"), "completed", "virtual", {}, pd.DataFrame(), 1.0, 0.0, 1)
    trials = [replace(empty, labels=Labels("study", {"a": v}, k)) for v, k in ((0, 0), (10, 2), (5, 1))]
    assert [group.labels["a"] for group in group_trials(trials)] == [0, 5, 10]


def test_two_groups_by_hand(tmp_path: Path) -> None:
    """The first has accuracies of personal models: the last and the best mean, beside the global model's."""
    own = {0: [0.9, 0.6, 0.8], 1: [0.5, 0.6, 0.7]}
    paths = [
        run_file(tmp_path / "a0.h5", [0.1, 0.7, 0.9], [2.0, 1.0, 0.5], seed=0, steps=5, personal=own[0]),
        run_file(tmp_path / "a1.h5", [0.1, 0.82, 0.8], [2.0, 1.0, 0.25], seed=1, steps=8, personal=own[1]),
        run_file(tmp_path / "b0.h5", [0.1, 0.5, 0.6], [2.0, 1.5, 1.0], seed=0, step_size=2.0),
    ]
    out = tmp_path / "out"
    text = report(paths, out, Options(figures=("accuracy", "loss")))
    rows = pd.read_csv(StringIO((out / "report.csv").read_text()))
    assert rows.step_size.tolist() == [1, 2] and rows.trials.tolist() == [2, 1] and rows.completed.tolist() == [2, 1]
    assert rows.test_accuracy_mean.tolist() == pytest.approx([0.85, 0.6])
    assert rows.test_accuracy_min.tolist() == [0.8, 0.6] and rows.test_accuracy_max.tolist() == [0.9, 0.6]
    assert rows.train_loss_mean.tolist() == [0.375, 1.0] and rows.train_loss_max.tolist() == [0.5, 1.0]
    assert rows.personal_accuracy_mean_mean.tolist() == pytest.approx([0.75, np.nan], nan_ok=True)
    assert rows.personal_accuracy_best_max.tolist() == pytest.approx([0.9, np.nan], nan_ok=True)
    # The mean accuracy is 0.1, 0.76, 0.85: 80 % at 2 s of 4 s, though one trial is there at 1 s.
    assert rows.t_80.tolist() == [2, np.inf] and rows.t_h.tolist() == [4, 4] and rows.rho.tolist() == [0.5, np.inf]
    steps = rows[["global_steps_mean", "global_steps_min", "global_steps_max"]]
    assert steps.to_numpy().tolist() == [[6.5, 5, 8], [0, 0, 0]], "the second never aggregated"
    assert rows.updates_per_second.tolist() == [2, 2] and rows.staleness_mean.tolist() == [1.5, 1.5]
    first, second = columns(text)
    assert list(first)[:5] == ["step_size", "trials", "accuracy %", "personal %", "best personal %"]
    assert first["personal %"] == "75.00 (70.00-80.00)" and first["best personal %"] == "80.00 (70.00-90.00)"
    assert second["personal %"] == second["best personal %"] == "-" and second["accuracy %"] == "60.00"
    assert first["accuracy %"] == "85.00 (80.00-90.00)" and first["train loss"] == "0.38 (0.25-0.50)"
    assert (first["rho"], second["rho"]) == ("0.50", ">1")
    assert (first["global steps"], second["global steps"]) == ("6.5 (5-8)", "0")
    assert "\nPersonal: mean accuracy over the clients" in text
    assert {"report.md", "report.tex", "accuracy.png", "accuracy.pdf", "loss.png", "loss.pdf"} <= set(os.listdir(out))
    assert (out / "accuracy.png").stat().st_size > 5000
    assert "| 85.00 (80.00-90.00) |" in (out / "report.md").read_text()


def columns(text: str) -> list[dict[str, str]]:
    """The rows of a report's table, by column title."""
    head, _, *rows = text.partition("\n\n")[0].splitlines()
    heads = re.split(r"  +", head.strip())
    return [dict(zip(heads, re.split(r"  +", row.strip()), strict=True)) for row in rows]


def test_a_report_says_that_methods_have_unlike_conventions(tmp_path: Path) -> None:
    """One line, from the configurations: what a step_size does depends on step_weights, trigger and reply."""
    area = {"step_weights": "samples", "trigger": {"every": 1}, "reply": "before"}
    paths = [
        run_file(tmp_path / "a.h5", [0.1], **area),
        run_file(tmp_path / "b.h5", [0.1], name="fedbuff", step_weights="one", trigger={"every": 10}, reply="after"),
        run_file(tmp_path / "c.h5", [0.1], name="fedavg", step_weights="one", reply="deferred"),
    ]
    line = (
        "Conventions differ between these methods: step_weights is samples for area, one for fedbuff and fedavg; "
        "trigger.every is 1 for area, 10 for fedbuff; reply is before for area, after for fedbuff, deferred for fedavg."
        " Compare their effective steps, which mpifl check JOB.yaml prints, not their step_size."
    )
    assert report(paths, tmp_path / "out", Options(formats=("md",))).count(f"{line}\n") == 1
    assert line in (tmp_path / "out/report.md").read_text()
    alike = [paths[0], run_file(tmp_path / "d.h5", [0.1], name="fedbuff", **area)]
    assert "Conventions" not in report(alike), "the same conventions"
    sweep = [paths[0], run_file(tmp_path / "e.h5", [0.1], **{**area, "reply": "after"})]
    assert "Conventions" not in report(sweep), "one method: its option is a column"
    bare = [run_file(tmp_path / "f.h5", [0.1]), paths[1]]
    assert "Conventions" not in report(bare), "a file that lacks the keys"


def test_runs_that_did_not_complete_are_marked_and_end_the_curve(tmp_path: Path) -> None:
    paths = [
        run_file(tmp_path / "a.h5", [0.5, 0.6, 0.8, 0.9]),
        run_file(tmp_path / "b.h5", [0.5, 0.6], status=None, seed=1),
        run_file(tmp_path / "c.h5", [0.5, 0.6, 0.9, 0.9], status="interrupted", seed=2),
    ]
    (only,) = group_trials(load_trial(path) for path in paths)
    assert only.curve("test_accuracy").index.tolist() == [0, 1] and only.t_80 == np.inf
    assert "3 (1 interrupted, 1 running or killed)" in report(paths)
    completed = group_trials(load_trial(path) for path in paths[:1])[0]
    assert completed.rho == 0.5


def test_no_accuracy_and_no_horizon(tmp_path: Path) -> None:
    path = run_file(tmp_path / "a.h5", [np.nan, np.nan], [2.0, 1.0], horizon=None)
    text = report([path], tmp_path / "out", Options(formats=("svg", "csv")))
    names = ["client-updates.svg", "loss.svg", "report.csv", "staleness.svg", "timeline.svg"]
    assert sorted(os.listdir(tmp_path / "out")) == names, "no accuracy, no gradient norm, no step sizes"
    assert "personal" not in text.lower() and "personal" not in (tmp_path / "out/report.csv").read_text()
    (g,) = group_trials([load_trial(path)])
    assert np.isnan(g.rho) and g.horizon == 1
    assert text.splitlines()[2].split() == ["1", "-", "1.00", "-", "0", "2.0", "1.50"]
    empty = run_file(tmp_path / "b.h5", [])
    assert "-" in report([empty], tmp_path / "empty", Options(formats=("svg",)))
    assert "0.50, 1 of 2" in report([run_file(tmp_path / "c.h5", [0.5], [0.5]), empty])


OWN = "mine:f"


def test_fairness_and_the_jobs_metrics_in_the_report(tmp_path: Path) -> None:
    """Accuracies 0.2, 0.4, 0.6: mean 40 %, worst client 20 %, variance 800/3 of percentages. Metrics also beside a run
    without them; built-in ones are shown in percent."""
    paths = [
        run_file(tmp_path / f"{k}.h5", [0.5], seed=k, by_client=[0.2, 0.4, 0.6], metrics=metrics)
        for k, metrics in enumerate(({"auroc": 0.75, OWN: 3.5}, None))
    ]
    text = report(paths, tmp_path / "out", Options(formats=("csv",)))
    (row,) = columns(text)
    assert row["client %"] == "40.00 (40.00-40.00)" and row["worst 10 %"] == "20.00 (20.00-20.00)"
    assert row["client variance"].startswith("266.67 ") and "variance (of percentages)" in text
    assert row["auroc %"] == "75.00, 1 of 2" and row[OWN] == "3.50, 1 of 2"
    found = pd.read_csv(tmp_path / "out" / "report.csv").iloc[0]
    means = {name: found[f"client_accuracy_{name}_mean"] for name in ("mean", "q25", "median", "q75", "worst")}
    assert means == pytest.approx({"mean": 0.4, "q25": 0.3, "median": 0.4, "q75": 0.5, "worst": 0.2})
    assert found.client_accuracy_variance_mean == pytest.approx(0.08 / 3)
    (row,) = columns(report(paths, options=Options(columns=(OWN, "macro_f1"))))
    assert (row[OWN], row["macro f1 %"]) == ("3.50, 1 of 2", "-")
    with pytest.raises(ConfigError, match="columns=auoc"):
        report(paths, options=Options(columns=("auoc",)))
    line = "mean 0.4000, quartiles 0.3000, 0.4000, 0.5000, worst 10 % 0.2000, variance 0.02667"
    shown = page(paths[0])
    assert f"accuracy over clients  {line}" in shown and "auroc" in shown and OWN in shown


def test_names_that_the_job_does_not_have_are_no_columns(tmp_path: Path) -> None:
    path = run_file(tmp_path / "a.h5", [0.5], metrics={"auroc": 0.75, OWN: 3.5})
    with h5py.File(path, "r+", libver="latest") as file:
        config = yaml.safe_load(file.attrs["config"])
        config["evaluate"]["metrics"] = ["auroc", "train_loss", "\x1b[31m:x", 7, *[f"a:{k}" for k in range(50)]]
        file.attrs["config"] = yaml.safe_dump(config)
    with mpifl.open_run(path) as run:
        added = list(run.evaluations)[len(EvaluationRow._fields) :]
        assert added[:2] == ["auroc", "\\x1b[31m:x"] and len(added) < 20 and OWN not in added
        assert run.evaluations.train_loss.tolist() == [1.0]


def test_columns_are_what_differs_under_short_names() -> None:
    one = {"algorithm": {"name": "area", "step_size": 1, "first": "zero"}, "problem": {"m": {"name": "x"}}}
    other = {"algorithm": {"name": "fedbuff", "step_size": 1, "local_step": 2}, "problem": {"m": {"name": "y"}}}
    assert differing_keys([flatten(one), flatten(other)]) == ["algorithm.name", "problem.m.name"]
    assert differing_keys([{"a": 1}, {}]) == ["a"], "absent from one, and nothing else says so"
    names = short_names(["algorithm.name", "algorithm.step_size", "clock.delay.rate", "problem.rate"])
    assert list(names.values()) == ["algorithm", "step_size", "delay.rate", "problem.rate"]
    assert flatten({"a": {"b": [1, 2]}}) == {"a.b": "[1, 2]"}


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.01, 2, "0.01"), (0.0095, 2, "0.0095"), (0.0, 2, "0.00"), (-3.14159, 2, "-3.14"), (999999.0, 0, "999999"),
     (1e6, 2, "1e+06"), (float("nan"), 2, "-")],
)  # fmt: skip
def test_numbers_have_fixed_digits_unless_these_would_hide_them(value: float, digits: int, text: str) -> None:
    assert format_number(value, digits) == text


def test_a_report_of_no_runs_or_into_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a run file, a pattern or a folder with run files"):
        report([tmp_path])
    with pytest.raises(ConfigError, match="at least one"):
        report([])
    path = run_file(tmp_path / "a.h5", [0.5])
    with pytest.raises(ConfigError, match=r"^out="):
        report([path], path / "below")


def page(path: Path, **options: Any) -> str:
    lines: list[str] = []
    show(path, write=lines.append, **options)
    return "\n".join(lines)


def test_show_by_hand(tmp_path: Path) -> None:
    """Quartiles of personal accuracies are among the facts; the table has their mean and best, under short titles."""
    text = page(run_file(tmp_path / "a.h5", [k / 40 for k in range(30)], personal=[0.75] * 29 + [0.625]))
    facts = {key.strip(): value for key, _, value in (line.partition("  ") for line in text.splitlines())}
    facts = {key: value.strip() for key, value in facts.items()}
    assert facts["status"] == "completed" and facts["algorithm"] == "area" and facts["clients"] == "2"
    assert facts["updates"] == "4 in 2 s, 2 a second" and facts["staleness"] == "mean 1.5, max 3"
    assert facts["updates per client"] == "min 1, median 2, max 3"
    assert "personal accuracy   mean 0.6250, quartiles 0.5250, 0.6250, 0.6750, best mean 0.7500\n" in text
    first, second, third, _, *rows = text.partition("evaluations (12 of 30)\n")[2].splitlines()
    assert first.split()[-3:] == ["test_accuracy", "personal", "personal"]
    assert second.split() == ["accuracy"] * 2 and third.split() == ["mean", "best"]
    assert rows[-1].split()[-3:] == ["0.7250", "0.6250", "0.7500"]
    assert max(map(len, text.splitlines()[1:])) <= 120 and "q25" not in text


def test_show_tells_a_killed_run_from_a_live_one(tmp_path: Path) -> None:
    path = run_file(tmp_path / "a.h5", [0.5], status=None)
    assert "running (last heartbeat" in page(path)
    os.utime(path, (time.time() - 330,) * 2)
    assert re.search(r"killed or cut off: no heartbeat for 5 min \d+ s", page(path))
    assert page(path, follow=True).count("killed or cut off") == 2, "following a dead run ends"


def test_follow_prints_new_evaluations_until_the_end(tmp_path: Path) -> None:
    clients = {"samples": [1], "rank": [0], "rate": None}
    writer = RunWriter(tmp_path / "a.h5", Start({"name": "a", "config": ""}, clients, np.zeros(1), [("w", (1,))]))
    lines: list[str] = []

    def write(text: str) -> None:
        lines.append(text)
        if len(lines) == 1:
            writer.append(EvaluationRow(1.0, 10, 2, train_loss=0.5))
            writer.flush()
        elif len(lines) == 2:
            own = {f"personal_accuracy_{k}": 0.5 for k in ("mean", "q25", "median", "q75", "best")}
            writer.append(EvaluationRow(2.0, 20, 4, train_loss=0.25, **own))
            writer.close("completed", np.zeros(1))

    show(tmp_path / "a.h5", follow=True, write=write, period=0.01)
    assert lines[1:] == [
        "time 1  updates 10  version 2  train_loss 0.5",
        "time 2  updates 20  version 4  train_loss 0.25  personal_accuracy_mean 0.5000  personal_accuracy_best 0.5000",
        "completed",
    ]


@pytest.mark.damaged
def test_values_that_no_job_has_end_no_command(tmp_path: Path) -> None:
    """A horizon or a step size that is no number, a best model without a metric or of no evaluation in the file."""
    path = run_file(tmp_path / "a.h5", [0.1, 0.5])
    for time_limit in ("soon", [1, 2], 10**400):
        with h5py.File(path, "r+", libver="latest") as file:
            file.attrs["config"] = yaml.safe_dump({"stop": {"time": time_limit}})
        assert group_trials([load_trial(path)])[0].horizon == 1 and "50.00" in report([path])
    sizes = [run_file(tmp_path / f"{k}.h5", [0.5], step_size=size) for k, size in enumerate((1, 10**400))]
    options = Options(figures=("step-size-accuracy",), formats=("svg",))
    assert "No figure step-size-accuracy: no run has values for it." in report(sizes, tmp_path / "out", options)
    for evaluation in (1, 2):
        with h5py.File(path, "r+", libver="latest") as file:
            best = file["model"].require_dataset("best", data=file["model/x"], shape=(2,), dtype=float)
            best.attrs["evaluation"] = evaluation
        if evaluation == 1:
            assert re.search("best model +after 2 updates", page(path))
    with pytest.raises(ConfigError, match="model/best is not a vector like model/x with an evaluation of the file"):
        page(path)
