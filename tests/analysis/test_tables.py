"""Tables of a report, and pivots: spread, what it takes to reach an accuracy, marks, LaTeX; each number by hand."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mpifl.errors import ConfigError
from mpifl.tools.analysis import latex
from mpifl.tools.analysis.options import Options, parse_options
from mpifl.tools.analysis.pivot import build_pivot
from mpifl.tools.analysis.spread import half_width, mean_and_spread
from mpifl.tools.analysis.tables import build_table, format_csv, format_spread, summary
from mpifl.tools.analysis.trials import Group, Trial
from mpifl.tools.reproduce.values import mean_curve
from tests.analysis.test_analysis import columns, run_file

T_2 = 4.302652729911275  # 0.975 quantile of Student's t with 2 degrees of freedom (any table of it)


def trial(accuracies: Sequence[float], status: str = "completed", **columns: Sequence[float]) -> Trial:
    """Evaluations at 0, 1, 2, ... s, after 0, 10, 20, ... updates and 0, 2, 4, ... global steps."""
    k = np.arange(len(accuracies))
    frame = pd.DataFrame({"time": k.astype(float), "updates": 10 * k, "version": 2 * k, "test_accuracy": accuracies})
    for name in ("train_loss", "test_loss", "gradient_norm", "personal_accuracy_mean", "personal_accuracy_best"):
        frame[name] = columns.get(name, np.full(len(k), np.nan))
    frame["bytes"], frame["local_steps"] = 1_500_000.0 * k, 5.0 * k
    return Trial(Path("a.h5"), status, "virtual", {}, frame, 1.0, 0.0, 1)


THREE = [trial([0.1, 0.5, 0.9, 0.9]), trial([0.1, 0.2, 0.3, 0.92]), trial([0.1, 0.2, 0.3, 0.4])]
GROUPS = [Group({"method": "AREA_1"}, THREE), Group({"method": "100 % [b]"}, THREE[2:])]


def test_the_mean_of_trials_that_are_evaluated_at_different_times_has_no_steps() -> None:
    """Evaluations at 0, 1, 2 s and 0, 1.5, 3 s: 0.2, 0.4, 0.8 and 0, 0.6, 0.6; each is on its lines in between."""
    early, late = trial([0.2, 0.4, 0.8]), trial([0.0, 0.6, 0.6])
    late.evaluations["time"] = [0.0, 1.5, 3.0]
    group = Group({}, [early, late])
    curve = group.curve("test_accuracy")
    assert curve.index.tolist() == [0, 1, 1.5, 2, 3]
    assert curve["mean"].tolist() == pytest.approx([0.1, 0.4, 0.6, 0.7, 0.7])
    assert curve["low"].tolist() == pytest.approx([0, 0.4, 0.6, 0.6, 0.6])
    held = group.curve("test_accuracy", hold=True)["mean"]
    assert held.tolist() == pytest.approx([0.1, 0.2, 0.5, 0.7, 0.7])
    other = mean_curve(group, "test_accuracy", "time", power=2)
    assert other["mean"].tolist()[:4] == pytest.approx([0.02, (0.16 + 0.24) / 2, (0.4 + 0.36) / 2, (0.64 + 0.36) / 2])


def test_a_metric_that_few_evaluations_measure_has_no_steps() -> None:
    """Evaluations 0, 2 and 4 measure the training loss, 1.0, 0.5 and 0.3; those between repeat it, the accuracy not."""
    one = replace(trial([0.1, 0.2, 0.3, 0.4, 0.5], train_loss=[1.0, 1.0, 0.5, 0.5, 0.3]), train_every=2)
    group = Group({}, [one, trial([0.1] * 5, train_loss=[1.0] * 5)])
    loss = group.curve("train_loss")
    assert loss.index.tolist() == [0, 1, 2, 3, 4]
    assert loss["low"].tolist() == pytest.approx([1.0, 0.75, 0.5, 0.4, 0.3])
    assert len(one.curve("test_accuracy")[0]) == 5


def test_spreads_by_hand() -> None:
    values = np.array([1.0, 2.0, 6.0])  # mean 3, deviations -2, -1, 3: variance (4 + 1 + 9) / 2 = 7
    assert mean_and_spread(values, "range") == (3, 1, 6)
    assert mean_and_spread(values, "sd") == (3, pytest.approx(3 - 7**0.5), pytest.approx(3 + 7**0.5))
    assert half_width(values, "ci95") == pytest.approx(T_2 * (7 / 3) ** 0.5)
    for spread in ("range", "sd", "ci95"):
        assert mean_and_spread(values[:1], spread) == (1, 1, 1), "one trial has no spread"
    assert np.isnan(half_width(values[:1], "sd"))
    assert format_spread(values, 3, "range") == "3.00 (1.00–6.00)"
    assert format_spread(values, 4, "sd") == "3.00 ± 2.65, 3 of 4"
    assert format_spread(values, 3, "ci95") == "3.00 ± 6.57" and format_spread(values[:1], 1, "sd") == "1.00"
    assert format_spread(np.array([0.5, 0.504]), 2, "sd") == "0.502 ± 0.003", "digits that show the spread"
    assert format_spread(np.array([np.inf, 1.0]), 2, "sd") == "inf"


def test_what_it_takes_to_reach_an_accuracy() -> None:
    """The first evaluation at 0.9 or more is at 2 s and at 3 s; the third trial never gets there."""
    units = ("time", "updates", "rounds", "bytes", "local-steps")
    options = Options(reach=(0.9, 1.0), reach_in=units, columns=("test_accuracy",))
    first, second = columns(build_table(GROUPS, options).text())
    assert first["trials"] == "3" and first["accuracy %"] == "74.00 (40.00-92.00)"
    assert first["time to 90 % (s)"] == "2.50 (2.00-3.00), 2 of 3"
    assert first["updates to 90 %"] == "25.0 (20-30), 2 of 3" and first["rounds to 90 %"] == "5.0 (4-6), 2 of 3"
    assert first["MB to 90 %"] == "3.75 (3.00-4.50), 2 of 3" and first["local steps to 90 %"] == "12.5 (10-15), 2 of 3"
    assert first["time to 100 % (s)"] == "never, 0 of 3" and second["MB to 90 %"] == "never, 0 of 1"
    rows = pd.read_csv(StringIO(format_csv(summary(GROUPS, options))))
    assert rows["time_to_0.9_trials"].tolist() == [2, 0] and rows["time_to_0.9_mean"][0] == 2.5
    assert rows["bytes_to_0.9_sd"][0] == pytest.approx(1.5e6 / 2**0.5)
    assert rows.test_accuracy_sd[0] == pytest.approx(np.std([0.9, 0.92, 0.4], ddof=1))
    assert rows.test_accuracy_ci95[0] == pytest.approx(T_2 * np.std([0.9, 0.92, 0.4], ddof=1) / 3**0.5)
    unknown = Group({"method": "c"}, [trial([np.nan, np.nan])])
    (row,) = columns(build_table([unknown], options).text())
    assert row["time to 90 % (s)"] == "-", "without accuracies nobody knows"


def test_a_trial_that_diverged_is_counted_and_ends_the_curve() -> None:
    """Its loss is infinite or NaN at the last evaluation and was finite before; the mean is over the others."""
    losses = [[4.0, 2.0, 1.0], [4.0, 3.0, np.nan], [4.0, 3.0, np.inf]]
    group = Group({"method": "a"}, [trial([0.1, 0.2, 0.3], train_loss=row) for row in losses])
    table = build_table([group], Options())
    (row,) = columns(table.text())
    assert row["train loss"] == "1.00, 2 of 3 diverged" and row["accuracy %"] == "30.00 (30.00-30.00)"
    assert any(note.startswith("Diverged: infinite or NaN at the last evaluation") for note in table.notes)
    curve = group.curve("train_loss")["mean"]
    assert curve.iloc[1] == pytest.approx(8 / 3) and not np.isfinite(curve.iloc[2])
    every = build_table([Group({"method": "a"}, group.trials[1:])], Options())
    assert columns(every.text())[0]["train loss"] == "diverged, 2 of 2"


def test_labels_that_a_spreadsheet_would_compute_are_quoted() -> None:
    """In report.csv; numbers, also as text, stay."""
    labels = ["=cmd|' /c calc'!A0", "@a", "-x", "-0.5", -0.5, "plain"]
    groups = [Group({"method": label, "+a": 1}, THREE[:1]) for label in labels]
    rows = pd.read_csv(StringIO(format_csv(summary(groups, Options()))), dtype=str)
    assert rows.method.tolist() == ["'=cmd|' /c calc'!A0", "'@a", "'-x", "-0.5", "-0.5", "plain"]
    assert rows["'+a"].tolist() == ["1"] * 6


def test_curves_against_other_columns() -> None:
    group = GROUPS[0]
    for x, step in (("updates", 10), ("rounds", 2), ("bytes", 1_500_000), ("local-steps", 5)):
        curve = group.curve("test_accuracy", x, "sd")
        assert curve.index.tolist() == [k * step for k in range(4)]
        assert curve["mean"].tolist() == pytest.approx([0.1, 0.3, 0.5, 0.74])
        assert (curve.high - curve["mean"]).tolist() == pytest.approx([0, 0.03**0.5, 0.12**0.5, 0.0868**0.5])


def test_the_best_are_marked() -> None:
    table = build_table(GROUPS, Options(), marked=[1])
    first, second = table.text().splitlines()[2:4]
    assert second.endswith("*") and not first.rstrip().endswith("*")
    row = next(line for line in table.markdown().splitlines() if "100 %" in line)
    assert all(re.fullmatch(r"\*\*.*\*\*", cell.strip()) for cell in row.strip("|").split(" | "))
    assert r"\textbf{100 \% {[}b{]}}" in table.latex() and r"\textbf{AREA" not in table.latex()
    assert pd.read_csv(StringIO(format_csv(summary(GROUPS, Options(), [1])))).marked.tolist() == [False, True]


def test_notes_say_what_the_numbers_are() -> None:
    texts = {spread: " ".join(build_table(GROUPS, Options(spread=spread)).notes) for spread in ("range", "sd", "ci95")}
    assert "mean (min-max)" in texts["range"]
    assert "standard deviation" in texts["sd"] and "95 % interval" in texts["ci95"]
    assert "rho" in texts["sd"] and "rho" not in " ".join(build_table(GROUPS, Options(columns=("train_loss",))).notes)


# -- LaTeX -------------------------------------------------------------------------------------------------------------
HOSTILE = r"""\input{/etc/passwd} $x_1^2$ {a} & #1 100 % ~ "b" `c` 'd' <e> | [f] *g \\ --- ?` λ±é 中 Đ"""
UNESCAPED = re.compile(r"(?<!\\)[&#%_~^]|\\(?!textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar"
                       r"|lambda|pm|[{}$&#%_])")  # fmt: skip


def test_every_letter_of_a_text_is_escaped() -> None:
    text = latex.escape(HOSTILE)
    assert not UNESCAPED.search(text), text
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0 and len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    assert text.isascii() or set(re.sub("[\x20-\x7e]", "", text)) == {"é"}, "what pdfLaTeX cannot set"
    assert "{[}U+4E2D{]}" in text and "-{}-{}-" in text and "{[}f{]} {*}g" in text
    assert latex.number("1.5e-05 ± 2.00") == r"$1.5 \times 10^{-5}$ $\pm$ 2.00"
    assert latex.number("-1.00 (-2.00–3.00), 8 of 10") == "$-$1.00 ($-$2.00--3.00), 8 of 10"
    assert latex.prose("-1.5 to -0.2, a-1 (5 %)") == r"$-$1.5 to $-$0.2, a-1 (5 \%)"
    assert latex.number("-") == "-" and latex.number(">1") == "$>$1" and latex.number("inf") == r"$\infty$"
    assert latex.number("<0.0001") == "$<$0.0001"


def latex_table() -> str:
    last = trial([0.5, 0.9], train_loss=[-2e-7, 3e9])
    groups = [
        Group({HOSTILE: HOSTILE, "n": 1}, GROUPS[0].trials),
        Group({HOSTILE: "[2, 3]", "n": -1}, GROUPS[1].trials),
        Group({HOSTILE: "*", "n": None}, [last]),
    ]
    return build_table(groups, Options(reach=(0.9,), spread="ci95"), [0], [f"Selected: {HOSTILE}."]).latex()


def test_a_latex_table_is_whole() -> None:
    """Every row has one cell a column, and every environment and group ends."""
    text = latex_table()
    (layout,) = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", text)
    rows = [line for line in text.partition(r"\toprule")[2].splitlines() if line.endswith(r" \\")]
    assert len(rows) == 4 and {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(layout)}
    assert re.findall(r"\\begin\{(\w+)\}", text) == re.findall(r"\\end\{(\w+)\}", text)[::-1] == ["table", "tabular"]
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert layout.startswith("lll") and set(layout[3:]) == {"r"}


needs_pdflatex = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")


def pdflatex(folder: Path, name: str) -> str:
    """What pdfLaTeX says when it sets NAME.tex in its folder for the second time."""
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"]
    for _ in range(2):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout
    return done.stdout


def typeset(folder: Path, body: str, packages: str = "booktabs") -> str:
    """What it says of a two-column article with this text."""
    (folder / "paper.tex").write_text(
        r"\documentclass[twocolumn,letterpaper,10pt]{article}\usepackage[margin=0.75in]{geometry}"
        rf"\usepackage{{{packages}}}\begin{{document}}{body}\end{{document}}"
    )
    return pdflatex(folder, "paper")


@needs_pdflatex
def test_a_latex_table_compiles(tmp_path: Path) -> None:
    (tmp_path / "report.tex").write_text(latex_table(), encoding="utf-8")
    assert "Output written on paper.pdf" in typeset(tmp_path, r"\input{report}")


# -- options -----------------------------------------------------------------------------------------------------------
WRONG = {
    "spread=std": "one of range, sd, ci95",
    "reach=90": "a number above 0 and at most 1, such as 0.9",
    "reach=nan": "a number above 0 and at most 1, such as 0.9",
    "reach=0.8,x": "numbers, separated by commas",
    "reach_in=hours": "one of time, updates, rounds, bytes, local-steps",
    "formats=jpg": "one of md, csv, tex, png, pdf, svg",
    "formats=,": "names, separated by commas",
    "x=epochs": "one of time, updates",
    "figures=acuracy": "one of accuracy, loss, gradient, gradient-mapping, staleness, client-updates, step-size-",
    "columns=acc": "one of train_loss",
    "width=33": "inches, from 2 to 12",
    "width=wide": "a number",
}
ALONE = {
    "--width 3.3": "width=3.3: without --out DIR no files are written; give it as well",
    "--figures loss": "figures=loss: without --out DIR no files are written; give it as well",
    "--reach-in time": "reach-in=time: --reach, whose columns have this unit, is not given; give it as well",
    "--all": "all=true: only a STUDY.yaml has a selection, so every run is shown anyway; leave out --all",
    "--panels lambda": "panels=lambda: the runs do not differ in it; expected one of the axes, of which there are none",
    "--label tab": "label=tab: without --pivot AXIS there is no pivot",
    "--pivot x --label $": "label=$: LaTeX may not take it",
    "--spred sd": "option=--spred: mpifl report has none",
}


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_value_of_an_option_is_refused(option: str) -> None:
    key, _, value = option.partition("=")
    with pytest.raises(ConfigError) as error:
        parse_options({key: value}).check_names(())
    assert error.value.key == key.replace("_", "-") and error.value.expected.startswith(WRONG[option])


def test_options_that_do_not_fit(tmp_path: Path, refused: Callable[..., str]) -> None:
    path = run_file(tmp_path / "a.h5", [0.5])
    for arguments, line in ALONE.items():
        assert refused("report", path, *arguments.split()).startswith(f"mpifl: {line}")


def test_options_of_a_command_line() -> None:
    given: dict[str, Any] = {"reach": "0.8,0.9", "reach_in": "time, bytes", "width": "3.3", "x": None, "all": False}
    options = parse_options(given)
    assert options.reach == (0.8, 0.9) and options.reach_in == ("time", "bytes") and options.width == 3.3
    assert options.sums == {"bytes"} and options.x == ("time",)


# -- mpifl report --pivot ----------------------------------------------------------------------------------------------
def group(method: str, spread: int, accuracies: Sequence[float], **labels: float) -> Group:
    trials = [replace(trial([a]), seed=k) for k, a in enumerate(accuracies)]
    return Group({"method": method, "spread": spread, **labels}, trials)


def pivot(*groups: Group, spread: str = "sd", **options: object) -> list[list[str]]:
    """The rows of the pivot by `spread`, best cells with an asterisk."""
    table = build_pivot(groups, Options(pivot="spread", spread=spread, **options), ["step"])  # type: ignore[arg-type]
    return [[f"{cell}{' *' * ((k, j) in table.best)}" for j, cell in enumerate(row)]
            for k, row in enumerate(table.rows)]  # fmt: skip


def test_cells_marks_and_ranks() -> None:
    """Two trials 0.70 and 0.80: 75 +- 7.07 %. A missing combination is a dash, and has no rank."""
    rows = pivot(
        group("A", 0, [0.7, 0.8], step=1), group("A", 5, [0.5, 0.5], step=10),
        group("B", 0, [0.9, 0.9], step=1), group("C", 5, [0.6, 0.6], step=1),
    )  # fmt: skip
    assert rows == [
        ["A", "75.0 ± 7.1", "50.00 ± 0.00", "2.0"],
        ["B", "90.00 ± 0.00 *", "-", "1.0"],
        ["C", "-", "60.00 ± 0.00 *", "1.0"],
    ]


def test_the_csv_has_all_digits_and_the_notes_say_what_a_rank_is() -> None:
    groups = [group("A", 0, [0.7, 0.8]), group("A", 5, [1 / 3]), group("B", 0, [0.9, 0.9])]
    data = build_pivot(groups, Options(pivot="spread")).data
    assert data is not None and data.method.tolist() == ["A", "B"] and data["rank"].tolist() == [1.5, 1.0]
    assert data["spread 0_trials"].tolist() == [2, 2] and data["spread 0_mean"].tolist() == [0.75, 0.9]
    assert data["spread 5_mean"][0] == 1 / 3 and np.isnan(data["spread 5_mean"][1])
    table = build_pivot(groups, Options(pivot="method"))
    assert "Rank: mean over the columns in which a row has trials." in table.notes[0]
    assert table.titles == ["spread", "method A", "method B", "rank"] and ", 1 to 2 trials." in table.notes[0]


def losses(method: str, spread: int, *values: float) -> Group:
    trials = [replace(trial([0.1], train_loss=[v]), seed=k) for k, v in enumerate(values)]
    return Group({"method": method, "spread": spread}, trials)


def test_small_huge_and_negative_values() -> None:
    """Means 2e-9 and 2e30 of two values each, sd half of that times root 2: three digits; 3 beside 2e30 keeps its
    digits. Siunitx has room for a minus."""
    rows = [losses(m, s, a, 3 * a) for m, s, a in (("A", 0, 1e-9), ("A", 5, 1e30), ("B", 5, 1.5))]
    a, b = pivot(*rows, columns=("train_loss",))
    assert a[1:3] == ["2e-09 ± 1.41e-09 *", "2e+30 ± 1.41e+30"] and b[2].startswith("3 ± 2")
    groups = [losses("A", 0, -1.5), losses("A", 5, 20.0), losses("B", 0, 2.0)]
    text = build_pivot(groups, Options(pivot="spread", columns=("train_loss",), siunitx=True)).latex()
    assert "S[table-format=-1.2," in text and "S[table-format=2.2," in text


def test_equal_means_share_a_rank() -> None:
    ranks = [row[-1] for row in pivot(*(group(m, 0, [a]) for m, a in zip("ABC", [0.5, 0.7, 0.7], strict=True)))]
    assert ranks == ["3.0", "1.5", "1.5"]


def test_small_losses_are_best_and_a_diverged_trial_is_never() -> None:
    groups = [losses("A", 0, 0.5, 0.6), losses("B", 0, 0.1, float("nan")), losses("C", 0, 0.7, 0.7)]
    rows = pivot(*groups, columns=("train_loss",))
    assert [row[1].endswith("*") for row in rows] == [True, False, False]
    assert [row[2] for row in rows] == ["1.0", "3.0", "2.0"] and "1 of 2" in rows[1][1]


def test_what_is_not_told_apart_from_the_best_is_marked_too() -> None:
    """Eight pairs: p = 2 / 2^8 where all are worse, times two comparisons 0.016; about 1 where half are better.

    Where the test could mark is said."""
    best = [0.80, 0.81, 0.82, 0.83, 0.84, 0.85, 0.86, 0.87]
    like = [a + 0.01 * (-1) ** k - 0.001 * k for k, a in enumerate(best)]
    worse = [a - 0.05 - 0.001 * k for k, a in enumerate(best)]
    eight = [group("A", 0, best), group("B", 0, like), group("C", 0, worse)]
    assert [row[1].endswith("*") for row in pivot(*eight)] == [True, True, False]
    few = [group("A", 0, best[:4]), group("B", 0, like[:4]), group("C", 0, worse[:4])]
    assert [row[1].endswith("*") for row in pivot(*few)] == [True, False, False]  # four pairs tell nothing apart
    also = [group("A", 5, [0.8] * 3), group("B", 5, [0.7] * 3)]
    for groups, says in (
        (eight, "distinguish from it (5 %, Holm). Rank"),
        ([*eight, *also], "distinguish from it (5 %, Holm), in columns with enough trials for it. Rank"),
        (few, "Marked: the best of its column. Rank"),
    ):
        assert says in build_pivot(groups, Options(pivot="spread")).notes[0]


@pytest.mark.parametrize(
    ("options", "groups", "says"),
    [
        ({"pivot": "delay"}, [("A", 0), ("B", 0)], "pivot=delay: the runs do not differ in it"),
        ({"pivot": "spread", "columns": ("rho", "staleness")}, [("A", 0)], "columns=rho,staleness: a pivot has one"),
        ({"pivot": "spread", "columns": ("rho",)}, [("A", 0), ("B", 0)], "columns=rho: no run has a value of it"),
        ({"pivot": "spread"}, [("A", 0), ("A", 0)], "pivot=spread: A, spread 0 is in the same cell as A, spread 0"),
    ],
)
def test_wrong_pivots_are_refused(options: dict, groups: list, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_pivot([group(method, spread, [0.5]) for method, spread in groups], Options(**options))


@needs_pdflatex
@pytest.mark.parametrize("siunitx", [False, True])
def test_it_fits_a_column_and_a_page(tmp_path: Path, siunitx: bool) -> None:
    """In a two-column article no box is overfull, and the labels can be referred to."""
    if siunitx and not subprocess.run(["kpsewhich", "siunitx.sty"], capture_output=True, check=False).stdout:
        pytest.skip("needs siunitx")
    for width, count in ((3.3, 3), (7.0, 8)):
        groups = [group(m, s, [0.5 + s / 100, 0.7]) for m in ("AREA", "FedBuff_2 & 100 %") for s in range(count)]
        options = Options(pivot="spread", spread="sd", width=width, siunitx=siunitx, label=f"tab:{count}")
        table = build_pivot(groups, options)
        assert not [note for note in table.notes if "inches wide" in note]
        (tmp_path / f"{count}.tex").write_text(table.latex(), encoding="utf-8")
    body = r"\input{3.tex}\input{8.tex}Tables \ref{tab:3} and \ref{tab:8}."
    printed = typeset(tmp_path, body, "booktabs,siunitx" if siunitx else "booktabs")
    assert "Overfull" not in printed and "undefined" not in printed, printed
    wide = [group("A", s, [0.5, 0.7]) for s in range(9)]
    notes = build_pivot(wide, Options(pivot="spread", spread="sd", width=3.3)).notes
    assert any("inches wide, more than the 3.3 of --width" in note for note in notes)
