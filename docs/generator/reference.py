"""Writes the generated parts of the reference into its pages: `make reference`.

A part is between `<!-- generate: FUNCTION [NAME] -->`, a function of tables.py or `api` of api.py, and
`<!-- end of the generated part -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGES = Path(__file__).resolve().parents[1] / "reference"
sys.path[:0] = [str(PAGES.parents[1]), str(Path(__file__).parent)]

import tables  # noqa: E402 - of this folder
from api import api  # noqa: E402 - of this folder

PART = re.compile(r"(<!-- generate: (\S+)(?: (\S+))? -->\n)(?:.*?)(<!-- end of the generated part -->)", re.S)


def filled(page: Path) -> str:
    """The text of a page with its generated parts made anew."""

    def made(part: re.Match[str]) -> str:
        function = api if part[2] == "api" else getattr(tables, part[2])
        return f"{part[1]}\n{function(part[3]) if part[3] else function()}\n\n{part[4]}"

    return PART.sub(made, page.read_text(encoding="utf-8"))


def main() -> None:
    for page in sorted(PAGES.glob("*.md")):
        if (text := filled(page)) != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(f"wrote {page.relative_to(PAGES.parents[1])}")


if __name__ == "__main__":
    main()
