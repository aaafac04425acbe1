"""`mpifl compare` and the cautions below tables, on small run files worked out by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mpifl.cli import main
from mpifl.errors import ConfigError
from mpifl.tools.analysis.cautions import cautions
from mpifl.tools.analysis.comparison import CompareOptions, Comparison, compare_files, compare_groups, write_comparison
from mpifl.tools.analysis.report import report
from mpifl.tools.analysis.tables import Table
from mpifl.tools.analysis.trials import Group, load_trial
from mpifl.tools.studies.index import Index
from mpifl.tools.studies.study import load_study
from tests.analysis.test_analysis import run_file
from tests.analysis.test_tables import trial

BASE, OTHER = [0.50, 0.60, 0.70, 0.55, 0.65, 0.52], [0.58, 0.66, 0.71, 0.60, 0.72, 0.51]
DIFFERENCES = 100 * (np.array(OTHER) - BASE)  # 8, 6, 1, 5, 7, -1


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pairs of runs."""
    made = tmp_path_factory.mktemp("pairs")
    for seed, (base, other) in enumerate(zip(BASE, OTHER, strict=True)):
        run_file(made / f"base{seed}.h5", [0.1, base], seed=seed, name="fedbuff")
        run_file(made / f"other{seed}.h5", [0.1, other], seed=seed, name="area")
    return made


@pytest.fixture
def folder(pairs: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return shutil.copytree(pairs, tmp_path, dirs_exist_ok=True)


def compared(folder: Path, options: CompareOptions) -> tuple[Table, Comparison, Comparison]:
    """The table, and the comparisons of area and of the baseline fedbuff."""
    found = compare_files([folder], options)
    by_method = {c.method: c for c in found.rows}
    return found.table, by_method["area"], by_method["fedbuff"]


def test_a_comparison_worked_out_by_hand(folder: Path) -> None:
    """Six pairs: signed ranks 6, 4, 1.5, 3, 5, -1.5; of 2^6 sign patterns 3 have a negative sum of at most 1.5."""
    table, other, base = compared(folder, CompareOptions("fedbuff", power=5.0))
    assert (other.method, base.method, other.pairs, other.better) == ("area", "fedbuff", 6, 5.0)
    assert other.difference.estimate == pytest.approx(DIFFERENCES.mean(), rel=1e-12)
    assert other.effect == pytest.approx((6 + 4 + 1.5 + 3 + 5 - 1.5) / 21, rel=1e-12)
    assert other.p == other.p_holm == pytest.approx(2 * 3 / 2**6, rel=1e-12)
    assert other.value.estimate == pytest.approx(100 * np.mean(sorted(OTHER)[1:5]), rel=1e-12)
    assert np.isnan(base.p) and other.trials == 7  # sd 3.56: noncentral t, difference / sd = 1.40
    assert "area" in table.text() and "+4.33" in table.text() and table.titles[-1] == "trials for 5"


def methods(**ends: Sequence[float]) -> list[Group]:
    """For each method a trial for each seed, whose accuracy and loss end with a value."""
    return [Group({"method": name}, [replace(trial([0.1, v], train_loss=[3.0, v]), seed=k) for k, v in enumerate(each)])
            for name, each in ends.items()]  # fmt: skip


def area(groups: list[Group], options: CompareOptions) -> Comparison:
    """The comparison of area."""
    return next(c for c in compare_groups(groups, options).rows if c.method == "area")


def test_small_losses_are_better() -> None:
    found = methods(fedbuff=[1.1 + k / 5 for k in range(8)], area=[1 + k / 10 for k in range(8)])
    small = area(found, CompareOptions("fedbuff", metric="train_loss"))
    assert (small.effect, small.better, small.verdict) == (1.0, 8.0, "better") and small.difference.estimate < 0
    large = area(found, CompareOptions("fedbuff", metric="train_loss", better="large"))
    assert (large.effect, large.better, large.verdict) == (-1.0, 0.0, "worse")


def test_the_title_of_a_metric_in_percent_says_so() -> None:
    found = methods(fedbuff=BASE, area=OTHER)
    for each in (one for group in found for one in group.trials):
        each.evaluations["auroc"] = each.evaluations.test_accuracy
    assert compare_groups(found, CompareOptions("fedbuff", metric="auroc")).table.titles[2] == "auroc %"


def test_a_trial_that_diverged_counts_as_the_worst() -> None:
    """Two pairs of eight, the others equal: no missing pairs, ranks -7 and -8, and a difference without a mean."""
    found = methods(fedbuff=[0.5] * 8, area=[*[0.5] * 6, np.nan, np.inf])
    other = area(found, CompareOptions("fedbuff", metric="train_loss"))
    assert other.pairs == 8 and other.better == 3.0  # of the six equal ones half
    assert other.effect == -1.0 and other.difference.estimate == np.inf
    notes = compare_groups(found, CompareOptions("fedbuff", metric="train_loss")).table.notes
    assert "Diverged: 2 trials; each counts as worse than any that did not." in notes
    with pytest.raises(ConfigError, match="2 trials diverged, without a difference"):
        area(found, CompareOptions("fedbuff", metric="train_loss", test="permutation"))
    found[1].trials[0] = trial([])
    with pytest.raises(ConfigError, match=r"a\.h5 has no value of it; expected one that all runs have; or leave out"):
        area(found, CompareOptions("fedbuff", metric="train_loss"))


def test_a_mean_that_contradicts_the_ranks_is_said() -> None:
    """Eleven pairs are better by 1 to 11 %, one is worse by 90 %: in rank better, in the mean worse by 2 %."""
    found = methods(fedbuff=[*[0.5] * 11, 0.95], area=[*(0.5 + k / 100 for k in range(1, 12)), 0.05])
    (sentence,) = compare_groups(found, CompareOptions("fedbuff")).sentences
    assert "the test accuracy of area is better by its ranks than that of fedbuff (mean difference -2.00 " in sentence


def test_what_is_left_out_or_not_completed_is_said(folder: Path) -> None:
    (folder / "base0.h5").write_bytes(b"not HDF5")
    (folder / "other1.h5").unlink()
    run_file(folder / "other1.h5", [0.1, 0.5], seed=1, status="failed", name="area")
    table, other, _ = compared(folder, CompareOptions("fedbuff"))
    assert other.pairs == 5 and any(n.startswith(f"Left out: run file={folder / 'base0.h5'}: ") for n in table.notes)
    assert "Left out: 1 trial of area or fedbuff without a partner." in table.notes
    assert f"Not completed: {folder / 'other1.h5'}, failed; its rows are included." in table.notes
    assert any(note.startswith("Caution: with 5 pairs p is at least 0.062") for note in table.notes)


def test_files_have_the_names_as_they_are(tmp_path: Path) -> None:
    """The columns of compare.tex are those that fit a page."""
    found = compare_groups(methods(**{"<b>*a*": BASE, "area": OTHER}), CompareOptions("<b>*a*"))
    write_comparison(tmp_path, found)
    text, tex = ((tmp_path / f"compare.{suffix}").read_text() for suffix in ("md", "tex"))
    assert r"the method minus \<b\>\*a\*," in text and "<b>" not in text and text.rstrip().endswith(").")
    assert r"\begin{table*}" in tex and "verdict" not in tex and r"\caption{Test accuracy of each method" in tex


def test_settings_and_all_of_them() -> None:
    """Two horizons are settings of their own: each has a row, and all together one with the mean of both."""
    ends = {"4": (BASE, OTHER), "8": ([0.5] * 6, [0.5 + k / 100 for k in range(6)])}
    found = [Group({**each.labels, "horizon": horizon}, each.trials)
             for horizon, (base, other) in ends.items() for each in methods(fedbuff=base, area=other)]  # fmt: skip
    table, _, rows, (sentence,) = compare_groups(found, CompareOptions("fedbuff"))
    by_setting = {tuple(c.setting.values()): c for c in rows if c.method == "area"}
    assert sentence.startswith("Over 12 pairs of trials in 2 settings the test accuracy of area is ")
    assert {*by_setting} == {("4",), ("8",), ("all",)}
    means = [by_setting[key,].difference.estimate for key in ("4", "8")]
    assert means == pytest.approx([DIFFERENCES.mean(), 2.5]) and by_setting["all",].pairs == 12
    assert by_setting["all",].difference.estimate == pytest.approx(np.mean(means))
    assert min(c.p_holm / c.p for c in by_setting.values()) >= 1 and "corrected for the 3 comparisons" in table.notes[0]
    table, _, rows, (sentence,) = compare_groups(found[:3], CompareOptions("fedbuff"))
    assert "Not in all settings: area has pairs in 1 of 2." in table.notes
    assert sentence.startswith("Over 6 pairs of trials the test accuracy of area")
    equal = compare_groups(methods(A=[0.5, 0.6], B=[0.5, 0.6]), CompareOptions("A")).rows[1]
    assert str(equal.effect) == "0.0"


def test_the_command_writes_its_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(folder), "--baseline", "fedbuff", "--out", str(folder / "out")]) == 0
    assert "not distinguishable" in capsys.readouterr().out
    data = pd.read_csv(folder / "out/compare.csv")
    assert data.verdict.tolist() == ["baseline", "not distinguishable"]
    assert data.difference[1] == pytest.approx(DIFFERENCES.mean(), rel=1e-12)
    assert r"\begin{tabular}" in (folder / "out/compare.tex").read_text()
    assert "| area" in (folder / "out/compare.md").read_text()
    assert (folder / "out/sentences.tex").read_text() == (
        "Over 6 pairs of trials the test accuracy of area is not distinguishable from that of fedbuff (difference "
        r"+4.33 percentage points, 95 \% interval +0.60 to +8.07; Wilcoxon's signed-rank test, p = 0.094)." + "\n"
    )


WRONG = {
    "FOLDER": "--baseline='': required",
    "--baseline x": "compare='': nothing to compare",
    "FOLDER --baseline fedbuf": "baseline=fedbuf: no run has it as algorithm; expected one of fedbuff, area",
    "FOLDER --baseline=": "baseline='': no run has it as algorithm",
    "FOLDER --baseline fedbuff --test t": "test=t: unknown; expected one of",
    "FOLDER --baseline fedbuff --metric f2": "metric=f2: not a metric of the evaluations; expected one of train_loss, ",
    "FOLDER --baseline fedbuff --metric time": "metric=time: not a metric of the evaluations",
    "FOLDER --baseline fedbuff --tuned step": "tuned=step: the runs do not differ in",
    "FOLDER --baseline fedbuff --tuned algorithm": "tuned=algorithm: its values are",
    "FOLDER --baseline fedbuff --by clock": "by=clock: the runs do not differ in it",
    "FOLDER --baseline fedbuff --power 0": "power=0.0: not a difference",
    "FOLDER --baseline fedbuff --power x": "--power: invalid float value: 'x'",
    "FOLDER --baseline fedbuff --better up": "better=up: unknown; expected large or",
    "FOLDER/base0.h5 FOLDER/base1.h5 --baseline fedbuff": "runs=1: all have one",
    "FOLDER/base0.h5 FOLDER/other1.h5 --baseline fedbuff": "baseline=fedbuff: no other",
    "FOLDER --baseline fedbuff --out FOLDER/base0.h5": "out=",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_uses_of_compare_are_refused(line: str, pairs: Path, refused: Callable[..., str]) -> None:
    assert WRONG[line] in refused("compare", *line.replace("FOLDER", str(pairs)).split())


def test_a_folder_in_the_place_of_a_file_leaves_nothing_behind(folder: Path) -> None:
    (folder / "out/sentences.tex").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"sentences\.tex in it is a folder"):
        write_comparison(folder / "out", compare_files([folder], CompareOptions("fedbuff")))
    assert [path.name for path in (folder / "out").iterdir()] == ["sentences.tex"]


def test_a_setting_may_be_named_as_a_column_of_the_csv(tmp_path: Path) -> None:
    """Settings p and method beside the compared clock: their values, and those of the columns p and method."""
    groups = [Group({"clock": clock, "p": 0.25, "method": "area"}, [trial([accuracy])])
              for clock, accuracy in (("slow", 0.5), ("fast", 0.6))]  # fmt: skip
    write_comparison(tmp_path, compare_groups(groups, CompareOptions("slow")))
    data = pd.read_csv(tmp_path / "compare.csv")
    assert data.method.tolist() == ["slow", "fast"] and data["setting.method"].tolist() == ["area", "area"]
    assert data["setting.p"].tolist() == [0.25, 0.25] and data.p[1] == 1.0


def test_more_trials_than_are_looked_for() -> None:
    """0.01 at a standard deviation of 3.56 needs about (2.8 * 356)^2 trials."""
    table, _, rows, _ = compare_groups(methods(fedbuff=BASE, area=OTHER), CompareOptions("fedbuff", power=0.01))
    assert rows[1].trials == np.inf and table.rows[1][-1] == ">100000"


def test_what_is_tuned_for_each_method_is_named_and_not_guessed() -> None:
    one, two, more = ([trial([0.1, 0.5])] for _ in range(3))
    groups = [Group({"method": "area", "step": 1}, one), Group({"method": "fedbuff", "step": 2}, two)]
    with pytest.raises(ConfigError, match="name with --tuned what is each method's own, of step"):
        compare_groups(groups, CompareOptions("fedbuff"))
    assert compare_groups(groups, CompareOptions("fedbuff", tuned=("step",))).rows
    groups.append(Group({"method": "area", "step": 2}, more))
    assert (
        "Left out: area, step 1, a setting without fedbuff."
        in compare_groups(groups, CompareOptions("fedbuff")).table.notes
    )
    with pytest.raises(ConfigError, match=r"area has several configurations in one setting; .*; leave out files"):
        compare_groups(groups, CompareOptions("fedbuff", tuned=("step",)))


# -- cautions ----------------------------------------------------------------------------------------------------------
def test_trials_that_are_counted_twice_or_made_no_step_are_said(tmp_path: Path) -> None:
    """Also below a report."""
    paths = [run_file(tmp_path / f"{k}.h5", [0.1, 0.5], seed=3, steps=2 * k) for k in range(2)]
    twice, none = [line for line in report(paths).splitlines() if line.startswith("Caution")]
    assert "have the same seed and the same evaluations, bit for bit" in twice
    assert none == "Caution: 1 of 2 trials made no aggregation (all trials)."


def test_a_training_loss_before_the_last_evaluation_is_said() -> None:
    """Evaluations 0, 2, 4, ... measure it: of three the last one does, of four the last but one."""
    for evaluations, said in ((3, 0), (4, 1)):
        one = replace(trial([0.5] * evaluations), train_every=2)
        assert sum("earlier evaluation than the last" in text for text in cautions([Group({}, [one])])) == said


def test_intervals_of_few_trials_and_wide_ones_are_said() -> None:
    """Student's 0.975 quantile of one degree of freedom is 12.7: two trials, 0.1 and 0.9, have -4.6 to 5.6."""
    group = Group({}, [replace(trial([0.1 + 0.8 * k]), seed=k) for k in range(2)])
    assert not cautions([group])
    assert cautions([group], "ci95") == [
        "Caution: the 95 % interval of 2 trials is 12.7 standard errors to each side (all trials).",
        "Caution: the 95 % interval of test_accuracy is wider than the metric's range (all trials).",
    ]


def test_real_time_on_unlike_ranks_or_too_slow_is_said() -> None:
    real = [replace(trial([0.1]), seed=seed, clock="real") for seed in range(2)]
    real[1] = replace(real[1], placement=(5, '["a"]'), overload="contacts took 2 s")
    assert cautions([Group({}, real)]) == [
        "Caution: trials in real time ran on different numbers of ranks or on different hosts (all trials).",
        "Caution: 1 of 2 trials in real time could not keep up: contacts took 2 s (all trials).",
    ]
    assert not cautions([Group({}, [replace(each, clock="virtual") for each in real])])  # ranks change nothing


def test_a_selected_value_at_the_edge_of_its_grid_is_said() -> None:
    grid = [Group({"method": "A", "step": step}, [trial([0.1])]) for step in (1, 10, 100)]
    assert not cautions([grid[1]], candidates=grid, tuned=["step"])
    (caution,) = cautions([grid[2]], candidates=grid, tuned=["step"])
    assert caution.endswith("may lie: A, step 100 (step: the largest).")
    grid = [Group({"method": "A", "step": step}, [trial([0.1])]) for step in (False, True, None)]
    assert not cautions([grid[1]], candidates=grid, tuned=["step"])  # no numbers, and so no edge


JOB = """
name: base
problem: {data: digits, clients: 3, model: logistic}
algorithm: fedavg
clock: {mode: virtual, delay: {name: exponential, rate: 10}}
stop: {updates: 12}
evaluate: {updates: 6}
"""


@pytest.mark.long
def test_two_names_for_one_method_are_told_apart_as_often_as_the_level_says(tmp_path: Path) -> None:
    """200 null studies: ten runs of one method under each of two names, drawn from 60 with seeds of their own."""
    (tmp_path / "base.yaml").write_text(JOB)
    study = tmp_path / "study.yaml"
    study.write_text("name: same\njob: base.yaml\naxes: {algorithm.step_size: [0.1]}\ntrials: 60\n")
    assert main(["sweep", str(study), f"output={tmp_path / 'results'}"]) == 0
    index = Index(loaded := load_study(study, [f"output={tmp_path / 'results'}"]))
    pool = [load_trial(run.path) for run in loaded.runs if index.entries[run.identity].status == "completed"]
    assert len(pool) == 60
    rejected = 0
    for k in range(200):
        drawn = [pool[j] for j in np.random.default_rng(k).permutation(60)[:20]]
        groups = [
            Group(
                {"method": name}, [replace(trial, seed=seed) for seed, trial in enumerate(drawn[10 * m : 10 * m + 10])]
            )
            for m, name in enumerate("AB")
        ]
        found = compare_groups(groups, CompareOptions("A", metric="train_loss")).rows
        rejected += found[1].verdict != "not distinguishable"
    assert 0.03 <= rejected / 200 <= 0.07
