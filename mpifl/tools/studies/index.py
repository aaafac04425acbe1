"""The status of each run of a study, from its run file and from one index file beside the run files.

The run files are authoritative. `index.json` adds failed attempts and error messages; it is written again if lost. It
also has the size and the time of change of each completed run file, so that unchanged ones need not be opened again.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mpifl.config import read
from mpifl.config.job import Job
from mpifl.config.trust import outside_code
from mpifl.errors import ConfigError, RunFailed, host_name
from mpifl.runfile.checkpoint_folder import folder_of, sets
from mpifl.runfile.create import spare_name
from mpifl.runfile.reader import open_run
from mpifl.runfile.run_lock import is_locked
from mpifl.text import format_count
from mpifl.tools.analysis.labels import INDEX, read_index
from mpifl.tools.studies.search import end_of, time_left
from mpifl.tools.studies.study import Study, StudyRun, identify, planned_stages
from mpifl.tools.studies.study_slices import Part, index_lock

WRITE_INTERVAL = 1.0  # s between two writes of the index file during a sweep
# Unfinished index files and run files, and jobs for a launcher. The folder may hold hidden files of the user's own.
TEMPORARIES = re.compile(rf"\.{re.escape(INDEX)}\..*|\..*-[0-9a-f]{{12}}\.(h5\..*|yaml)")
STALE_AGE = 60.0  # s; the process that made an older temporary file was killed
STATUSES = ("completed", "stopped", "waiting", "running", "interrupted", "failed", "damaged")


@dataclass(frozen=True)
class Entry:
    """What is known of one run of a study."""

    identity: str
    file: str
    """name of its run file, which may not exist yet"""
    labels: dict[str, Any]
    seed: int
    status: str = "waiting"
    """completed, waiting, failed, interrupted (its file is incomplete), damaged (its file cannot be read, or is of
    another job), running (in another process) or stopped (by a search, before the stop of its job)"""
    seconds: float | None = None
    """wall time of the run, s"""
    attempts: int = 0
    """number of failed attempts"""
    error: str = ""
    """message of the last failed attempt"""
    stamp: list[int] | None = None
    """size (bytes) and time of change (ns) of the completed run file"""
    reached: float | None = None
    """how far a run of a search has been computed: s of its clock, or updates"""


class Index:
    """The entries of a study's runs, by identity, in the order of the study.

    `foreign` are the names of the run files in the folder that belong to no run of the study.
    """

    def __init__(self, study: Study, part: Part | None = None) -> None:
        """Reads the index file, if there is one, and every run file. Raises ConfigError where the folder is a file.

        part: The runs of this process; other processes may be running the others. None: all.
        """
        self.folder, self.name = study.folder, study.options.name
        self.stage = ""  # what a sweep computes now, of a search
        self._ends = {run.identity: end_of(run.job) for run in study.runs} if study.options.search else {}
        self._stages = planned_stages(study)
        files, known = _run_files(self.folder), _stored(self.folder)
        self.entries: dict[str, Entry] = {}
        for run in study.runs:
            old, name = known.get(run.identity, {}), run.path.name
            entry = Entry(run.identity, name, run.labels, run.seed, attempts=int(old.get("attempts", 0)),
                          error=str(old.get("error", "")))  # fmt: skip
            if name in files and _is_unchanged(old, name, files[name]):
                entry = replace(entry, status="completed", seconds=old["seconds"], stamp=files[name], error="",
                                reached=self._ends.get(run.identity))  # fmt: skip
            else:
                entry = self._inspected(entry, run, files.get(name))
            self.entries[run.identity] = entry
        mine = {run.identity for run in part.of(study.runs)} if part else set(self.entries)
        self._others = set(self.entries) - mine
        self.counted = set(self.entries)  # identities of the runs that `counts` and a line of progress are about
        expected = {entry.file for entry in self.entries.values()}
        self.foreign = sorted(files.keys() - expected)
        self._written = -math.inf  # time.monotonic of the last write

    def finish(self, run: StudyRun, status: str, error: str = "", seconds: float | None = None) -> None:
        """Records how an attempt at a run ended; writes the index file at most once every WRITE_INTERVAL.

        seconds: Wall time of the run; None: that in its file.
        """
        identity = run.identity
        entry = self.entries[identity]
        path = self.folder / entry.file
        reached = entry.reached
        if self._ends and status == "completed":
            reached = end_of(run.job)
            status = "completed" if reached == self._ends[identity] else "stopped"
        seconds = _file_status(path)[1] if seconds is None else seconds
        stamp = _stamp(path.stat()) if status == "completed" else None
        attempts = entry.attempts + (status == "failed")
        self.entries[identity] = replace(entry, status=status, seconds=seconds, attempts=attempts, error=error,
                                         stamp=stamp, reached=reached)  # fmt: skip
        if time.monotonic() >= self._written + WRITE_INTERVAL:
            self.write()

    def refresh(self, run: StudyRun) -> None:
        """Reads the status of a run from its file again."""
        stamp = _run_files(self.folder).get(run.path.name)
        self.entries[run.identity] = self._inspected(self.entries[run.identity], run, stamp)

    def _inspected(self, entry: Entry, run: StudyRun, stamp: list[int] | None) -> Entry:
        """The entry with the status that its run file shows."""
        if stamp is None:
            return replace(entry, status="failed" if entry.error else "waiting")
        status, seconds, config = _file_status(run.path)
        reached = None
        if self._ends and config is not None:  # the file's job may have an earlier stop
            reached, config = _reached(run, status, config), {**config, "stop": read.job_to_dict(run.job)["stop"]}
            if status == "completed" and reached != self._ends[run.identity]:
                status = "stopped"
        if config is None or not _is_of(run.job, run.ranks, config):
            return replace(entry, status="damaged")
        error = entry.error if status == "failed" else ""
        stamp = stamp if status == "completed" else None
        return replace(entry, status=status, seconds=seconds, error=error, stamp=stamp, reached=reached)

    def has_ended(self, run: StudyRun) -> bool:
        """Whether a run has come to the stop of its job, which may be that of a rung, or has failed."""
        return self.entries[run.identity].status in ("completed", "failed") or self._has_passed(run)

    def is_due(self, run: StudyRun, retries: int) -> bool:
        """Whether a run is to be computed, as far as the stop of its job."""
        entry = self.entries[run.identity]
        if entry.status in ("completed", "running") or self._has_passed(run):
            return False
        return entry.status != "failed" or entry.attempts <= retries

    def _has_passed(self, run: StudyRun) -> bool:
        """Whether a run of a search has come to a rung, the stop of its job."""
        reached, end = self.entries[run.identity].reached, end_of(run.job)
        return reached is not None and end <= reached and end < self._ends[run.identity]

    def stop(self, identities: Collection[str]) -> None:
        """Records that a search does not go on with these runs, of those that have not come to an end."""
        for identity in identities:
            if (entry := self.entries[identity]).status not in ("completed", "failed"):
                self.entries[identity] = replace(entry, status="stopped")

    def counts(self) -> Counter[str]:
        """The number of runs of each status, of those in `counted`."""
        return Counter(self.entries[identity].status for identity in self.counted)

    @property
    def searched(self) -> bool:
        """Whether the study has a search."""
        return bool(self._ends)

    def unfinished(self) -> int:
        """The number of this process's runs that are neither completed nor failed."""
        mine = (entry for identity, entry in self.entries.items() if identity not in self._others)
        return sum(entry.status not in ("completed", "failed", "stopped") for entry in mine)

    def write(self) -> None:
        """Replaces the index file in one step; keeps what other processes have recorded about their runs.

        Raises RunFailed where it cannot be written.
        """
        self._written = time.monotonic()
        try:
            with index_lock(self.folder):
                for identity, stored in _stored(self.folder).items():
                    if identity in self._others:
                        self.entries[identity] = _updated(self.entries[identity], stored)
                self._replace()
        except OSError as error:
            raise RunFailed(f"{self.folder / INDEX} cannot be written: {error.strerror}") from error

    def remove_temporaries(self, age: float) -> None:
        """Removes what processes left that were killed while they created a file; age: of the youngest of these (s)."""
        for path in self.folder.iterdir():
            if TEMPORARIES.fullmatch(path.name):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime >= age:
                        path.unlink()

    def _replace(self) -> None:
        temporary = self.folder / f".{INDEX}.{secrets.token_hex(4)}"
        runs = [asdict(entry) for entry in self.entries.values()]
        content = {"study": self.name, "stages": self._stages, "runs": runs}
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(content, file, indent=1, allow_nan=False)  # not synced: it can be made again
            os.replace(temporary, self.folder / INDEX)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def estimate(self, todo: Sequence[StudyRun], processes: int) -> float | None:
        """Estimated wall time (s) of `todo`, or of what is left of a search; None before the first run has ended."""
        if self._stages:
            computed = [(entry.reached or 0.0, entry.seconds) for entry in self.entries.values()]
            return time_left(self._stages, computed, processes)
        return estimate(self.entries.values(), [(run.labels, 1.0) for run in todo], processes)


def estimate(entries: Iterable[Entry], todo: Sequence[tuple[Mapping[str, Any], float]], processes: int) -> float | None:
    """Estimated wall time (s) of runs, by their labels and the share that is left; None if none is completed."""
    done = [entry for entry in entries if entry.status == "completed" and entry.seconds is not None]
    if not done:
        return None

    def expected(labels: Mapping[str, Any]) -> float:
        like = [entry.seconds or 0.0 for entry in done if entry.labels == labels] or [e.seconds or 0.0 for e in done]
        return sum(like) / len(like)

    return sum(share * expected(labels) for labels, share in todo) / max(1, min(processes, len(todo)))


def _updated(entry: Entry, stored: dict[str, Any]) -> Entry:
    """The entry, updated if another process has recorded the end of the run since."""
    if entry.status == "completed" or stored.get("status") not in ("completed", "failed", "interrupted"):
        return entry
    return replace(entry, status=str(stored["status"]), seconds=stored.get("seconds"), stamp=stored.get("stamp"),
                   attempts=int(stored.get("attempts", 0)), error=str(stored.get("error", "")))  # fmt: skip


def _run_files(folder: Path) -> dict[str, list[int]]:
    """The stamps of a folder's run files, by their names; none where there is no folder."""
    try:
        with os.scandir(folder) as found:
            # A link that leads nowhere is a file that cannot be read, so it has a stamp too.
            return {
                file.name: _stamp(file.stat(follow_symlinks=os.path.exists(file.path)))
                for file in found
                if file.name.endswith(".h5")
            }
    except FileNotFoundError:
        return {}
    except NotADirectoryError:
        raise ConfigError("output", folder, "this is a file", "a folder") from None
    except OSError as error:
        raise ConfigError("output", folder, f"cannot be read: {error.strerror}", "a readable folder") from None


def _stamp(stat: os.stat_result) -> list[int]:
    """What changes when a file is written: its size (bytes) and time of change (ns)."""
    return [stat.st_size, stat.st_mtime_ns]


def _is_unchanged(stored: Mapping[str, Any], name: str, stamp: list[int]) -> bool:
    """Whether a run file is as it was when the index recorded that its run was completed."""
    seconds = stored.get("seconds")
    recorded = stored.get("status"), stored.get("file"), stored.get("stamp")
    return recorded == ("completed", name, stamp) and isinstance(seconds, float | None)


def _stored(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of the index file by identity; none where it is lost or damaged."""
    return {entry["identity"]: entry for entry in read_index(folder).runs}


def _reached(run: StudyRun, status: str, config: Mapping[str, Any]) -> float | None:
    """How far the run of a search in a file has been computed: to the stop of its job, or to the last evaluation.

    A run that is not completed has not come to its stop, even if it was killed after its last evaluation.
    """
    unit, stop = "time" if run.job.stop.time else "updates", config.get("stop")
    end = stop.get(unit) if isinstance(stop, Mapping) else None
    if not isinstance(end, int | float):
        return None
    if status == "completed":
        return end
    with open_run(run.path) as file:
        places = file.rows("evaluations", unit, 0, None)
    return float(places[places < end].max(initial=0.0))


def keep_damaged(job: Job, ranks: int) -> None:
    """Renames the run file of a job where it cannot be read, or is of another job: the name is for the job's run."""
    path = Path(job.output)
    status, _, config = _file_status(path)
    if status != "waiting" and (config is None or not _is_of(job, ranks, config)):
        path.rename(spare_name(path, "damaged"))


def _is_of(job: Job, ranks: int, config: Mapping[str, Any]) -> bool:
    """Whether a run file's config is the job."""
    if outside_code(config) != outside_code(read.job_to_dict(job)):  # the comparison below would import the file's code
        return False
    try:
        return identify(read.job_from_dict(config), ranks) == identify(job, ranks)
    except ConfigError:
        return False


def entries_of(folder: Path) -> list[Entry]:
    """The runs of a study's folder, by the names of their files.

    Works with the run files alone; the index adds labels, runs that have not begun and error messages.
    """
    files = _run_files(folder)
    known = {entry["file"]: entry for entry in read_index(folder).runs}
    found = []
    for name in sorted({*files, *known}):
        stored = known.get(name, {})
        entry = Entry("", name, stored.get("labels", {}), seed=0, error=stored.get("error", ""))
        if name in files and _is_unchanged(stored, name, files[name]):
            status, seconds = "completed", stored["seconds"]
        else:
            status, seconds, _ = _file_status(folder / name)
        if status == "waiting" and entry.error:
            status = "failed"
        elif stored.get("status") == "stopped" and status in ("waiting", "interrupted", "completed"):
            status = "stopped"
        found.append(replace(entry, status=status, seconds=seconds, stamp=files.get(name)))
    return found


def show_folder(folder: Path) -> str:
    """The runs of a study's folder, a line each, with its status and labels, and the number of runs of each status.

    Raises ConfigError where there are none.
    """
    from tabulate import tabulate

    rows, entries = [], entries_of(folder)
    if not entries:
        expected = "a RUN.h5, or a folder with run files"
        raise ConfigError("show", folder, "no run files", expected, "mpifl sweep computes those of a study")
    for entry in entries:
        row = {"file": entry.file, **entry.labels, "status": entry.status}
        row["wall s"] = "" if entry.seconds is None else f"{entry.seconds:.1f}"
        rows.append({**row, "error": entry.error} if entry.status == "failed" and entry.error else row)
    table = tabulate(rows, headers="keys", disable_numparse=True)
    return f"{table}\n\n{folder}: {format_count(len(entries), 'run')}: {count_text(entries)}"


def count_text(entries: Iterable[Entry]) -> str:
    """The number of runs of each status."""
    counts = Counter(entry.status for entry in entries)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])


def _file_status(path: Path) -> tuple[str, float | None, dict[str, Any] | None]:
    """The status that a run file shows, the wall time of the run (s) and its job."""
    if not os.path.lexists(path):
        return "waiting", None, None
    try:
        with open_run(path) as file:
            seconds = float(file.attrs.get("wall_seconds", math.nan))
            status, host, alive, config = file.status, file.host, file.is_alive, dict(file.config)
    except ConfigError:
        return "damaged", None, None
    # The lock is tried only now: HDF5 locks a file that it reads, unless a writer has it open or left it open.
    if status == "running" and not _is_running(path, host, alive):
        status = "interrupted"
    return status, None if math.isnan(seconds) else seconds, config


def _is_running(path: Path, host: str | None, alive: bool) -> bool:
    """Whether a process computes the run of this file: it holds a lock, or writes where locks do not tell.

    host: of the run; alive: whether the file was written to a moment ago.
    """
    locked = is_locked(path)
    if locked or (locked is False and host == host_name()):  # a run that was killed a moment ago has no lock
        return bool(locked)
    return alive


def can_resume(run: StudyRun) -> bool:
    """Whether there is a checkpoint to continue the run from."""
    try:
        return run.path.exists() and bool(sets(folder_of(run.path)))
    except OSError:
        return False
