"""The labels that a study gave its runs, from the index file in the folder of the run files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifl.safe_input import parse_json, printable, read_file

INDEX = "index.json"  # the module `studies.index` writes it


@dataclass(frozen=True)
class Labels:
    """The labels of a run on the axes of its study."""

    study: str
    axes: dict[str, Any]
    """value by axis; text, a number, a truth value or None"""


def read_labels(paths: Iterable[Path]) -> dict[Path, Labels]:
    """The labels of run files, by path. A file that the index file of its folder does not name is left out."""
    paths = list(paths)
    known = {folder: _index(folder) for folder in {path.parent for path in paths}}
    return {path: known[path.parent][path.name] for path in paths if path.name in known[path.parent]}


def _index(folder: Path) -> dict[str, Labels]:
    """The labels in the index file of a folder, by file name; none where it is missing or damaged."""
    try:
        content = parse_json(read_file(folder / INDEX))
        study = printable(content["study"])
        return {run["file"]: Labels(study, {printable(k): _plain(v) for k, v in run["labels"].items()})
                for run in content["runs"]}  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value
