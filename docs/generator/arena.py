"""Writes the arena's page, figures, interactive page and the numbers of its paper from the stored results."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent))

from mpifl.tools.arena.page import write_page  # noqa: E402 - of this checkout
from mpifl.tools.arena.suite import load_suite, stored_table  # noqa: E402 - of this checkout
from mpifl.tools.arena.table import read_table  # noqa: E402 - of this checkout


def main(results: Path = DOCS / "results") -> None:
    suite = load_suite()
    page = write_page(suite, "quick", suite.methods, read_table(stored_table("quick")), results, "arena-1-quick")
    page.rename(results / "arena.md")


if __name__ == "__main__":
    main()
