"""Finds what a run resumes from: its file and the newest checkpoint that is complete, undamaged and its own."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mpifl.checkpoint.sets import Checkpoint, Manifest, belongs, newest, undone
from mpifl.checkpoint.snapshot import ServerSnapshot
from mpifl.client.checkpointing import ResumePayload
from mpifl.config.job import NOT_IDENTITY, Job
from mpifl.config.read import flatten, job_from_dict, job_to_dict, parse_override, set_key
from mpifl.config.trust import check_sizes, check_trusted, split_overrides
from mpifl.errors import ConfigError
from mpifl.runfile.checkpoint_folder import folder_of, sets
from mpifl.runfile.create import spare_name
from mpifl.runfile.reader import Run, UnreadableRun, open_run
from mpifl.runfile.run_lock import check_not_written
from mpifl.safe_input import parse_yaml
from mpifl.server.client_table import LIVE

ANEW = "run the job again, which starts it anew"  # what to do where a run cannot be resumed

log = logging.getLogger(__package__)
# Keys that do not change what a run computes, and that a run which goes on takes from its job.
HOW_IT_RUNS = tuple(key for key in NOT_IDENTITY if key not in ("name", "output", "overwrite"))
# Keys, and beginnings of keys, that a resume can change.
CHANGEABLE = ("stop", "evaluate.every", "evaluate.updates", "algorithm.step_size", *HOW_IT_RUNS)


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint that a run resumes from."""

    job: Job
    checkpoint: Checkpoint
    snapshot: ServerSnapshot
    session: str | None  # attribute of the run file; None: that is missing or cannot be read
    aside: Path | None  # the name that the present run file gets, where it is kept
    passed: list[str]  # why the run file or newer checkpoints cannot be used, a clause each
    changed: Mapping[str, tuple[Any, Any]]  # keys of the job that this resume changes, with old and new values

    def payload(self) -> ResumePayload:
        """Where the snapshots of the live clients are, for the ranks that host these."""
        loop, rank = self.snapshot.loop, self.snapshot.client_rank
        live = [(i, rank[i]) for i, state in enumerate(loop.clients.state) if state == LIVE]
        folder = str(folder_of(Path(self.job.output)).absolute())
        return ResumePayload(folder, self.snapshot.number, live, loop.clients.in_flight)


class Restart(NamedTuple):
    """A run that is computed again from its start."""

    job: Job
    aside: Path  # the name that its present file gets


def find_resume_point(
    path: Path, overrides: Sequence[str] = (), trust: bool | Mapping[str, str] = False,
    keys: Mapping[str, Any] = MappingProxyType({}),
) -> ResumePoint | Restart:  # fmt: skip
    """The newest usable checkpoint of a run file. Raises ConfigError where the run cannot be resumed.

    A completed run without any is to be computed again from its start, if its order of events can be repeated.

    overrides  `key=value` with one of the keys CHANGEABLE, or code outside mpifl that the file names and that is
               trusted; a completed run needs a later end
    trust      trust all such code, or what has these names, by key
    keys       further keys with plain values
    """
    if path.is_symlink():  # the file itself is replaced, not the link to it
        path = Path(os.path.realpath(path))
    folder, session, aside, reached = folder_of(path), None, None, None
    given = [*map(parse_override, overrides), *keys.items()]
    try:
        with open_run(path) as run:
            _check_resumable(run, extend=any(key.partition(".")[0] == "stop" for key, _ in given))
            session = str(run.attrs.get("session", ""))
            checkpoint, passed = newest(folder, run.id, partial(_is_undone, run), run.read)
            if run.completed:
                reached = Reached.of(run)
                if checkpoint is None:
                    return _restart(run, given, trust, passed)
    except UnreadableRun as error:
        checkpoint, passed = newest(folder, None, partial(undone, folder))
        if checkpoint is None:
            wrong = "; ".join([error.wrong, f"there is no complete checkpoint in {folder}", *passed])
            expected = "a run file that can be read, or a complete checkpoint"
            raise ConfigError("resume", path, wrong, expected, ANEW) from error
        if path.exists():
            check_not_written(path, "resume")
            aside = spare_name(path, "damaged")
            passed.insert(0, f"{path.name} cannot be read and is kept as {aside.name}")
        else:
            passed.insert(0, f"{path.name} is missing")
    if checkpoint is None:
        wrong = "; ".join([f"there is no complete checkpoint in {folder}", *passed])
        raise ConfigError("resume", path, wrong, remedy=ANEW)
    snapshot = checkpoint.server()
    parameters = max((array.size for array in snapshot.algorithm.values()), default=0)
    config = _config(snapshot, folder)
    job, changed = _changed_job(config, path, given, trust, len(snapshot.client_rank), parameters)
    if any(key.startswith("stop") for key in changed):
        reached = reached or Reached(snapshot.loop.updates, snapshot.time)
    if reached:
        reached.check(job)
        if undo := reached.updates - snapshot.loop.updates:
            aside = None if job.clock.mode == "virtual" else spare_name(path, "before")  # they come in another order
            kept = f", and the file that has them is kept as {aside.name}" if aside else ""
            passed.append(f"{undo:,} updates after it are computed again{kept}")
    for clause in passed:
        log.warning("%s: resuming from checkpoint %d", clause, checkpoint.number)
    return ResumePoint(job, checkpoint, _adapted(snapshot, job, changed), session, aside, passed, changed)


def _changed_job(
    config: dict[str, Any], path: Path, given: Iterable[tuple[str, Any]], trust: bool | Mapping[str, str],
    clients: int, parameters: int,
) -> tuple[Job, dict[str, tuple[Any, Any]]]:  # fmt: skip
    """The job of a run file as it goes on, and the keys that have changed, with old and new values; changes `config`.

    clients, parameters: of the recorded run. Raises ConfigError.
    """
    named, others = split_overrides(config, path, given)
    changed = _change(config, others)
    check_trusted(config, path, "resume", named, trust)
    check_sizes(config, path, clients, parameters)
    return replace(job_from_dict(config), output=str(path)), changed


def _restart(
    run: Run, given: Iterable[tuple[str, Any]], trust: bool | Mapping[str, str], passed: Sequence[str]
) -> Restart:
    """A completed run from its start to a later end. Raises ConfigError where that is another run."""
    run.check_undamaged()  # the job is that of the file
    path, parameters = run.path, run.rows("model", "x", 0, None).size
    job, changed = _changed_job(copy.deepcopy(dict(run.config)), path, given, trust, len(run.clients), parameters)
    Reached.of(run).check(job)
    if job.clock.mode != "virtual" or any(not key.startswith("stop") for key in changed):
        wrong = "; ".join(["the completed run has no checkpoint at its end", *passed])
        raise ConfigError("resume", path, wrong, "a run with checkpoint.end: true")
    if passed:  # the new run would remove them
        remedy = f"remove {folder_of(path)} to compute the run again from its start"
        raise ConfigError("resume", path, "; ".join(passed), remedy=remedy)
    aside = spare_name(path, "before")
    log.warning("%s has no checkpoint: computing it again from its start; this file is kept as %s", path, aside.name)
    return Restart(job, aside)


class Reached(NamedTuple):
    """The updates, time and test accuracy that a run or a checkpoint has reached."""

    updates: int
    time: float  # s of the run's clock
    accuracy: float = nan  # the largest test accuracy of a completed run; nan: none, or the run is not completed

    @classmethod
    def of(cls, run: Run) -> Reached:
        time, accuracy = (run.rows("evaluations", name, 0, None) for name in ("time", "test_accuracy"))
        return cls(run.count("updates"), float(max(time, default=0.0)), float(np.fmax.reduce(accuracy, initial=-inf)))

    def check(self, job: Job) -> None:
        """Raises ConfigError where the job would end there as well."""
        for key, value in self._asdict().items():
            target = getattr(job.stop, key)
            if target is not None and target <= value:
                wrong = f"the run has reached {value:.6g}"
                raise ConfigError(f"stop.{key}", target, wrong, "more than that, or null")


def _change(config: dict[str, Any], overrides: Iterable[tuple[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """Sets keys of a resumed run's configuration; their old and new values. Raises ConfigError for another key."""
    old = flatten(config)
    for key, value in overrides:
        if not key.startswith(CHANGEABLE):
            raise ConfigError(key, value, "a resume cannot change it", f"one of {', '.join(CHANGEABLE)}")
        set_key(config, key, value)
    new = flatten(config)
    return {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}


def _adapted(snapshot: ServerSnapshot, job: Job, changed: Collection[str]) -> ServerSnapshot:
    """The snapshot, with the counts of due times by the intervals of the job, and its target not yet reached."""
    schedule, evaluator, time = snapshot.schedule, snapshot.evaluator, snapshot.schedule.clock.time
    if "evaluate.every" in changed:
        schedule = replace(schedule, evaluations=int(time / job.evaluate.every) if job.evaluate.every else 0)
    if "checkpoint.every" in changed:
        schedule = replace(schedule, checkpoints=int(time / job.checkpoint.every) if job.checkpoint.every else 0)
    if any(key.startswith(("stop.accuracy", "stop.plateau")) for key in changed):
        evaluator = replace(evaluator, reached=False)
    return replace(snapshot, schedule=schedule, evaluator=evaluator)


def _config(snapshot: ServerSnapshot, folder: Path) -> dict[str, Any]:
    """The resolved job of a run, from its checkpoint."""
    import yaml

    try:
        return dict(parse_yaml(snapshot.config, yaml.SafeLoader) or {})
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ConfigError(
            "checkpoint", folder, f"its configuration cannot be read: {error}", "an undamaged one"
        ) from error


def _is_undone(run: Run, manifest: Manifest) -> bool:
    """Whether a checkpoint of this run does not continue the rows of its file."""
    attrs = run.attrs
    return "session" in attrs and not belongs(manifest, run.id, attrs["session"], attrs.get("resumed_from", 0))


def _check_resumable(run: Run, extend: bool) -> None:
    """Raises ConfigError for a replay, a live run, or one that is completed; extend: a later end is given."""
    if run.completed and not extend:
        remedy = "to go on, give a later end: stop.updates=N or stop.time=S"
        raise ConfigError("resume", run.path, "the run is completed", remedy=remedy)
    if run.attrs.get("clock") == "replay":
        raise ConfigError(
            "resume", run.path, "this is a replay", "a run", "repeat the replay from the run that it replays"
        )
    if run.open_ended:
        check_not_written(run.path, "resume", run.host)


def find_earlier(job: Job) -> ResumePoint | Restart | None:
    """How the earlier run of this job goes on that is in its run file and not completed; None: there is none.

    From its checkpoint, or anew where it has none; its file is then kept under another name. So is that of another job
    whose run failed without a checkpoint: its mistake may have been mended. Raises ConfigError where it is live.
    """
    path = Path(job.output)
    if job.overwrite or not path.is_file():
        return None
    try:
        with open_run(path) as run:
            ours = is_unfinished(run, job)
            if not ours and run.status != "failed":
                return None
            saved, host = bool(sets(folder_of(path))), run.host
            if saved and not ours:
                return None
    except (UnreadableRun, OSError):
        return None
    check_not_written(path, "output", host)
    if saved:
        log.warning("%s: this run was not completed; it goes on (overwrite=true starts it anew)", path)
        values = job_to_dict(job)
        keys = {key: values[key] for key in HOW_IT_RUNS}
        return find_resume_point(path, trust=True, keys=keys)
    aside = spare_name(path, "unfinished")
    log.warning("%s: its run ended without a checkpoint; it starts anew, and the file is kept as %s", path, aside.name)
    return Restart(job, aside)


def is_unfinished(run: Run, job: Job) -> bool:
    """Whether a run file is that of an earlier run of this job that is not completed."""
    earlier, now = ({k: v for k, v in each.items() if k not in NOT_IDENTITY} for each in (run.config, job_to_dict(job)))
    return not run.completed and run.attrs.get("clock") != "replay" and earlier == now
