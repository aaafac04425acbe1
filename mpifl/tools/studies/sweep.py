"""`mpifl sweep`: runs the missing runs of a study, several at a time, and continues after any interruption."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from typing import TYPE_CHECKING

from mpifl.errors import ConfigError
from mpifl.runfile.reader import HEARTBEAT_TIMEOUT
from mpifl.signals import Interrupted, SignalRecorder
from mpifl.text import format_duration
from mpifl.tools.studies.compute import Finished, compute, end_group, find_launcher, serve_group
from mpifl.tools.studies.halving import search, settle
from mpifl.tools.studies.index import STALE_AGE, Index, can_resume
from mpifl.tools.studies.processes import processes as new_processes
from mpifl.tools.studies.search import cannot_split
from mpifl.tools.studies.select import without_rejected
from mpifl.tools.studies.study import Study, StudyRun, describe
from mpifl.tools.studies.study_slices import Part, locked

if TYPE_CHECKING:
    from mpifl.transport.mpi import MPI

log = logging.getLogger(__package__)
LOG_INTERVAL = 60.0  # s between two lines in a log
REFRESH_INTERVAL = 5.0  # s between two lines on a terminal while no run ends
MAX_NAMED = 5  # run files or failures that are named in one line
SHOWN = ("running", "stopped", "failed", "interrupted", "damaged")  # statuses that a line of progress counts
KILLED = "its process was killed"


def sweep(
    study: Study, processes: int | None = None, progress: Callable[[str], None] | None = None,
    executor: Executor | None = None, part: Part | None = None, only: Callable[[StudyRun], bool] = lambda run: True,
    stop_on_failure: bool = False,
) -> Index:  # fmt: skip
    """Runs the missing runs of a study; returns the index, in which some of them may have failed.

    Completed runs are kept, interrupted ones continue from their checkpoints where they have any, and failed ones are
    tried again as often as `retries` says. Raises ConfigError where the folder cannot be written, or another process
    is running the study; Interrupted where a signal ends it, after the runs under way have saved their checkpoints.

    Args:
        study: The study.
        processes: Runs at a time; None: as many as there are cores for their ranks.
        progress: Called with a line on the state of the runs (of those that `only` selects), whenever one begins or
            ends and every few seconds; with an empty line before a message is logged, and at the end.
        executor: What runs them, `processes` at a time; None: new processes on this machine.
        part: The part of the runs that is computed; None: all.
        only: Says of a run whether it is computed.
        stop_on_failure: Begin no other run once one has failed for good; those under way go on to their ends.
    """
    processes = default_processes(study) if processes is None else processes
    if study.options.search and part and part.count > 1:
        raise cannot_split("--part", part, "0/1")
    if not executor and study.options.ranks > 1:
        find_launcher(study.options.ranks)
    with locked(study.folder, part):
        index = Index(study, part)
        for line in _foreign_files(index):
            log.warning(line)
        index.counted = {run.identity for run in study.runs if only(run)}
        index.remove_temporaries(STALE_AGE if part else 0)  # without parts no other process writes here
        index.write()

        def compute_all(runs: Sequence[StudyRun], stage: str = "") -> bool:
            index.stage = stage
            mine = [run for run in runs if run.identity in index.counted]
            return _compute_all(study, index, mine, processes, progress, executor, stop_on_failure)

        try:
            if study.options.search:
                index.stop(search(study, compute_all).stopped)
            else:
                compute_all(part.of(study.runs) if part else study.runs)
        except Interrupted:
            if progress:
                progress("")
            log.warning("interrupted; %s", status_line(index, 0, None))
            raise
        finally:
            index.stage = ""
            if progress:
                progress("")
            index.write()
    return index


def _compute_all(
    study: Study, index: Index, runs: Sequence[StudyRun], processes: int, progress: Callable[[str], None] | None,
    executor: Executor | None, stop_on_failure: bool,
) -> bool:  # fmt: skip
    """Computes those of the runs that are due; returns whether no failure has stopped the sweep."""
    todo = [run for run in runs if index.is_due(run, study.options.retries)]
    for line in _damaged_files(index, todo):
        log.warning(line)
    # Runs of the same problem follow one another, since a process keeps the data that it loaded last.
    todo.sort(key=lambda run: repr(run.job.problem))
    killed: list[StudyRun] = []
    todo = todo or _left_behind(index, runs)
    while todo or killed:
        # A run whose process was killed, perhaps for want of memory, is tried again alone, after the others.
        batch, killed = (todo, killed) if todo else (killed, [])
        count = min(processes, len(batch)) if todo else 1
        with nullcontext(executor) if executor else new_processes(count) as pool:
            todo, more, stopped = _pass(study, index, batch, pool, count, progress, stop_on_failure)
        if stopped:
            return False
        killed += more
        if not todo and not killed:
            todo = _left_behind(index, runs)
    return True


def sweep_selected(
    study: Study, processes: int | None = None, progress: Callable[[str], None] | None = None,
    here: Set[str] | None = None,
) -> Index:  # fmt: skip
    """Runs what a report of the study needs: where `select.seeds` decides, those seeds first, then the others of what
    they select; returns the index of the runs that are needed.

    here: identities of the runs that may be computed; None: all. The other arguments are those of `sweep`.
    """
    select = study.options.select
    mine = {run.identity for run in study.runs} if here is None else here
    if select is None or select.seeds is None:
        return sweep(study, processes, progress, only=lambda run: run.identity in mine)
    sweep(study, processes, progress, only=lambda run: run.identity in mine and select.decides(run.seed))
    needed = without_rejected(study, Index(study))
    kept = mine & {run.identity for run in needed.runs}
    sweep(study, processes, progress, only=lambda run: run.identity in kept)
    return Index(needed)


def default_processes(study: Study) -> int:
    """Runs at a time on this machine, where nothing else is said."""
    return max(1, len(os.sched_getaffinity(0)) // study.options.ranks)


def _left_behind(index: Index, runs: Sequence[StudyRun]) -> list[StudyRun]:
    """The runs that seemed to be running, but had been killed on another host shortly before.

    Locks may not tell that from another host, so this waits until a heartbeat would be overdue.
    """
    end = time.monotonic() + HEARTBEAT_TIMEOUT + 1
    seemed = alive = [run for run in runs if index.entries[run.identity].status == "running"]
    while alive and time.monotonic() < end:
        time.sleep(0.5)
        for run in alive:
            index.refresh(run)
        alive = [run for run in alive if index.entries[run.identity].status == "running"]
    return [run for run in seemed if index.entries[run.identity].status == "interrupted"]


def _pass(
    study: Study, index: Index, todo: Sequence[StudyRun], executor: Executor, processes: int,
    progress: Callable[[str], None] | None, stop_on_failure: bool,
) -> tuple[list[StudyRun], list[StudyRun], bool]:  # fmt: skip
    """Runs each of `todo` once; returns those to be tried again, of these the ones whose process was killed, and
    whether a run has failed for good that `stop_on_failure` stops at: no further one was begun then."""
    again: list[StudyRun] = []
    killed: list[StudyRun] = []
    begin, done, stopped = time.monotonic(), 0, False
    waiting = list(reversed(todo))
    running: dict[Future[Finished], StudyRun] = {}

    def show() -> None:
        if progress:
            left = len(todo) - done
            known = done and not index.searched  # later stages of a search are left too
            seconds = (time.monotonic() - begin) / done * left if known else index.estimate(todo, processes)
            progress(status_line(index, left + len(again) + len(killed), seconds, len(running)))

    while waiting or running:
        while waiting and len(running) < processes:
            run = waiting.pop()
            running[executor.submit(compute, run.job, can_resume(run), run.ranks, index.searched)] = run
        show()
        for future in wait(running, REFRESH_INTERVAL, FIRST_COMPLETED).done:
            run = running.pop(future)
            try:
                end = future.result()
            except BrokenProcessPool:
                end = Finished("failed", KILLED)
            index.finish(run, end.status, end.error, end.seconds)
            done += 1
            if end.status == "failed":
                if progress:
                    progress("")  # clears the line of progress for the message
                log.warning("%s failed: %s", describe(run), end.error)
                if index.is_due(run, study.options.retries):
                    (killed if end.error == KILLED else waiting if stop_on_failure else again).append(run)
                elif stop_on_failure:
                    stopped = True
                    waiting.clear()
    show()
    return again, killed, stopped


def sweep_on_ranks(
    comm: MPI.Intracomm, load: Callable[[], Study], progress: Callable[[str], None], part: Part | None = None,
    stop_on_failure: bool = False,
) -> Index | None:  # fmt: skip
    """Runs a study on the ranks of an MPI job, a run at a time on each group of them; the index on rank 0.

    Every rank calls it; rank 0 alone loads the study, and releases the others where that raises. It starts runs, and
    belongs to no group.
    """
    from mpifl.transport.groups import worker_groups
    from mpifl.transport.launcher import broadcast_number

    study, ranks = None, 0
    try:
        if comm.rank == 0:
            study = load()
            ranks = study.options.ranks
    finally:
        ranks = broadcast_number(comm, ranks)
    if not ranks:  # the study is wrong
        return None
    with worker_groups(comm, ranks, serve_group, end_group) as executor:
        if executor is None or study is None:
            return None
        with SignalRecorder():
            groups = count_groups(comm.size, ranks)
            return sweep(study, groups, progress, executor, part, stop_on_failure=stop_on_failure)


def count_groups(size: int, ranks: int) -> int:
    """The number of groups of `ranks` ranks on an MPI job of `size`. Raises ConfigError if there is none."""
    if size - 1 < ranks:
        wrong = f"{size} ranks were started, of which rank 0 only dispatches runs"
        raise ConfigError("ranks", ranks, wrong, remedy=f"start mpirun -n {ranks + 1} or more")
    return (size - 1) // ranks


# -- what is printed ---------------------------------------------------------------------------------------------------
def status_line(index: Index, left: int, seconds: float | None, running: int = 0) -> str:
    """The state of a study in one line: runs by status, and the time that is left.

    running: Runs of this process, which the index does not count.
    """
    counts = index.counts()
    parts = [f"{counts['completed']} of {len(index.counted)} runs completed"]
    counts["running"] += running
    parts += [f"{counts[status]} {status}" for status in SHOWN if counts[status]]
    if left and seconds is not None:
        parts.append(f"about {format_duration(seconds)} left")
    return f"{index.name}{index.stage and f', {index.stage}'}: {', '.join(parts)}"


def _foreign_files(index: Index) -> Iterator[str]:
    if index.foreign:
        s = "s do" if len(index.foreign) > 1 else " does"
        yield f"{len(index.foreign)} run file{s} not belong to the study as it is now: {_listed(index.foreign)}"


def _damaged_files(index: Index, runs: Sequence[StudyRun]) -> Iterator[str]:
    entries = [index.entries[run.identity] for run in runs]
    if names := [entry.file for entry in entries if entry.status == "damaged"]:
        are, they = ("s are", "they are") if len(names) > 1 else (" is", "it is")
        text = f"damaged, or of another job; {they} renamed to FILE.damaged, and computed again"
        yield f"{len(names)} run file{are} {text}: {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")


def final_line(index: Index) -> str:
    """How a sweep ended, in one line; failed runs with the messages of the first few."""
    failed = [entry for entry in index.entries.values() if entry.status == "failed"]
    line = f"{index.folder}: {status_line(index, 0, None)}"
    return "; ".join([line, *(f"{entry.file}: {entry.error or 'failed'}" for entry in failed[:MAX_NAMED])])


def dry_run(study: Study, processes: int | None = None) -> str:
    """The runs of a study with their status, and an estimate of the time that the missing ones take."""
    from tabulate import tabulate

    index = Index(study)
    settled = settle(study, index)
    todo = [run for run in study.runs if index.is_due(run, study.options.retries)]
    rows = [
        {**run.labels, "seed": run.seed, "status": index.entries[run.identity].status, "file": run.path.name}
        for run in study.runs
    ]
    count = default_processes(study) if processes is None else processes
    seconds = index.estimate(todo, count)
    time_ = "time unknown until a run has completed" if seconds is None else f"about {format_duration(seconds)}"
    where = f"on {count} process{'es' if count > 1 else ''}"
    if study.options.ranks > 1:
        where = f"{count} at a time on {study.options.ranks} ranks each"
    last = f"{len(todo)} of {len(rows)} runs to do" + (f", {where}, {time_}" if todo else "")
    if study.options.search:
        last = "\n".join([*settled, status_line(index, index.unfinished(), seconds)])
    return "\n".join([tabulate(rows, headers="keys", disable_numparse=True), "", *_foreign_files(index), last])


def print_progress() -> Callable[[str], None]:
    """A function that prints lines of progress: on a terminal over one another, in a log at most one a minute.

    An empty line clears the one on the terminal.
    """
    last = -LOG_INTERVAL

    def write(line: str) -> None:
        nonlocal last
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        elif line and time.monotonic() - last >= LOG_INTERVAL:
            last = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    return write
