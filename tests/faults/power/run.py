"""`mpifl` whose checkpoints are announced: the number of each is a line of `promises` in the recorded folder once it is
complete, so that the record has the instant from which on a resume must find it.

MPIFL_AWAIT=1: each checkpoint is completed before the run goes on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mpifl.checkpoint.sets import Manifest
from mpifl.cli import main
from mpifl.server import checkpointer as checkpointer_module
from tests.server.test_resume import finish_at_once


def announce(folder: Path) -> None:
    commit = checkpointer_module.commit

    def announced(place: Path, manifest: Manifest) -> None:
        commit(place, manifest)
        with (folder / "promises").open("ab", buffering=0) as file:
            file.write(b"%d\n" % manifest.number)

    checkpointer_module.commit = announced


if __name__ == "__main__":
    announce(Path(os.environ["MPIFL_RECORD_ROOT"]))
    if os.environ.get("MPIFL_AWAIT"):
        finish_at_once(pytest.MonkeyPatch())
    sys.exit(main(sys.argv[1:]))
