"""Finds what a run resumes from: its file and the newest checkpoint that is complete, undamaged and its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mpifl.checkpoint.sets import Checkpoint, Manifest, belongs, newest, undone
from mpifl.checkpoint.snapshot import ServerSnapshot
from mpifl.client.checkpointing import ResumePayload
from mpifl.config.job import Job
from mpifl.config.read import job_from_dict, parse_override, set_key
from mpifl.config.trust import check_sizes, check_trusted, split_overrides
from mpifl.errors import ConfigError
from mpifl.runfile import Run, open_run
from mpifl.runfile.checkpoint_folder import folder_of
from mpifl.runfile.create import damaged_name
from mpifl.runfile.reader import UnreadableRun
from mpifl.runfile.run_lock import check_not_written
from mpifl.safe_input import parse_yaml
from mpifl.server.client_table import LIVE

log = logging.getLogger(__package__)


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint that a run resumes from."""

    job: Job
    checkpoint: Checkpoint
    snapshot: ServerSnapshot
    session: str | None  # attribute of the run file; None: that is missing or cannot be read
    aside: Path | None  # the name that a run file gets which cannot be read
    passed: list[str]  # why the run file or newer checkpoints cannot be used, a clause each

    def payload(self) -> ResumePayload:
        """Where the snapshots of the live clients are, for the ranks that host these."""
        loop, rank = self.snapshot.loop, self.snapshot.client_rank
        live = [(i, rank[i]) for i, state in enumerate(loop.clients.state) if state == LIVE]
        folder = str(folder_of(Path(self.job.output)).absolute())
        return ResumePayload(folder, self.snapshot.number, live, loop.clients.in_flight)


def find_resume_point(
    path: Path, overrides: Sequence[str] = (), trust: bool | Mapping[str, str] = False
) -> ResumePoint:
    """The newest usable checkpoint of a run file. Raises ConfigError where the run cannot be resumed.

    overrides  `key=package.module:Class` for code outside mpifl that the file names and that is trusted; `memory.*=`
    trust      trust all such code, or what has these names, by key
    """
    if path.is_symlink():  # the file itself is replaced, not the link to it
        path = Path(os.path.realpath(path))
    folder, session, aside = folder_of(path), None, None
    try:
        with open_run(path) as run:
            _check_resumable(run)
            session = str(run.attrs.get("session", ""))
            checkpoint, passed = newest(folder, run.id, partial(_is_undone, run))
    except UnreadableRun as error:
        checkpoint, passed = newest(folder, None, partial(undone, folder))
        if checkpoint is None:
            why = "; ".join([error.expected, *passed])
            expected = f"a run file that can be read, or a complete checkpoint in {folder}: {why}"
            raise ConfigError("resume", path, expected) from error
        if path.exists():
            check_not_written(path, "resume")
            aside = damaged_name(path)
            passed.insert(0, f"{path.name} cannot be read and is kept as {aside.name}")
        else:
            passed.insert(0, f"{path.name} is missing")
    if checkpoint is None:
        why = f": {'; '.join(passed)}" if passed else ""
        raise ConfigError("resume", path, f"a run with a complete checkpoint in {folder}{why}")
    snapshot = checkpoint.server()
    config = _config(snapshot, folder)
    named, others = split_overrides(config, path, map(parse_override, overrides))
    for key, value in others:
        if key.partition(".")[0] != "memory":
            expected = "a run is resumed as it was; only memory and the code that it names can be given"
            raise ConfigError(key, value, expected)
        set_key(config, key, value)
    check_trusted(config, path, "resume", named, trust)
    sizes = [array.size for array in snapshot.algorithm.values()]
    check_sizes(config, path, len(snapshot.client_rank), max(sizes, default=0))
    job = replace(job_from_dict(config), output=str(path))
    for clause in passed:
        log.warning("%s: resuming from checkpoint %d", clause, checkpoint.number)
    return ResumePoint(job, checkpoint, snapshot, session, aside, passed)


def _config(snapshot: ServerSnapshot, folder: Path) -> dict[str, Any]:
    """The resolved job of a run, from its checkpoint."""
    import yaml

    try:
        return dict(parse_yaml(snapshot.config, yaml.SafeLoader) or {})
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ConfigError("checkpoint", folder, f"one with a configuration ({error})") from error


def _is_undone(run: Run, manifest: Manifest) -> bool:
    """Whether a checkpoint of this run does not continue the rows of its file."""
    attrs = run.attrs
    return "session" in attrs and not belongs(manifest, run.id, attrs["session"], attrs.get("resumed_from", 0))


def _check_resumable(run: Run) -> None:
    """Raises ConfigError for a run that is completed, a replay, or live."""
    if run.status == "completed" and not run.open_ended:
        raise ConfigError("resume", run.path, "a run that was interrupted; this one is completed")
    if run.attrs.get("clock") == "replay":
        raise ConfigError("resume", run.path, "a run; repeat a replay from the run that it replays")
    if run.open_ended:
        check_not_written(run.path, "resume", run.host)
