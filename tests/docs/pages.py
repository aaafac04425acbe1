"""The pages for readers, and the blocks of code in them.

A comment before a block says how it is tested; without one it is run (sh, python) or checked (yaml, json):

    <!-- test: file NAME -->      it is a file of that name, for the blocks after it
    <!-- test: exit N -->         its last command ends with this code
    <!-- test: long -->           it is run in the long tier alone
    <!-- test: skip REASON -->    it is not run; syntax, commands and paths are checked
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"(?:<!-- test: (?P<mark>.*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.S | re.M)


@dataclass(frozen=True)
class Block:
    """A block of code as a page shows it."""

    page: Path
    line: int
    language: str
    text: str
    action: str  # file, exit, long, skip, or empty
    argument: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        action, _, argument = (match["mark"] or "").partition(" ")
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(page, line, match["language"], match["text"], action, argument))
    return found


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))
