"""The labels that a study gave its runs, from the index file in the folder of the run files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        return {run["file"]: Labels(study, plain_labels(run["labels"])) for run in content["runs"]}
    except FileNotFoundError:
        return {}
    except DAMAGE as error:
        warn_of_damage(folder, error)
        return {}


def plain_labels(labels: dict[str, Any]) -> dict[str, Any]:
    """The labels of a run as the index file has them, with lists and sections as text. Raises one of DAMAGE."""
    return {printable(k): json.dumps(v) if isinstance(v, list | dict) else v for k, v in labels.items()}


def warn_of_damage(folder: Path, error: Exception) -> None:
    """Logs that the index file of a folder cannot be read."""
    text = printable(error, most=200)
    log.warning("%s: left out, with the labels of the runs; it cannot be read: %s", folder / INDEX, text)
