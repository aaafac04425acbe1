"""Finds what a run resumes from: its file and the newest checkpoint that is complete, undamaged and its own."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mpifl.client.checkpoint import ResumePayload
from mpifl.config.job import Job
from mpifl.config.read import job_from_dict, parse_override
from mpifl.config.trust import check_trusted, split_overrides
from mpifl.errors import ConfigError
from mpifl.server.clients import LIVE
from mpifl.storage import Run, open_run
from mpifl.storage.checkpoint import ServerSnapshot
from mpifl.storage.checkpoint_set import Manifest, belongs, folder_of, newest

log = logging.getLogger("mpifl")
WATCH_TIME = 3.0  # s in which a live run modifies its file several times
STALE_AGE = 60.0  # s after the last modification from which a run is not live; clocks of hosts may differ


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint that a run resumes from."""

    job: Job
    snapshot: ServerSnapshot
    session: str | None  # attribute of the run file when it was read
    passed: list[str]  # why newer checkpoints were passed over, a clause each

    def payload(self) -> ResumePayload:
        """Where the snapshots of the live clients are, for the ranks that host these."""
        loop, rank = self.snapshot.loop, self.snapshot.client_rank
        live = [(i, rank[i]) for i, state in enumerate(loop.clients.state) if state == LIVE]
        folder = str(folder_of(Path(self.job.output)).absolute())
        return ResumePayload(folder, self.snapshot.number, live, loop.clients.in_flight)


def find_resume_point(path: Path, overrides: Sequence[str] = (), trust: bool = False) -> ResumePoint:
    """The newest usable checkpoint of a run file. Raises ConfigError where the run cannot be resumed.

    overrides  `key=package.module:Class` for code outside mpifl that the file names and that is trusted
    trust      trust all such code
    """
    if path.is_symlink():  # the file itself is replaced, not the link to it
        path = Path(os.path.realpath(path))
    with open_run(path) as run:
        if run.status == "completed":
            raise ConfigError("resume", path, "a run that was interrupted; this one is completed")
        if run.attrs.get("clock") == "replay":
            raise ConfigError("resume", path, "a run; repeat a replay from the run that it replays")
        _check_not_live(run)
        named, others = split_overrides(run.config, path, map(parse_override, overrides))
        for key, value in others:
            raise ConfigError(key, value, "a run is resumed as it was; only the code that it names can be given")
        check_trusted(run.config, path, "resume", named, trust)
        job = replace(job_from_dict(run.config), output=str(path))
        session = run.attrs.get("session")
        checkpoint, passed = newest(folder_of(path), run.id, partial(_mismatch, run))
    if checkpoint is None:
        why = f": {'; '.join(passed)}" if passed else ""
        raise ConfigError("resume", path, f"a run with a complete checkpoint in {folder_of(path)}{why}")
    for clause in passed:
        log.warning("%s: resuming from checkpoint %d", clause, checkpoint.number)
    return ResumePoint(job, checkpoint.server(), session, passed)


def _mismatch(run: Run, manifest: Manifest) -> str:
    """Why a checkpoint of this run does not continue the rows of its file; "" where it does."""
    attrs = run.attrs
    if "session" not in attrs or belongs(manifest, run.id, attrs["session"], attrs.get("resumed_from", 0)):
        return ""
    return "is of a part of the run that was undone"


def _check_not_live(run: Run) -> None:
    """Raises ConfigError for a live run, which modifies its file all the time."""
    if run.status != "running" or run.age > STALE_AGE:
        return
    before, patience = _modified(run.path), time.monotonic() + WATCH_TIME
    while time.monotonic() < patience:
        time.sleep(0.1)
        if _modified(run.path) != before:
            raise ConfigError("resume", run.path, "a run that has ended; this one is still being written")


def _modified(path: Path) -> int:
    """When a file was last written to (ns). It is opened: network file systems then ask their server."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime_ns
