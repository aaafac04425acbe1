"""The folder NAME.ckpt with the checkpoints of the run file NAME.h5, and the names of the files in it.

    000012.rank0, 000012.rank1, ...   the parts of checkpoint 12, each written by its rank
    000003.rows0, 000012.rows0, ...   the rows up to it; later checkpoints need these files too
    000012.json                       its manifest, written last by rank 0: this makes the set valid

Names that begin with a dot are temporary. Nothing here reads a file.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from mpifl.runfile.durable import sync_folder

MANIFEST = re.compile(r"(\d{6,})\.json")
SEGMENT = re.compile(r"\d{6,}\.rows\d+")
FILE = re.compile(r"\.?(\d{6,})\.(?:rank\d+|rows\d+|json)(?:\.[0-9a-f]{8}\d*)?")  # a file of a set, temporary or not


def folder_of(run_file: Path) -> Path:
    """Where the checkpoints of a run file are: NAME.ckpt beside NAME.h5."""
    name = run_file.name.removesuffix(".h5")
    return run_file.with_name(f"{name}.ckpt")


def manifest_name(number: int) -> str:
    return f"{number:06d}.json"


def part_name(number: int, rank: int) -> str:
    return f"{number:06d}.rank{rank}"


def segment_name(number: int, k: int) -> str:
    return f"{number:06d}.rows{k}"


def sets(folder: Path) -> list[int]:
    """The numbers of the sets that have a manifest, of whichever run, in order; none without a folder. OSError."""
    try:
        found = [MANIFEST.fullmatch(path.name) for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in found if match and match[0] == manifest_name(int(match[1])))


def files(folder: Path) -> list[Path]:
    """All that belongs to a set, the manifests first: no set is valid that lacks a part. OSError."""
    found = [path for path in folder.iterdir() if FILE.fullmatch(path.name)]
    return sorted(found, key=lambda path: (not MANIFEST.fullmatch(path.name), path.name))


def undo(folder: Path, number: int) -> None:
    """Removes the manifests of all sets above `number`, of whichever run. OSError."""
    undone = [k for k in sets(folder) if k > number]
    for k in reversed(undone):
        (folder / manifest_name(k)).unlink()
    if undone:
        sync_folder(folder)


def remove(folder: Path) -> None:
    """Removes all sets, of whichever run, and the folder if nothing else is in it. OSError.

    Where the folder is a link to one that holds sets, only the link is removed: its target may belong to somebody else.
    """
    with contextlib.suppress(FileNotFoundError):
        if folder.is_symlink():
            if sets(folder):
                folder.unlink()
            return
        for path in files(folder):
            path.unlink(missing_ok=True)
        sync_folder(folder)
        with contextlib.suppress(OSError):
            folder.rmdir()
