"""Prints the time of the tests by folder, and the slowest hundred, from pytest's JUnit XML files: `make timings`."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

SLOWEST = 100


def read(path: Path) -> Counter[str]:
    """Seconds (set-up and tear-down included) by test, as FOLDER/FILE.py::NAME; of skipped tests too."""
    seconds: Counter[str] = Counter()
    for case in ET.parse(path).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        at = next(k for k, part in enumerate(parts) if part.startswith("test_"))
        test = "::".join([f"{'/'.join(parts[: at + 1])}.py", *parts[at + 1 :], case.attrib["name"]])
        seconds[test.removesuffix("@mpi")] += float(case.attrib["time"])
    return seconds


def page(seconds: Counter[str]) -> str:
    """Two Markdown tables."""
    folders: dict[str, list[float]] = {}
    for test, taken in seconds.items():
        folders.setdefault("/".join(test.split("::")[0].split("/")[:2]), []).append(taken)
    lines = ["| folder | tests | s |", "|---|---:|---:|"]
    for folder, times in sorted(folders.items(), key=lambda row: -sum(row[1])):
        lines.append(f"| {folder} | {len(times)} | {sum(times):.1f} |")
    lines += [f"| all | {len(seconds)} | {seconds.total():.1f} |", "", "| s | test |", "|---:|---|"]
    lines += [f"| {taken:.1f} | `{test.replace('|', ';')}` |" for test, taken in seconds.most_common(SLOWEST)]
    return "\n".join(lines)


if __name__ == "__main__":
    total: Counter[str] = Counter()
    for argument in sys.argv[1:]:
        total.update(read(Path(argument)))
    print(page(total))
