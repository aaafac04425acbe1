"""What a run goes on from: its file and the newest checkpoint that is whole."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mpifl.config.job import Job, job_from_dict
from mpifl.errors import ConfigError
from mpifl.storage import Run, open_run
from mpifl.storage.checkpoint_set import belongs, folder_of, newest

if TYPE_CHECKING:
    from mpifl.storage.checkpoint_set import Checkpoint

log = logging.getLogger("mpifl")
ALIVE = 3.0  # s in which the file of a run that goes on is written to, several times
DEAD = 60.0  # s since it was written to, after which nobody asks; hosts may differ by some seconds


def resumed(path: Path) -> tuple[Job, Checkpoint]:
    """The job of a run file, and where it goes on from. Raises ConfigError where it does not."""
    if path.is_symlink():  # the file itself is replaced, not the link to it
        path = Path(os.path.realpath(path))
    with open_run(path) as run:
        if run.status == "completed":
            raise ConfigError("resume", path, "a run that was interrupted; this one is completed")
        if run.attrs.get("clock") == "replay":
            raise ConfigError("resume", path, "a run; a replay is made again from the run that it repeats")
        _not_alive(run)
        job = replace(job_from_dict(run.config), output=str(path))
        session = run.attrs.get("session")
        saved, passed = newest(folder_of(path), run.id, partial(_unfit, run))
    if saved is None:
        why = f": {'; '.join(passed)}" if passed else ""
        raise ConfigError("resume", path, f"a run with a complete checkpoint in {folder_of(path)}{why}")
    for clause in passed:
        log.warning("%s: going on from checkpoint %d", clause, saved.number)
    saved.facts["passed"], saved.facts["found"] = passed, session
    return job, saved


def _unfit(run: Run, checkpoint: Checkpoint) -> str:
    """Why a checkpoint of this run does not continue the rows of its file; "" where it does."""
    if "session" not in run.attrs or belongs(checkpoint, {**run.attrs, "run": run.id}):
        return ""
    return "is of a part of the run that was undone"


def _not_alive(run: Run) -> None:
    """Raises ConfigError for a run that is still going on, which writes to its file all the time."""
    if run.status != "running" or run.age > DEAD:
        return
    before, patience = _written(run.path), time.monotonic() + ALIVE
    while time.monotonic() < patience:
        time.sleep(0.1)
        if _written(run.path) != before:
            raise ConfigError("resume", run.path, "a run that has ended; this one is still being written")


def _written(path: Path) -> int:
    """When a file was last written to (ns); opened for it, since network file systems then ask their server."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime_ns
