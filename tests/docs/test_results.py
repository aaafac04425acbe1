"""The pages of the papers: their counts are those of the overview, and a paper's page ends with what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpifl.tools.reproduce.items import JOBS, load_items, read_paper

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAPERS = ("AREA", "FedDANE", "FedDR", "AsyPFL", "FedPD")
CLAIMS = re.compile(r"^Claims that hold: (\d+); that do not: (\d+); not decided: (\d+)\.", re.MULTILINE)
CELLS = re.compile(r"^(\d+) of (\d+) published cells are met\.", re.MULTILINE)


def sums(pattern: re.Pattern[str], text: str) -> list[int]:
    return [sum(map(int, column)) for column in zip(*pattern.findall(text), strict=True)]


def own_pages() -> list[str]:
    """The names of the papers' items with pages of their own, PAPER-ITEM."""
    return [f"{paper.lower()}-{name}" for paper in PAPERS for name in read_paper(JOBS / paper.lower())[0].own_pages]


@pytest.mark.parametrize("page", [*map(str.lower, PAPERS), "exposure", *own_pages()])
def test_the_overview_has_the_counts_of_the_pages(page: str) -> None:
    """An item whose runs have not been made has no page: its paper's page says so."""
    overview, path = (RESULTS / "index.md").read_text(encoding="utf-8"), RESULTS / f"{page}.md"
    if not path.exists():
        paper, _, name = page.partition("-")
        assert f"`mpifl reproduce {paper}/{name}`" in read_paper(JOBS / paper)[0].missing
        return
    text = path.read_text(encoding="utf-8")
    cells = "{} of {}".format(*met) if (met := sums(CELLS, text)) else "-"
    counts = sums(CLAIMS, text) or ["-"] * 3
    assert f"]({page}.md) | {' | '.join([cells, *map(str, counts)])} |" in overview


@pytest.mark.parametrize("paper", [paper.lower() for paper in PAPERS])
def test_a_page_has_every_item_and_ends_with_what_is_missing(paper: str) -> None:
    """Its first and last sections are those of paper.yaml, and each item's heading and text stand between them."""
    text = (RESULTS / f"{paper}.md").read_text(encoding="utf-8")
    options, items = load_items(paper, ["trials=2"])
    assert "## Missing\n" in options.missing and "## Why not met\n" in options.missing
    assert text.startswith(f"# {options.title}\n\n{options.about.strip()}\n\n")
    assert text.endswith(f"\n\n{options.missing.strip()}\n")
    for item in items:
        if item.path.stem in options.own_pages:
            continue
        assert f"\n\n## {item.page.title}\n\n{item.page.about.strip()}\n\n" in text, item.name
    assert JOBS.joinpath(paper).is_dir()
