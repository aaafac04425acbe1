"""`mpifl reproduce` on a tiny paper: verdicts and sentences follow the published numbers and the runs."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from math import inf, nan
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import mpifl
from mpifl.cli import main
from mpifl.errors import ConfigError
from mpifl.tools.analysis.trials import Group, Trial, load_trial
from mpifl.tools.reproduce.claims import claim_table, judge_difference, judge_means, seeds_to_decide
from mpifl.tools.reproduce.items import JOBS, Item, PaperOptions, load_items, papers
from mpifl.tools.reproduce.page import format_summary
from mpifl.tools.reproduce.published import Value, z_score
from mpifl.tools.reproduce.spec import Claim, Measure
from mpifl.tools.reproduce.spread import components, spread_section
from mpifl.tools.reproduce.values import Summary, mean_curve, paired, summarise, trial_value
from mpifl.tools.studies.select import combinations_of
from tests.studies.conftest import BASE

STUDY = """
name: tiny
job: base.yaml
axes:
  method:
    AREA:   {algorithm: {name: area, step_size: 10, trigger: {every: 2}}}
    FedAvg: {algorithm: {name: fedavg, step_size: 0.1, cohort: 3}}
trials: 3
page:
  title: Table 1
  published: Table 1
  claims:
    - {left: {method: AREA}, relation: above, right: {method: FedAvg}, measure: accuracy}
    - {left: {method: AREA}, relation: below, right: {method: FedAvg}, measure: loss}
"""
PAPER = """
title: A paper
items: [table1]
page:
  measures:
    accuracy: {metric: test_accuracy, scale: 100, within: range}
    loss: {metric: train_loss, within: 0.05, digits: 4}
  strict: [{cells: {method: FedAvg}, within: {accuracy: 0.5}}]
"""
HEAD = "paper,item,cell,measure,mean,min,max,trials,printed"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers") / "tiny"
    folder.mkdir()
    for name, text in (("base", BASE), ("table1", STUDY + f"output: {folder}/runs\n"), ("paper", PAPER)):
        (folder / f"{name}.yaml").write_text(text)
    publish(folder, {})
    assert main(["reproduce", str(folder / "table1.yaml"), "--processes", "1", "--out", str(folder / "page")]) == 0
    return folder


@pytest.fixture
def runs(made: Path) -> Path:
    """A paper's folder with the study's runs, and with one published number."""
    publish(made, {})
    return made


def ours(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """(trials,) last accuracy, in per cent, and loss by method, read from the run files."""
    found: dict[str, dict[str, list[float]]] = {}
    for path in sorted((folder / "runs").glob("*.h5")):
        with mpifl.open_run(path) as run:
            method = "AREA" if run.config["algorithm"]["name"] == "area" else "FedAvg"
            last = run.evaluations.iloc[-1]
            for key, value in (("accuracy", 100 * last.test_accuracy), ("loss", last.train_loss)):
                found.setdefault(method, {}).setdefault(key, []).append(float(value))
    return {m: {key: np.array(values) for key, values in each.items()} for m, each in found.items()}


def publish(folder: Path, numbers: dict[tuple[str, str], tuple[float, float, float]]) -> None:
    """Writes published.csv: mean, min and max by method and measure."""
    rows = numbers or {("AREA", "accuracy"): (90.0, 80.0, 95.0)}
    lines = [
        f"tiny,Table 1,method={m},{k},{a:.4f},{b:.4f},{c:.4f},10,{a:.4f} ({b:.4f} - {c:.4f})"
        for (m, k), (a, b, c) in rows.items()
    ]
    (folder.parent / "published.csv").write_text("\n".join([HEAD, *lines, ""]))


def page(folder: Path, out: Path, *arguments: str) -> str:
    assert main(["reproduce", str(folder / "table1.yaml"), "--out", str(out), "--no-runs", *arguments]) == 0
    return (out / "tiny-table1.md").read_text()


def row(text: str, *cells: str) -> list[str]:
    """The cells of the first table row that has these ones."""
    tables = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return next(r for r in tables if all(c in r for c in cells))


def claim_row(text: str, claim: str) -> dict[str, str]:
    """The cells of a claim's row by the headings of its table; columns without values are left out of tables."""
    table = text[text.rindex("\n| claim ", 0, text.index(f"| {claim} ")) :]
    headings = row(table, "claim")
    return dict(zip(headings, row(table, claim), strict=True))


def test_verdicts_and_sentences_follow_the_published_numbers(runs: Path, tmp_path: Path) -> None:
    here = ours(runs)
    mean = {(m, k): float(values.mean()) for m, each in here.items() for k, values in each.items()}
    publish(runs, {key: (value, value - 1, value + 1) for key, value in mean.items()})
    text = page(runs, tmp_path)
    assert row(text, "AREA")[-1] == row(text, "FedAvg")[-1] == "met"
    assert "2 of 2 published rows are met." in text and "not met" not in text
    assert "6 of 6 runs, 3 trials of each setting" in text
    assert f"{mean['AREA', 'accuracy']:.2f} ({here['AREA']['accuracy'].min():.2f}-" in text
    assert "accuracy: 2 of 2 means are in the published range, |z| is at most 2 in 2 of 2." in text

    publish(runs, {
        ("AREA", "accuracy"): (mean["AREA", "accuracy"] + 3, mean["AREA", "accuracy"] + 2, 100.0),
        ("AREA", "loss"): (mean["AREA", "loss"], 0, 9),
        ("FedAvg", "accuracy"): (mean["FedAvg", "accuracy"] - 0.7, 0, 100),
        ("FedAvg", "loss"): (mean["FedAvg", "loss"] - 0.06, 0, 9),
    })  # fmt: skip
    text = page(runs, tmp_path)
    assert row(text, "AREA")[-1] == "accuracy 2.00 below the published range"
    assert row(text, "FedAvg")[-1] == "accuracy 0.70 above the published mean, loss 0.0600 above the published mean"
    assert "0 of 2 published rows are met." in text
    assert "- method AREA: accuracy 2.00 below the published range" in text
    assert "accuracy: 1 of 2 means are in the published range" in text
    assert "For method FedAvg, accuracy is within 0.5 of the published mean." in text


def test_claims_follow_the_runs(runs: Path, tmp_path: Path) -> None:
    """The paired difference of three seeds with its interval; with two methods' files exchanged it is the reverse.

    With `times: 0.5` the difference of a pair is left - right/2; that of the printed means is 90 - 70/2."""
    publish(runs, {("AREA", "accuracy"): (90, 80, 95), ("FedAvg", "accuracy"): (70, 60, 75)})
    here = ours(runs)
    d = here["AREA"]["accuracy"] - here["FedAvg"]["accuracy"]
    half = 4.302653 * d.std(ddof=1) / np.sqrt(3)  # Student's t, two degrees of freedom
    claim = claim_row(page(runs, tmp_path), "accuracy of AREA is above that of FedAvg")
    assert claim["published"] == "+20.00" and claim["seeds"] == "3"
    assert claim["here"].endswith(f": {d.mean():+.2f} ({d.mean() - half:+.2f} to {d.mean() + half:+.2f})")
    assert claim["verdict"] == ("holds" if d.mean() - half > 0 else "not decided")
    assert d.mean() - half > 0, "the test needs a claim that holds"
    with changed(runs / "table1.yaml", "relation: above", "relation: above, times: 0.5"):
        claim = claim_row(page(runs, tmp_path), "accuracy of AREA is above 0.5 times that of FedAvg")
    d = here["AREA"]["accuracy"] - here["FedAvg"]["accuracy"] / 2
    assert claim["published"] == "+55.00" and f": {d.mean():+.2f} (" in claim["here"]

    shutil.copytree(runs / "runs", tmp_path / "runs")
    for path in (tmp_path / "runs").glob("*AREA*.h5"):  # whose accuracies become low
        with h5py.File(path, "r+", libver="latest") as file:
            file["evaluations/test_accuracy"][-1] = 0.05
    text = page(runs, tmp_path, f"output={tmp_path}/runs")
    assert claim_row(text, "accuracy of AREA is above that of FedAvg")["verdict"] == "does not hold"
    assert "that do not: 1; not decided: " in text


def test_a_share_of_the_horizon_is_compared_by_the_mean_curves(runs: Path, tmp_path: Path) -> None:
    """rho of both methods: a printed >1 is more than 0.3, and equal printed values make no claim."""
    rho = "  measures: {rho: {metric: test_accuracy, reaches: 0.5, of_horizon: true}}\n"
    claim = "{left: {method: AREA}, relation: published, right: {method: FedAvg}, measure: rho}"
    lines = [f"tiny,Table 1,method={m},rho,{v},,,10,{p}" for m, v, p in (("AREA", 0.3, 0.3), ("FedAvg", "", ">1"))]
    file = runs.parent / "published.csv"
    file.write_text("\n".join([HEAD, *lines, ""]))
    claims = (runs / "table1.yaml").read_text().split("  claims:\n")[1].split("output:")[0]
    shared = "  strict: [{cells: {method: FedAvg}, within: {accuracy: 0.5}}]\n"
    with (
        changed(runs / "table1.yaml", "  claims:\n" + claims, f"{rho}  claims: [{claim}]\n"),
        changed(runs / "paper.yaml", shared, ""),
    ):
        text = page(runs, tmp_path)
        found = claim_row(text, "rho of AREA is below that of FedAvg")
        one, two = (row(text, method)[2].split()[0] for method in ("AREA", "FedAvg"))
        assert float(one) <= 1 and two == r"\>1" and list(found)[1:] == ["here", "seeds", "verdict"]
        assert list(found.values())[1:] == [rf"{one}, \>1", "3", "holds"]
        assert f"rho minus the printed rho: read off the mean curve, {float(one) - 0.3:+.2f} on average" in text
        file.write_text("\n".join([HEAD, lines[0], lines[1].replace(",,,,10,>1", ",0.3,,,10,0.3"), ""]))
        found = claim_row(page(runs, tmp_path), "rho of AREA compared with that of FedAvg")
        assert found["verdict"] == "printed values equal"


def test_verdicts_on_two_numbers() -> None:
    below = Claim({}, "below", {}, "rho", times=0.5)
    assert [judge_means(below, 0.1, y) for y in (0.21, 0.2, 0.19, np.inf)] == [
        "holds", "does not hold", "does not hold", "holds"
    ]  # fmt: skip
    assert judge_means(below, np.inf, 0.2) == "does not hold" and judge_means(below, np.inf, np.inf) == "no values"
    assert judge_means(Claim({}, "above", {}, "rho"), np.inf, 0.2) == "holds"
    assert [judge_means(below, 0.1, y, 0.02) for y in (0.25, 0.235, 0.17, 0.15)] == [
        "holds", "not decided", "not decided", "does not hold"
    ]  # fmt: skip
    near = Claim({}, "near", {}, "rho", by=0.1)
    assert [judge_means(near, 0.3, y) for y in (0.35, 0.45, np.inf)] == ["holds", "does not hold", "does not hold"]


def test_a_check_is_not_counted_among_the_claims() -> None:
    rows = [["one", "holds"], ["two", "check: holds"], ["three", "check: does not hold"], ["four", "not decided"]]
    counts = "Claims that hold: 1; that do not: 0; not decided: 1. Checks are not counted."
    assert list(claim_table(rows, ["claim", "verdict"]))[1] == counts


@pytest.mark.parametrize(("relation", "by", "distance"), [("above", 0.5, 0.5), ("below", 0.5, 1.5), ("near", 3, 2)])
def test_seeds_to_decide(relation: Any, by: float, distance: float) -> None:
    """n is the least number with t(n-1) s / sqrt(n) below the distance of the mean, 1, from the bound."""
    values = np.array([-1.0, 3.0, 2.5, -0.5])
    found = int(seeds_to_decide(Claim({}, relation, {}, "loss", by=by), values))
    half = [stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n) for n in (found - 1, found)]
    assert values.mean() == 1 and half[1] < distance <= half[0]
    assert seeds_to_decide(Claim({}, "above", {}, "loss", by=1.0), values) == "1000 or more"


def test_an_item_with_a_page_of_its_own_and_what_is_missing(runs: Path, tmp_path: Path) -> None:
    """The paper's page has the other items, and at its end what is missing; the item is written beside it, as alone."""
    other = (runs / "table1.yaml").read_text().replace("title: Table 1", "title: Table 2\n  missing: '## Why not met'")
    (runs / "table2.yaml").write_text(other)
    new = "missing: '## Missing, and why'\nitems: [table1]\nown_pages: [table2]"
    with changed(runs / "paper.yaml", "items: [table1]", new):
        assert main(["reproduce", str(runs), "--no-runs", "--out", str(tmp_path)]) == 0
        text, own = (tmp_path / "tiny.md").read_text(), (tmp_path / "tiny-table2.md").read_text()
        assert "## Table 1\n" in text and "Table 2" not in text and own.startswith("# Table 2\n")
        assert own.endswith("\n\n## Why not met\n") and "Why not met" not in text
        assert text.endswith("\n\n## Missing, and why\n") and "of each setting; evaluated every " in text
        assert main(["reproduce", str(runs / "table2.yaml"), "--no-runs", "--out", str(tmp_path / "one")]) == 0
        assert (tmp_path / "one" / "tiny-table2.md").read_text() == own and "## Missing" not in own
        with changed(runs / "table2.yaml", f"{runs}/runs", f"{runs}/none"):
            assert main(["reproduce", str(runs), "--no-runs", "--out", str(tmp_path / "none")]) == 0
        assert [path.name for path in (tmp_path / "none").glob("*.md")] == ["tiny.md"]


def test_measures_of_every_column(runs: Path, tmp_path: Path) -> None:
    """Also of columns that the table of a report leaves out unless it is asked for them."""
    shown = "  figures: [{y: validation_loss}]\n  tables: [{measures: [quartile]}]\noutput:"
    measure = "    quartile: {metric: personal_accuracy_q25}\n  strict"
    with changed(runs / "paper.yaml", "  strict", measure), changed(runs / "table1.yaml", "output:", shown):
        assert "quartile" in page(runs, tmp_path)


def test_spread_over_an_axis_beside_the_spread_over_trials(runs: Path) -> None:
    """The run files of both methods as if they were two splits of one; the published range gives its deviation."""
    publish(runs, {("AREA", "accuracy"): (90, 80, 95.4)})
    (item,) = load_items(str(runs / "table1.yaml"))[1]
    area, fedavg = ([load_trial(p) for p in sorted((runs / "runs").glob(f"tiny-{m}-*"))] for m in ("AREA", "FedAvg"))
    groups = [Group({"method": "AREA", "split": k}, trials) for k, trials in enumerate((area, fedavg))]
    text = "\n".join(spread_section(replace(item.page, spread="split"), item.cells, groups, 1))
    one, two = (ours(runs)[method]["accuracy"] for method in ("AREA", "FedAvg"))
    within = np.sqrt((one.var(ddof=1) + two.var(ddof=1)) / 2)
    between = np.sqrt(max(0, np.var([one.mean(), two.mean()], ddof=1) - within**2 / 3))
    found = row(text, "AREA", "accuracy")
    inside = sum(80 <= values.mean() <= 95.4 for values in (one, two))
    assert found[3].startswith("90") and found[4] == f"{inside} of 2"
    assert found[5:] == [f"{within:.2f}", f"{between:.2f}", "5.00"]  # 15.4 / 3.08


def test_one_seed_gives_no_interval_and_missing_runs_are_counted(runs: Path, tmp_path: Path) -> None:
    text = page(runs, tmp_path, "--trials", "1")
    assert "2 of 2 runs, 1 trial of each setting" in text
    claim = claim_row(text, "accuracy of AREA is above that of FedAvg")
    assert claim["seeds"] == "1" and " to " not in claim["here"]
    text = page(runs, tmp_path, "trials=5")
    assert "6 of 10 runs, 3 trials of each setting" in text
    assert "4 of the study's 10 runs are missing here: 4 waiting." in text


TITLE = "title: Table 1"
MISTAKES = [
    ("table1", "measure: loss", "measure: los", "claims[1].measure=los: no such measure; expected one of accuracy, "),
    ("table1", "left: {method: AREA}", "left: {method: ARENA}", "page.claims[0]="),
    ("table1", "published: Table 1", "published: Table 2", "expected one of its items"),
    ("table1", TITLE, "titel: Table 1", "page.titel=Table 1: no such key; the nearest is title"),
    ("paper", "within: range", "within: rang", "page.measures.accuracy.within=rang"),
    ("paper", "accuracy: 0.5", "accuracy: rang", "page.strict[0].within.accuracy=rang: not valid; expected range or a"),
    ("paper", "metric: train_loss", "metric: train_los", "page.measures=train_los: no such metric"),
    ("paper", "items: [table1]", "item: [table1]", "item="),
    ("table1", TITLE, f"{TITLE}\n  spread: splitt", "page.spread=splitt: no such axis; expected one of method"),
    ("table1", TITLE, f"{TITLE}\n  figures: [{{y: test_acc}}]", "no such metric; expected one of time, updates, "),
    ("table1", TITLE, f"{TITLE}\n  figures: [{{y: train_loss, panels: rate}}]", "no such axis; expected one of method"),
]


@pytest.mark.parametrize(("file", "old", "new", "line"), MISTAKES)
def test_mistakes_are_one_line(
    runs: Path, tmp_path: Path, refused: Callable[..., str], file: str, old: str, new: str, line: str
) -> None:
    with changed(runs / f"{file}.yaml", old, new):
        assert line in refused("reproduce", runs / "table1.yaml", "--no-runs", "--out", tmp_path)


@contextmanager
def changed(file: Path, old: str, new: str) -> Iterator[None]:
    """The file with another text in place of one that it has."""
    before = file.read_text()
    assert old in before
    file.write_text(before.replace(old, new, 1))
    try:
        yield
    finally:
        file.write_text(before)


def test_a_paper_without_items(runs: Path, refused: Callable[..., str]) -> None:
    with changed(runs / "paper.yaml", "[table1]", "[]"):
        assert refused("reproduce", runs).startswith("mpifl: items=[]: empty")


@pytest.mark.parametrize("inside", ["", "/pages"])
def test_the_folder_of_the_page_is_checked_before_the_runs(
    runs: Path, tmp_path: Path, refused: Callable[..., str], inside: str
) -> None:
    refused("reproduce", runs / "table1.yaml", f"output={tmp_path}/none", "--no-runs", "--out", tmp_path / "pages")
    assert not (tmp_path / "pages").exists(), "no completed run"
    (tmp_path / "file").write_text("kept")
    out = f"{tmp_path}/file{inside}"
    line = refused("reproduce", runs / "table1.yaml", f"output={tmp_path}/runs", "--out", out)
    assert line.startswith(f"mpifl: --out={out}: cannot be written: {tmp_path}/file is a file; expected a folder that ")
    assert (tmp_path / "file").read_text() == "kept" and not (tmp_path / "runs").exists()


def test_a_published_cell_without_runs_or_labels_is_refused(runs: Path) -> None:
    publish(runs, {("SCAFFOLD", "accuracy"): (90, 80, 95)})
    with pytest.raises(ConfigError, match=r"0 combinations of the study's axes have these labels; expected one"):
        load_items(str(runs / "table1.yaml"))
    (runs.parent / "published.csv").write_text(f"{HEAD}\ntiny,Table 1\n")
    with pytest.raises(ConfigError, match=r"published=.*: a cell is ''; expected labels"):
        load_items(str(runs / "table1.yaml"))


# -- the papers of the package -----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def items() -> dict[str, tuple[PaperOptions, list[Item]]]:
    """The items of each paper, with two trials."""
    return {paper: load_items(paper, ["trials=2"]) for paper in papers()}


def test_every_item_resolves(
    items: dict[str, tuple[PaperOptions, list[Item]]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each item has its jobs, page, published cells and claims; the overview has one row for each of them."""
    every = [item for _, each in items.values() for item in each]
    for item in every:
        assert item.study.runs and 2 * len(combinations_of(item.study)) == len(item.study.runs), item.name
        assert item.page.minutes, item.name
    import_module("mpifl.tools.reproduce.command")  # takes load_items from there when it is first imported
    monkeypatch.setattr("mpifl.tools.reproduce.items.load_items", items.__getitem__)  # loading them is what takes time
    assert main(["reproduce"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert listed == [item.name for item in every] and len(listed) == len(set(listed))
    monkeypatch.undo()
    assert main(["reproduce", listed[0], "--dry-run", "--trials", "2"]) == 0
    assert "runs to do, on" in capsys.readouterr().out


def test_every_published_number_is_shown_by_an_item(items: dict[str, tuple[PaperOptions, list[Item]]]) -> None:
    with (JOBS / "published.csv").open(newline="") as file:
        stored = {(row["paper"], row["item"]) for row in csv.DictReader(file)}
    assert stored == {(paper, i.page.published) for paper, (_, each) in items.items() for i in each if i.cells}


@pytest.mark.long
def test_the_page_of_a_paper_whose_items_have_no_runs(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item is one item, also beside a folder of its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "area" / "table3").mkdir(parents=True)
    assert "no run in results/area-table3 is completed" in refused("reproduce", "area/table3", "--no-runs")
    assert main(["reproduce", "area", "--no-runs", "--trials", "1"]) == 0
    text = (tmp_path / "results" / "reproduce" / "area.md").read_text()
    assert text.count("Not run: ") == 9 and text.count("## ") == 11 and "61.16 (52.75-66.46)" in text


# -- formulas ----------------------------------------------------------------------------------------------------------
def test_z_score_and_components() -> None:
    """z: sd 1 over 10 trials and sd 2 over 4 give sqrt(1/10 + 4/4); components of variance of a one-way layout."""
    value = Value(10.0, 8.46, 11.54, 10, "")
    values = np.array([-1.0, 1.0, -1.0, 1.0]) * np.sqrt(3) + 12
    assert z_score(value, Summary(values, 12.0)) == pytest.approx(2 / np.sqrt(0.1 + 4 / 4))
    within, between = components([np.array([0.0, 2.0]), np.array([10.0, 12.0])])
    assert within == pytest.approx(np.sqrt(2)) and between == pytest.approx(np.sqrt(50 - 2 / 2))
    assert components([np.array([0.0, 2.0]), np.array([0.5, 2.5])])[1] == 0


# -- trials that diverge or learn nothing ------------------------------------------------------------------------------
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
        ([6.0, 2.0, 1.0], {"tail": "all"}, 3.0),
        ([3.0, 2.0, nan], {"tail": "all"}, inf),
        ([3.0, 2.0, nan], {"until": 1}, 2.0),
        ([3.0, 2.0, nan], {"at": "best"}, 2.0),
        ([3.0, 2.0, nan], {"reaches": 2.5}, 1.0),  # it has been there
        ([3.0, 2.0, nan], {"reaches": 1.5}, inf),
        ([3.0, 2.0, nan], {"log": True}, inf),
        ([3.0, 2.0, 0.0], {"log": True}, -inf),  # no loss at all is not the worst
        ([nan, 3.0, 2.0], {}, 2.0),
        ([nan, nan, nan], {}, nan),  # no such metric
        ([3.0, 2.0, nan], {"higher_is_better": True}, -inf),
        ([3.0, 2.0, 1.0], {"higher_is_better": True, "at": "best"}, 3.0),
    ],
)
def test_a_diverged_trial_has_the_worst_value(values: list[float], options: dict[str, Any], expected: float) -> None:
    (trial,) = group(values).trials
    np.testing.assert_equal(trial_value(Measure("train_loss", **options), trial), expected)
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
    np.testing.assert_equal(paired(Measure("train_loss"), [left], [right]), [-2, inf, -inf, nan])


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
    assert judge_difference(claim, np.array(values)) == verdict


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


def test_a_page_with_diverged_trials(runs: Path, tmp_path: Path) -> None:
    publish(runs, {("AREA", "loss"): (1.0, 0.0, 9.0)})
    text = page(runs, tmp_path, changed_runs(tmp_path / "one", runs, "*AREA-0-*.h5", "train_loss", nan))
    assert ", 1 of 3 diverged" in row(text, "AREA")[2] and row(text, "AREA")[-1] == "loss diverged in 1 of 3 trials"
    assert "0 of 1 published rows are met." in text and "loss: 0 of 1 means are in the published range" in text
    claim = claim_row(text, "loss of AREA is below that of FedAvg")
    assert " and 1 of 3 diverged, " in claim["here"] and claim["here"].endswith(": 1 of 3 not finite")
    assert claim["seeds"] == "3"
    text = page(runs, tmp_path, changed_runs(tmp_path / "all", runs, "*AREA-*.h5", "train_loss", inf))
    assert row(text, "AREA")[2] == "diverged, 3 of 3"
    assert claim_row(text, "loss of AREA is below that of FedAvg")["verdict"] == "does not hold"
    assert "diverged" not in claim_row(text, "accuracy of AREA is above that of FedAvg")["here"]


def test_null_models_are_named_and_decide_nothing(runs: Path, tmp_path: Path) -> None:
    """A final model of zeros, and one that is measured as the first was."""
    plain = page(runs, tmp_path)
    assert "Null models" not in plain
    assert claim_row(plain, "accuracy of AREA is above that of FedAvg")["verdict"] == "holds"
    text = page(runs, tmp_path, changed_runs(tmp_path / "zero", runs, "*FedAvg-1-*.h5", "model", 0))
    assert "**Null models:** method FedAvg (1 of 3 trials). The final model is the zero vector" in text
    for claim in ("accuracy of AREA is above that of FedAvg", "loss of AREA is below that of FedAvg"):
        assert claim_row(text, claim)["verdict"] == "not decided: null models"
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
