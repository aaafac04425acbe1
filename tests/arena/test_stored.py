"""The stored results of the suite and their page."""

from __future__ import annotations

import gzip
import re
import runpy
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from mpifl.cli import main
from mpifl.runfile.reader import open_run
from mpifl.tools.arena.statistics import mean_ranks, scores
from mpifl.tools.arena.submission import verify_table
from mpifl.tools.arena.suite import load_suite, run_command, stored_table
from mpifl.tools.arena.table import Row, hashes, read_table, stored_rows, write_table
from tests.analysis.test_page import browse, in_a_browser
from tests.analysis.test_tables import needs_pdflatex, pdflatex

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "results"


@pytest.mark.long
@pytest.mark.parametrize("tier", ["quick", "standard"])
def test_the_stored_results_follow_the_rules_of_the_suite(monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    """Each method has, in all stored scenarios, its tuning runs, and what these select at all reporting seeds."""
    monkeypatch.setattr("mpifl.tools.arena.submission.recompute", lambda *_: 0)
    assert f"18 methods in arena-1, {tier} tier: all rules hold, " in verify_table(
        stored_table(tier), tier, sorted({row.scenario for row in read_table(stored_table(tier))})
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_pages_and_the_paper_are_those_of_the_stored_results(tmp_path: Path) -> None:
    for folder in ("results", "paper"):
        (tmp_path / folder).mkdir()
    runpy.run_path(str(DOCS / "generator" / "arena.py"))["main"](tmp_path)
    pages = ("arena.md", "arena-1-quick.html", "arena-standard.md", "arena-1-standard.html")
    for name in (*(f"results/{page}" for page in pages), "paper/numbers.tex"):
        assert (tmp_path / name).read_text() == (DOCS / name).read_text(), name


@pytest.mark.long
def test_the_page_of_another_processor_counts_the_runs_that_differ(tmp_path: Path) -> None:
    """In quadratic-slow one run is within the tolerance, and a tuning and a reporting run differ by a fifth."""
    rows = stored_rows("quick", load_suite().scenarios)
    completed = [k for k, row in enumerate(rows) if row.scenario == "quadratic-slow" and row.status == "completed"]
    tuning, reporting = ([k for k in completed if rows[k].role == role] for role in ("tuning", "reporting"))
    for k, factor in ((tuning[0], 1 + 1e-6), (tuning[1], 0.8), (reporting[0], 0.8)):
        rows[k] = rows[k]._replace(loss=factor * rows[k].loss, model="other")
    (tmp_path / "other.csv").write_text(write_table(rows))
    (tmp_path / "results").mkdir()
    runpy.run_path(str(DOCS / "generator" / "arena_processors.py"))["main"](
        str(tmp_path / "other.csv"), "Haswell", "Zen", docs=tmp_path
    )
    text = " ".join((tmp_path / "results" / "arena-processors.md").read_text().split())
    assert "Of 2,808 runs 29 fail with both kernels, 2,776 have the same bits, and 1 agree within" in text
    assert "The other 2 are listed" in text
    assert "| quadratic-slow | 468 | 448 | 1 | 1 | 0.2 |" in text and "| digits-iid | 468 | 468 | 0 | 0 | 0 |" in text
    row = rows[reporting[0]]
    assert re.search(rf"\| quadratic-slow \| {row.method} \| [^|]* \| \| {row.seed} \| 0\.2 \|", text)


def test_every_number_of_the_paper_is_generated() -> None:
    """But for labels and references, and the words one and first."""
    body = (DOCS / "paper" / "arena.tex").read_text().partition("\\maketitle")[2].partition("\\begin{thebib")[0]
    text = re.sub(r"\\includegraphics.*|95\\,|[\d.]+pt", "", body)  # 95 % is the level of all intervals
    words = "two|three|four|five|six|seven|eight|nine|ten|twenty|tenth|third|quarter|hundred|thousand"
    assert not re.findall(rf"\d|\b(?:{words})\b", text)
    commands = set(re.findall(r"newcommand{\\(Arena\w+)}", (DOCS / "paper" / "numbers.tex").read_text()))
    assert set(re.findall(r"\\(Arena\w+)", body)) <= commands


@pytest.mark.long
@needs_pdflatex
def test_the_paper_compiles(tmp_path: Path) -> None:
    """Three or four pages; no box is overfull, and no reference is undefined."""
    shutil.copytree(DOCS / "paper", tmp_path / "paper")
    (tmp_path / "results").mkdir()
    for figure in RESULTS.glob("arena-1-quick-*.png"):
        shutil.copy(figure, tmp_path / "results")
    printed = pdflatex(tmp_path / "paper", "arena")
    assert "Overfull" not in printed and "undefined" not in printed, printed
    assert re.search(r"Output written on arena.pdf \([34] pages", printed)


@pytest.mark.long
@pytest.mark.parametrize("method", ["AREA", "Ringmaster"])
def test_the_command_of_a_cell_computes_its_run(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the model and the rows of the stored results; one with local steps that take time, and one without."""
    monkeypatch.chdir(tmp_path)
    cell = ("quadratic-slow", method, 3, "reporting")
    rows = read_table(stored_table("quick"))
    row = next(row for row in rows if (row.scenario, row.method, row.seed, row.role) == cell)
    program, *words = shlex.split(run_command(load_suite().scenarios["quadratic-slow"], row.configuration, 3))
    assert program == "mpifl" and main([*words, "output=run.h5"]) == 0
    with open_run("run.h5") as run:
        assert hashes(run) == (row.model, row.tables)


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.timeout(600)
def test_a_scenario_of_the_stored_results_is_verified_also_on_five_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of each method's 26 runs: 18 times 3. With other kernels than the results have, losses agree to 1e-5;
    the ranks have those of the results."""
    table = stored_table("quick")
    line = verify_table(table, "quick", ["quadratic-slow"])
    assert re.search(r"18 methods in arena-1, quick tier: all rules hold, 54 of 468 runs recomputed", line), line
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    line = verify_table(table, "quick", ["quadratic-slow"], "AREA", ranks=5, processes=1)
    assert line.endswith("AREA in arena-1, quick tier: all rules hold, 3 of 26 runs recomputed to the bit")


DRIVE = """<script>
const rank = () => [...document.querySelectorAll("#ranks tr")].map(row => [...row.cells].map(cell => cell.textContent));
const facts = { all: rank(), wide: document.documentElement.scrollWidth - innerWidth };
const pick = (k, value) => { const box = document.querySelectorAll("select")[k]; box.value = value; box.onchange(); };
pick(3, "worst"); facts.worst = rank(); pick(3, "loss");
pick(0, "quadratic"); facts.quadratic = rank(); pick(3, "time"); facts.time = rank();
document.querySelector("#ranks button").click();
facts.command = document.getElementById("command").textContent;
facts.lines = document.querySelectorAll("#curve path").length;
pick(1, "constant, equal"); facts.none = rank().length;
document.body.dataset.check = JSON.stringify(facts);
</script>"""


@in_a_browser
@pytest.mark.parametrize(("tier", "width"), [("quick", 390), ("quick", 1280), ("standard", 390)])
def test_a_browser_shows_the_interactive_page(tier: str, width: int, tmp_path: Path) -> None:
    """No request, no error, nothing wider than the window; it ranks the stored results as Python does, and filters.

    A scenario whose clients have no test rows is not ranked by the accuracy of the worst of them.
    """
    driven = tmp_path / "driven.html"
    driven.write_text((RESULTS / f"arena-1-{tier}.html").read_text().replace("</body>", f"{DRIVE}</body>"))
    _, facts = browse(driven, tmp_path, width)
    suite, rows = load_suite(), stored_rows(tier, load_suite().scenarios)
    stored = {row.scenario for row in rows}
    everything = [name for name in suite.tier(tier) if name in stored]
    quadratic = [name for name in everything if name.startswith("quadratic")]
    measured = {row.scenario for row in rows if np.isfinite(row.worst)}
    for shown, measure, scenarios in (
        ("all", "loss", everything),
        ("worst", "worst", [name for name in everything if name in measured]),
        ("quadratic", "loss", quadratic),
        ("time", "time", quadratic),
    ):
        ranks = mean_ranks(scores(rows, measure, scenarios, list(suite.methods)))
        order = np.argsort(ranks, kind="stable")
        assert [row[0] for row in facts[shown][1:]] == [list(suite.methods)[k] for k in order], shown
        assert [float(row[1]) for row in facts[shown][1:]] == pytest.approx(ranks[order], abs=0.0501)
    assert len(facts["all"][0]) == 2 + len(everything) and facts["wide"] <= 0 and facts["lines"] == 20
    assert facts["none"] == (0 if tier == "quick" else 19)
    assert facts["command"].startswith("mpifl run jobs/arena/quadratic-slow")


def test_a_table_of_a_whole_tier_is_read(tmp_path: Path) -> None:
    """That of the standard tier has 5 MB."""
    rows = [
        Row("a", "M", "{}", seed, "tuning", "completed", curve=" ".join(["0.12345678"] * 50)) for seed in range(9999)
    ]
    path = tmp_path / "all.csv"
    path.write_text(write_table(rows))
    assert path.stat().st_size > 5e6 and [row.seed for row in read_table(path)] == list(range(9999))


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("no.csv", None, "cannot be read: No such file or directory"),
        ("no.json", None, "cannot be read: No such file or directory"),
        ("a.json", b"{", "not a submission: Expecting property name"),
        ("a.csv.gz", b"text", "cannot be read: Not a gzipped file"),
        ("a.csv.gz", gzip.compress(b"scenario,method\n" * 9, mtime=0)[:30], "cannot be read: Compressed file ended"),
        ("a.csv.gz", gzip.compress(bytes((1 << 26) + 1), mtime=0), "cannot be read: it has more than 67108864 bytes"),
        ("a.csv", b'"' + b"a" * 200_000, "not a results table: field larger than field limit"),
    ],
)
def test_a_file_that_cannot_be_verified(
    name: str, content: bytes | None, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["arena", "verify", str(tmp_path / name)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mpifl: arena={tmp_path / name}: {wrong}") and line.count("expected") == 1
