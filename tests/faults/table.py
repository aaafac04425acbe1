"""Puts what the full pass has counted into the page docs/results/faults.md, whose prose stays.

python -m tests.faults.table [FOLDER] [PAGE]
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECTIONS = {
    "kills": "Client ranks killed at random instants",
    "resume": "Whole jobs killed at random instants, and resumed",
    "rehost": "AREA with lost clients",
    "inputs": "Malformed inputs",
    "network": "A network that delays, reorders, loses, and is cut",
    "history": "Real time under stress",
    "slurm": "A two-node SLURM",
    "soak": "Soak",
    "cost": "Cost",
}
COUNTS = re.compile(r"^(?=\||[\d,]+ of [\d,]+ runs passed|Not run here)", re.M)  # where the counts of a section begin


def cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {outcome}" for outcome, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def counts(rows: list[dict[str, Any]]) -> str:
    """The sum and the table of one kind of fault."""
    runs = sum(row["runs"] for row in rows if "runs" in row)
    bad = sum(row["outcomes"].get("failed", 0) for row in rows if "outcomes" in row)
    columns = [name for name in rows[0] if name != "item"]
    lines = [columns, ["---"] * len(columns), *([cell(row.get(name, "")) for name in columns] for row in rows)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return (f"{runs - bad:,} of {runs:,} runs passed.\n\n" if runs else "") + table


def page(text: str, folder: Path) -> str:
    """The page with the counts of the JSON files in the folder; a section without one says so."""
    head, *sections = re.split(r"^## ", text, flags=re.M)
    prose = {title: COUNTS.split(body)[0] for title, _, body in (section.partition("\n") for section in sections)}
    for name, title in SECTIONS.items():
        path = folder / f"{name}.json"
        found = counts(json.loads(path.read_text())) if path.exists() else "Not run here.\n"
        head += f"## {title}\n{prose[title]}{found}\n"
    return head.rstrip() + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MPIFL_FAULTS_OUT", ROOT / "results" / "faults"))
    place = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "results" / "faults.md"
    place.write_text(page(place.read_text(), folder))
    print(place)
