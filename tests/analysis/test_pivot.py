"""`mpifl report --pivot`: cells, marks and ranks worked out by hand; the LaTeX table fits a column and a page."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpifl.errors import ConfigError
from mpifl.tools.analysis.options import Options
from mpifl.tools.analysis.pivot import build_pivot
from mpifl.tools.analysis.trials import Group
from tests.analysis.test_tables import needs_pdflatex, trial, typeset


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
def test_wrong_uses(options: dict, groups: list, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_pivot([group(method, spread, [0.5]) for method, spread in groups], Options(**options))


@needs_pdflatex
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
    body = r"\input{3.tex}\input{8.tex}Tables \ref{tab:3} and \ref{tab:8}."
    printed = typeset(tmp_path, body, "booktabs,siunitx" if siunitx else "booktabs")
    assert "Overfull" not in printed and "undefined" not in printed, printed
    wide = [group("A", s, [0.5, 0.7]) for s in range(9)]
    notes = build_pivot(wide, Options(pivot="spread", spread="sd", width=3.3)).notes
    assert any("inches wide, more than the 3.3 of --width" in note for note in notes)
