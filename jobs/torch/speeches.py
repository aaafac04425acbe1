"""Writes results/torch/speeches/{train,test}/*.json, in the layout of LEAF's Sent140: about 25 words of a speaking role
at a time, labelled 1 where they are verse and 0 where they are prose.

    python jobs/torch/speeches.py

It stands in for Sent140 where its tweets may not be had. A line of verse begins with a capital letter; where one that
goes on a sentence does not, it is prose. The line breaks are then taken out. Of the verse every fourth passage is kept,
which leaves about as much as there is prose. The last fifth of each role's text is for
testing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path("results", "torch", "speeches")
WORDS, FOURTH = 25, 4


def passages(text: str) -> list[tuple[str, int]]:
    """(words, 1 where they are verse) of whole lines, at least WORDS words each, and of the verse every
    fourth."""
    found, lines = [], []
    for line in text.splitlines():
        lines.append(line.strip())
        if sum(len(part.split()) for part in lines) >= WORDS:
            found.append((" ".join(lines), int(not any(part[:1].islower() for part in lines[1:]))))
            lines = []
    verse = [k for k, (_, label) in enumerate(found) if label]
    return [row for k, row in enumerate(found) if not row[1] or k in verse[::FOURTH]]


def main() -> None:
    source = Path(os.environ.get("MPIFL_DATA", "~/.cache/mpifl")).expanduser() / "shakespeare" / "mit_roles.jsonl"
    halves: dict[str, dict[str, Any]] = {"train": {}, "test": {}}
    for line in source.read_text(encoding="utf-8").splitlines():
        role = json.loads(line)
        user, rows = f"{role['play']}: {role['role']}", passages(role["text"])
        cut = len(rows) - len(rows) // 5
        for half, part in (("train", rows[:cut]), ("test", rows[cut:])):
            if part:
                x = [[str(k), "", "", user, text] for k, (text, _) in enumerate(part)]
                halves[half][user] = {"x": x, "y": [verse for _, verse in part]}
    for half, data in halves.items():
        (FOLDER / half).mkdir(parents=True, exist_ok=True)
        samples = [len(held["y"]) for held in data.values()]
        content = {"users": list(data), "num_samples": samples, "user_data": data}
        (FOLDER / half / "all.json").write_text(json.dumps(content))
        verse = sum(sum(held["y"]) for held in data.values())
        print(f"{half}: {len(data)} roles, {sum(samples)} rows, {verse} of them verse")


if __name__ == "__main__":
    main()
