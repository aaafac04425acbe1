"""The pages of the papers: the counts of the overview are those of the pages, which end with what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpifl.tools.reproduce.items import JOBS, load_items

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAPERS = ("AREA", "FedDANE", "FedDR", "AsyPFL", "FedPD")
CLAIMS = re.compile(r"^Claims that hold: (\d+); that do not: (\d+); not decided: (\d+)\.", re.MULTILINE)
CELLS = re.compile(r"^(\d+) of (\d+) published cells are met\.", re.MULTILINE)


def sums(pattern: re.Pattern[str], text: str) -> list[int]:
    return [sum(map(int, column)) for column in zip(*pattern.findall(text), strict=True)]


def test_the_overview_has_the_counts_of_the_pages() -> None:
    overview = (RESULTS / "index.md").read_text(encoding="utf-8")
    for paper in PAPERS:
        page = f"{paper.lower()}.md"
        text = (RESULTS / page).read_text(encoding="utf-8")
        cells = "{} of {}".format(*met) if (met := sums(CELLS, text)) else "-"
        row = [f"[{paper}]({page})", cells, *map(str, sums(CLAIMS, text))]
        assert f"| {' | '.join(row)} |" in overview, row


@pytest.mark.parametrize("paper", [paper.lower() for paper in PAPERS])
def test_a_page_has_every_item_and_ends_with_what_is_missing(paper: str) -> None:
    """Its first and last sections are those of paper.yaml, and each item's heading and text stand between them."""
    text = (RESULTS / f"{paper}.md").read_text(encoding="utf-8")
    options, items = load_items(paper, ["trials=2"])
    assert "## Missing\n" in options.missing and "## Why not met\n" in options.missing
    assert text.startswith(f"# {options.title}\n\n{options.about.strip()}\n\n")
    assert text.endswith(f"\n\n{options.missing.strip()}\n")
    for item in items:
        assert f"\n\n## {item.page.title}\n\n{item.page.about.strip()}\n\n" in text, item.name
    assert JOBS.joinpath(paper).is_dir()
