"""`mpifl report --pivot`: cells, marks and ranks worked out by hand; the LaTeX table fits a column and a page."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpifl.errors import ConfigError
from mpifl.tools.analysis.options import Options
from mpifl.tools.analysis.pivot import build_pivot
from mpifl.tools.analysis.trials import Group
from tests.analysis.test_analysis import run_file
from tests.analysis.test_tables import trial


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


def test_the_csv_has_all_digits_of_the_cells() -> None:
    groups = [group("A", 0, [0.7, 0.8]), group("A", 5, [1 / 3]), group("B", 0, [0.9, 0.9])]
    data = build_pivot(groups, Options(pivot="spread")).data
    assert data is not None and data.method.tolist() == ["A", "B"] and data["rank"].tolist() == [1.5, 1.0]
    assert data["spread 0_trials"].tolist() == [2, 2] and data["spread 0_mean"].tolist() == [0.75, 0.9]
    assert data["spread 5_mean"][0] == 1 / 3 and np.isnan(data["spread 5_mean"][1])


def test_siunitx_has_room_for_a_minus() -> None:
    groups = [Group({"method": m, "spread": s}, [trial([0.1], train_loss=[v])])
              for m, s, v in (("A", 0, -1.5), ("A", 5, 20.0), ("B", 0, 2.0))]  # fmt: skip
    text = build_pivot(groups, Options(pivot="spread", columns=("train_loss",), siunitx=True)).latex()
    assert "S[table-format=-1.2," in text and "S[table-format=2.2," in text


def test_small_and_huge_values_have_three_digits() -> None:
    """Means 2e-9 and 2e30 of two values each, sd half of that times root 2; 3 beside 2e30 keeps its digits."""
    rows = [Group({"method": m, "spread": s}, [replace(trial([0.1], train_loss=[v]), seed=k) for k, v in
            enumerate((a, 3 * a))]) for m, s, a in (("A", 0, 1e-9), ("A", 5, 1e30), ("B", 5, 1.5))]  # fmt: skip
    a, b = pivot(*rows, columns=("train_loss",))
    assert a[1:3] == ["2e-09 ± 1.41e-09 *", "2e+30 ± 1.41e+30"] and b[2].startswith("3 ± 2")


def test_a_rank_over_some_columns_is_said() -> None:
    groups = [group("A", 0, [0.5]), group("A", 5, [0.5]), group("B_1", 0, [0.6])]
    table = build_pivot(groups, Options(pivot="method"))
    assert "Rank: mean over the columns in which a row has trials." in table.notes[0]
    assert table.titles == ["spread", "method A", "method B_1", "rank"] and ", 1 trial." in table.notes[0]


def test_equal_means_share_a_rank() -> None:
    ranks = [row[-1] for row in pivot(*(group(m, 0, [a]) for m, a in zip("ABC", [0.5, 0.7, 0.7], strict=True)))]
    assert ranks == ["3.0", "1.5", "1.5"]


def test_small_losses_are_best_and_a_diverged_trial_is_never() -> None:
    rows = [
        Group(
            {"method": name, "spread": 0}, [replace(trial([0.1], train_loss=[v]), seed=k) for k, v in enumerate(losses)]
        )
        for name, losses in {"A": [0.5, 0.6], "B": [0.1, float("nan")], "C": [0.7, 0.7]}.items()
    ]
    assert [row[1].endswith("*") for row in pivot(*rows, columns=("train_loss",))] == [True, False, False]
    assert [row[2] for row in pivot(*rows, columns=("train_loss",))] == ["1.0", "3.0", "2.0"]
    assert "1 of 2" in pivot(*rows, columns=("train_loss",))[1][1]


def test_what_is_not_told_apart_from_the_best_is_marked_too() -> None:
    """Eight pairs: p = 2 / 2^8 where all are worse, times two comparisons 0.016; about 1 where half are better."""
    best = [0.80, 0.81, 0.82, 0.83, 0.84, 0.85, 0.86, 0.87]
    like = [a + 0.01 * (-1) ** k - 0.001 * k for k, a in enumerate(best)]
    worse = [a - 0.05 - 0.001 * k for k, a in enumerate(best)]
    rows = pivot(group("A", 0, best), group("B", 0, like), group("C", 0, worse))
    assert [row[1].endswith("*") for row in rows] == [True, True, False]
    rows = pivot(group("A", 0, best[:4]), group("B", 0, like[:4]), group("C", 0, worse[:4]))
    assert [row[1].endswith("*") for row in rows] == [True, False, False]  # four pairs tell nothing apart


def test_where_the_test_has_marked_is_said() -> None:
    """Eight pairs are enough for two methods (2 / 2^8), and three are not."""
    ends = {"": [], ", in columns with enough trials for it": [group("A", 5, [0.8] * 3), group("B", 5, [0.7] * 3)]}
    for words, more in ends.items():
        accuracies = [0.8 + k / 100 for k in range(8)]
        groups = [
            group("A", 0, accuracies),
            group("B", 0, [a - (-1) ** k / 100 - k / 1000 for k, a in enumerate(accuracies)]),
        ]
        assert (
            f"distinguish from it (5 %, Holm){words}. Rank"
            in build_pivot([*groups, *more], Options(pivot="spread")).notes[0]
        )
    table = build_pivot([group("A", 0, [0.8] * 3), group("B", 0, [0.7] * 3)], Options(pivot="spread"))
    assert "Marked: the best of its column. Rank" in table.notes[0]


@pytest.mark.parametrize(
    ("options", "groups", "says"),
    [
        ({"pivot": "delay"}, [("A", 0), ("B", 0)], "pivot=delay: the runs do not differ in it"),
        ({"pivot": "spread", "columns": ("rho", "staleness")}, [("A", 0)], "columns=rho,staleness: a pivot has one"),
        ({"pivot": "spread", "columns": ("rho",)}, [("A", 0), ("B", 0)], "columns=rho: no run has a value of it"),
        ({"pivot": "spread"}, [("A", 0), ("A", 0)], "pivot=spread: A, spread 0 is in the same cell as A, spread 0"),
    ],
)
def test_wrong_uses(options: dict, groups: list, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_pivot([group(method, spread, [0.5]) for method, spread in groups], Options(**options))


def test_wrong_options_on_the_command_line(tmp_path: Path, refused: Callable[..., str]) -> None:
    path = run_file(tmp_path / "a.h5", [0.1])
    assert "label=tab: without --pivot AXIS there is no pivot" in refused("report", path, "--label", "tab")
    assert "label=a b: LaTeX may not take it" in refused("report", path, "--pivot", "x", "--label", "a b")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize("siunitx", [False, True])
def test_it_fits_a_column_and_a_page(tmp_path: Path, siunitx: bool) -> None:
    """In a two-column article no box is overfull, and the labels can be referred to."""
    if siunitx and not subprocess.run(["kpsewhich", "siunitx.sty"], capture_output=True, check=False).stdout:
        pytest.skip("needs siunitx")
    for width, columns in ((3.3, 3), (7.0, 8)):
        groups = [group(m, s, [0.5 + s / 100, 0.7]) for m in ("AREA", "FedBuff_2 & 100 %") for s in range(columns)]
        options = Options(pivot="spread", spread="sd", width=width, siunitx=siunitx, label=f"tab:{columns}")
        table = build_pivot(groups, options)
        assert not [note for note in table.notes if "inches wide" in note]
        (tmp_path / f"{columns}.tex").write_text(table.latex(), encoding="utf-8")
    packages = "booktabs,siunitx" if siunitx else "booktabs"
    (tmp_path / "paper.tex").write_text(
        rf"\documentclass[twocolumn,letterpaper,10pt]{{article}}\usepackage[margin=0.75in]{{geometry}}\usepackage{{{packages}}}"
        r"\begin{document}\input{3.tex}\input{8.tex}Tables \ref{tab:3} and \ref{tab:8}.\end{document}"
    )
    for _ in range(2):
        done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], cwd=tmp_path,
                              capture_output=True, text=True, check=False, timeout=60)  # fmt: skip
    assert done.returncode == 0 and "Overfull" not in done.stdout and "undefined" not in done.stdout, done.stdout
    wide = [group("A", s, [0.5, 0.7]) for s in range(9)]
    notes = build_pivot(wide, Options(pivot="spread", spread="sd", width=3.3)).notes
    assert any("inches wide, more than the 3.3 of --width" in note for note in notes)
