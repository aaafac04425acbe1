"""Accuracies by client and metrics that the job names, in what `mpifl show` and `mpifl report` print."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import mpifl
from mpifl.errors import ConfigError
from mpifl.runfile import RunWriter
from mpifl.runfile.fairness import summarise
from mpifl.runfile.tables import ClientEvaluationRow, EvaluationRow, MetricRow
from mpifl.tools.analysis.options import Options
from mpifl.tools.analysis.report import report
from mpifl.tools.analysis.show import show
from tests.analysis.test_analysis import columns
from tests.analysis.test_page import data_of

OWN = "mine:f"


def run_file(path: Path, accuracies: list[float], seed: int = 0, metrics: list[float] | None = None) -> Path:
    """One evaluation with these accuracies of the clients, and with the metrics auroc and one of the user's own."""
    names = ["auroc", OWN] if metrics else []
    config = {"name": "a", "seed": seed, "algorithm": {"name": "area"}, "evaluate": {"updates": 1, "metrics": names}}
    writer = RunWriter(
        path, attrs={"name": "a", "algorithm": "area", "config": yaml.safe_dump(config), "clock": "virtual"},
        clients={"samples": [3] * len(accuracies), "rank": [0] * len(accuracies), "rate": None}, x0=np.zeros(2),
        layout=[("w", (2,))],
    )  # fmt: skip
    summary = {f"client_accuracy_{name}": value for name, value in summarise(np.array(accuracies)).items()}
    writer.append(EvaluationRow(0.0, 0, 0, train_loss=1.0, test_accuracy=0.5, **summary))
    writer.extend([ClientEvaluationRow(0, i, value) for i, value in enumerate(accuracies)])
    writer.extend([MetricRow(0, name, value) for name, value in zip(names, metrics or [])])
    writer.close("completed")
    return path


def test_the_report_has_columns_of_fairness(tmp_path: Path) -> None:
    """Accuracies 0.2, 0.4, 0.6: mean 40 %, worst client 20 %, variance 800/3 of percentages."""
    paths = [run_file(tmp_path / f"{k}.h5", [0.2, 0.4, 0.6], k) for k in range(2)]
    text = report(paths, tmp_path / "out", Options(formats=("csv",)))
    (row,) = columns(text)
    assert row["client %"] == "40.00 (40.00-40.00)" and row["worst 10 %"] == "20.00 (20.00-20.00)"
    assert row["client variance"].startswith("266.67 ") and "variance (of percentages)" in text
    found = pd.read_csv(tmp_path / "out" / "report.csv").iloc[0]
    means = {name: found[f"client_accuracy_{name}_mean"] for name in ("mean", "q25", "median", "q75", "worst")}
    assert means == pytest.approx({"mean": 0.4, "q25": 0.3, "median": 0.4, "q75": 0.5, "worst": 0.2})
    assert found.client_accuracy_variance_mean == pytest.approx(0.08 / 3)


def test_the_report_has_columns_of_the_jobs_metrics(tmp_path: Path) -> None:
    """Also beside a run without them; built-in ones are shown in percent."""
    paths = [run_file(tmp_path / "a.h5", [0.5], 0, [0.75, 3.5]), run_file(tmp_path / "b.h5", [0.5], 1)]
    (row,) = columns(report(paths))
    assert row["auroc %"] == "75.00, 1 of 2" and row[OWN] == "3.50, 1 of 2"
    (row,) = columns(report(paths, options=Options(columns=(OWN, "macro_f1"))))
    assert (row[OWN], row["macro f1 %"]) == ("3.50, 1 of 2", "-")
    with pytest.raises(ConfigError, match="columns=auoc"):
        report(paths, options=Options(columns=("auoc",)))


def test_the_page_and_the_figures_have_the_jobs_metrics(tmp_path: Path) -> None:
    """Built-in ones and accuracies in percent, the variance in squares of percent; beside a run without them."""
    metrics = [0.75, 3.5], [0.25, 2.5]
    paths = [run_file(tmp_path / f"{seed}.h5", [0.2, 0.6], seed, values) for seed, values in enumerate(metrics)]
    report(paths, tmp_path / "out", Options(formats=("html", "png"), figures=("auroc", OWN)))
    data = data_of((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    labels = {metric["key"]: metric["label"] for metric in data["metrics"]}
    assert (labels["auroc"], labels[OWN]) == ("auroc (%)", OWN)
    first = {key: data["curves"][f"{key} time"][0][1:] for key in ("auroc", OWN, "client_accuracy_variance")}
    assert first == {"auroc": [[50], [25], [75]], OWN: [[3], [2.5], [3.5]],
                     "client_accuracy_variance": [[400], [400], [400]]}  # fmt: skip
    assert {"auroc.png", "mine_f.png"} <= {path.name for path in (tmp_path / "out").iterdir()}
    other = run_file(tmp_path / "c.h5", [0.2, 0.6], 2)
    report([*paths, other], tmp_path / "more", Options(formats=("html", "png"), figures=(OWN,)))
    more = data_of((tmp_path / "more" / "report.html").read_text(encoding="utf-8"))
    assert more["curves"][f"{OWN} time"] == [[[0], [3], [2.5], [3.5]]]
    assert (tmp_path / "more" / "mine_f.png").exists()


def test_show_has_a_line_of_fairness(tmp_path: Path) -> None:
    lines: list[str] = []
    show(run_file(tmp_path / "a.h5", [0.2, 0.4, 0.6], metrics=[0.75, 3.5]), write=lines.append)
    text = "\n".join(lines)
    line = "mean 0.4000, quartiles 0.3000, 0.4000, 0.5000, worst 10 % 0.2000, variance 0.02667"
    assert f"accuracy over clients  {line}" in text and "auroc" in text and OWN in text


def test_names_that_the_job_does_not_have_are_no_columns(tmp_path: Path) -> None:
    path = run_file(tmp_path / "a.h5", [0.5], metrics=[0.75, 3.5])
    import h5py

    with h5py.File(path, "r+", libver="latest") as file:
        config = yaml.safe_load(file.attrs["config"])
        config["evaluate"]["metrics"] = ["auroc", "train_loss", "\x1b[31m:x", 7, *[f"a:{k}" for k in range(50)]]
        file.attrs["config"] = yaml.safe_dump(config)
    with mpifl.open_run(path) as run:
        added = list(run.evaluations)[len(EvaluationRow._fields) :]
        assert added[:2] == ["auroc", "\\x1b[31m:x"] and len(added) < 20 and OWN not in added
        assert run.evaluations.train_loss.tolist() == [1.0]
