"""The labels that a study gave its runs, from the index file in the folder of the run files."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mpifl.safe_input import parse_json, printable, read_file

log = logging.getLogger(__package__)

INDEX = "index.json"  # the module `studies.index` writes it
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # errors of reading a damaged one


@dataclass(frozen=True)
class Labels:
    """The labels of a run on the axes of its study."""

    study: str
    axes: dict[str, Any]
    """value by axis; text, a number, a truth value or None"""
    place: int = 0
    """number of the run in its study"""


def read_labels(paths: Iterable[Path]) -> dict[Path, Labels]:
    """The labels of run files, by path. A file that the index file of its folder does not name is left out."""
    paths = list(paths)
    known: dict[tuple[Path, str], Labels] = {}
    for folder in {path.parent for path in paths}:
        index = read_index(folder)
        known |= {(folder, run["file"]): Labels(index.study, run["labels"], k) for k, run in enumerate(index.runs)}
    return {path: known[path.parent, path.name] for path in paths if (path.parent, path.name) in known}


class IndexFile(NamedTuple):
    """What the index file of a folder holds."""

    study: str = ""
    runs: Sequence[dict[str, Any]] = ()
    """labels that are lists or sections are text"""
    stages: Sequence[tuple[int, float]] = ()
    """what a search is to compute: `studies.search.Stage`"""


def read_index(folder: Path) -> IndexFile:
    """The index file of a folder; no runs where it is missing or damaged."""
    try:
        content = parse_json(read_file(folder / INDEX))
        runs = [{**run, "labels": _plain(run["labels"])} for run in content["runs"] if _is_run(run)]
        stages = [(count, work) for count, work in content.get("stages", []) if _is_stage(count, work)]
        return IndexFile(printable(content["study"]), runs, stages)
    except FileNotFoundError:
        pass
    except DAMAGE as error:
        text = printable(error, most=200)
        log.warning("%s: left out, with the labels of the runs; it cannot be read: %s", folder / INDEX, text)
    return IndexFile()


def _is_run(entry: Any) -> bool:
    """Whether an item of the index file is what `studies.index` writes."""
    types = {"identity": str, "file": str, "labels": dict, "attempts": int, "error": str}
    return isinstance(entry, dict) and all(isinstance(entry.get(key), kind) for key, kind in types.items())


def _is_stage(count: Any, work: Any) -> bool:
    return isinstance(count, int) and isinstance(work, float) and math.isfinite(work)


def _plain(labels: dict[str, Any]) -> dict[str, Any]:
    return {printable(k): json.dumps(v) if isinstance(v, list | dict) else v for k, v in labels.items()}
