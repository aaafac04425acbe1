"""What a run goes on from: its file and the newest checkpoint that is whole."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpifl.config import Job, job_from_dict
from mpifl.errors import ConfigError
from mpifl.records import Run, open_run
from mpifl.records.checkpoint import folder_of, newest

if TYPE_CHECKING:
    from mpifl.records.checkpoint import Checkpoint

ALIVE = 2.0  # s in which the file of a run that goes on is written to, several times


def resumed(path: Path) -> tuple[Job, Checkpoint]:
    """The job of a run file, and where it goes on from. Raises ConfigError where it does not."""
    with open_run(path) as run:
        if run.status == "completed":
            raise ConfigError("resume", path, "a run that was interrupted; this one is completed")
        if run.attrs.get("clock") == "replay":
            raise ConfigError("resume", path, "a run; a replay is made again from the run that it repeats")
        _not_alive(run)
        job = replace(job_from_dict(run.config), output=str(path))
        saved, passed = newest(folder_of(path), run.id)
    if saved is None:
        why = f": {'; '.join(passed)}" if passed else ""
        raise ConfigError("resume", path, f"a run with a complete checkpoint in {folder_of(path)}{why}")
    for clause in passed:
        print(f"mpifl: {clause}: going on from checkpoint {saved.number}", file=sys.stderr, flush=True)
    saved.facts["passed"] = passed
    return job, saved


def _not_alive(run: Run) -> None:
    """Raises ConfigError for a run that is still going on, which writes to its file all the time."""
    if run.status != "running" or run.age > ALIVE:
        return
    before, patience = run.path.stat().st_mtime_ns, time.monotonic() + ALIVE
    while time.monotonic() < patience:
        time.sleep(0.1)
        if run.path.stat().st_mtime_ns != before:
            raise ConfigError("resume", run.path, "a run that has ended; this one is still being written")
