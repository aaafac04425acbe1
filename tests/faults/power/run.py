"""`mpifl` whose checkpoints are announced: the number of each is a line of `promises` in the recorded folder once it is
complete, so that the record has the instant from which on a resume must find it.

MPIFL_AWAIT=1: each checkpoint is completed before the run goes on. MPIFL_MISTAKE names one of `MISTAKES`, which is made
on purpose.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mpifl.checkpoint import part, sets
from mpifl.checkpoint.sets import Manifest
from mpifl.cli import main
from mpifl.runfile.durable import sync_folder, write_durably
from mpifl.server import checkpointer as checkpointer_module
from mpifl.server.checkpointer import Checkpointer


def announce(folder: Path) -> None:
    commit = checkpointer_module.commit

    def announced(place: Path, manifest: Manifest) -> None:
        commit(place, manifest)
        with (folder / "promises").open("ab", buffering=0) as file:
            file.write(b"%d\n" % manifest.number)

    checkpointer_module.commit = announced


def await_each() -> None:
    snapshot = Checkpointer.begin

    def awaited(self: Checkpointer, time: float) -> None:
        snapshot(self, time)
        self.finish(time)

    Checkpointer.begin = awaited  # type: ignore[method-assign]


# -- mistakes ----------------------------------------------------------------------------------------------------------
def _older_sets_removed_first(path: Path, data: bytes) -> None:
    for other in path.parent.glob("*.json"):
        other.unlink()
    sync_folder(path.parent)
    write_durably(path, data)


def _parent_not_synced(folder: Path) -> None:
    if folder.name.endswith(".ckpt"):
        sync_folder(folder)


MISTAKES: dict[str, tuple[Any, str, Any]] = {  # what takes the place of a module's name
    "parts are not synced": (part, "os", SimpleNamespace(**{**vars(os), "fsync": lambda descriptor: None})),
    "the names of rows are not synced": (sets, "sync_folder", lambda folder: None),
    "the folder's own name is not synced": (sets, "sync_folder", _parent_not_synced),
    "older sets are removed before the new one is valid": (sets, "write_durably", _older_sets_removed_first),
}


if __name__ == "__main__":
    if mistake := os.environ.get("MPIFL_MISTAKE"):
        setattr(*MISTAKES[mistake])
    announce(Path(os.environ["MPIFL_RECORD_ROOT"]))
    if os.environ.get("MPIFL_AWAIT"):
        await_each()
    sys.exit(main(sys.argv[1:]))
