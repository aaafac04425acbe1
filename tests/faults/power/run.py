"""`mpifl` whose checkpoints are announced: the number of each is a line of `promises` in the recorded folder once it is
complete, so that the record has the instant from which on a resume must find it.

MPIFL_AWAIT=1: each checkpoint is completed before the run goes on. MPIFL_MISTAKE names a mistake of `MISTAKES` that is
made on purpose.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from mpifl.cli import main
from mpifl.server import checkpointer as checkpointer_module
from mpifl.server.checkpointer import Checkpointer
from mpifl.storage import checkpoint_part, checkpoint_rows, checkpoint_set
from mpifl.storage.checkpoint_set import Manifest


def announce(folder: Path) -> None:
    commit = checkpointer_module.commit

    def announced(place: Path, manifest: Manifest) -> None:
        commit(place, manifest)
        with (folder / "promises").open("ab", buffering=0) as file:
            file.write(b"%d\n" % manifest.number)

    checkpointer_module.commit = announced


def await_each() -> None:
    snapshot = Checkpointer.snapshot

    def awaited(self: Checkpointer, time: float, loop: Any) -> None:
        snapshot(self, time, loop)
        self.finish(time, loop)

    Checkpointer.snapshot = awaited  # type: ignore[method-assign]


# -- mistakes ----------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def _unsynced(path: Path) -> Iterator[BinaryIO]:
    temporary = path.with_name(f".{path.name}.01234567")
    with temporary.open("x+b") as file:
        yield file
    os.replace(temporary, path)


def parts_unsynced() -> None:
    checkpoint_part.os = SimpleNamespace(**{**vars(os), "fsync": lambda descriptor: None})  # type: ignore[assignment]


def rows_unsynced() -> None:
    checkpoint_rows.durable_file = _unsynced


def names_of_rows_unsynced() -> None:
    checkpoint_set.sync_folder = lambda folder: None


def folder_unsynced() -> None:
    sync = checkpoint_set.sync_folder
    checkpoint_set.sync_folder = lambda folder: sync(folder) if folder.name.endswith(".ckpt") else None


def manifest_unsynced() -> None:
    def write(path: Path, data: bytes) -> None:
        with _unsynced(path) as file:
            file.write(data)

    checkpoint_set.write_durably = write


def old_sets_removed_first() -> None:
    write = checkpoint_set.write_durably

    def late(path: Path, data: bytes) -> None:
        for other in path.parent.glob("*.json"):
            other.unlink()
        checkpoint_set.sync_folder(path.parent)
        write(path, data)

    checkpoint_set.write_durably = late


MISTAKES: dict[str, Callable[[], None]] = {
    "parts are not synced": parts_unsynced,
    "rows are not synced": rows_unsynced,
    "the names of rows are not synced": names_of_rows_unsynced,
    "the folder's own name is not synced": folder_unsynced,
    "the manifest is not synced": manifest_unsynced,
    "older sets are removed before the new one is valid": old_sets_removed_first,
}


if __name__ == "__main__":
    if mistake := os.environ.get("MPIFL_MISTAKE"):
        MISTAKES[mistake]()
    announce(Path(os.environ["MPIFL_RECORD_ROOT"]))
    if os.environ.get("MPIFL_AWAIT"):
        await_each()
    sys.exit(main(sys.argv[1:]))
