"""`mpifl sweep`: runs the missing runs of a study, several at a time, and continues after any interruption."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mpifl import api
from mpifl.config.job import Job
from mpifl.config.read import job_to_dict
from mpifl.config.trust import outside_code
from mpifl.errors import ConfigError, RunFailed
from mpifl.signals import SignalRecorder
from mpifl.studies.index import Index, can_resume
from mpifl.studies.parts import Part, locked
from mpifl.studies.study import Study, StudyRun, describe, identify

if TYPE_CHECKING:
    from mpifl.transport.mpi import MPI

log = logging.getLogger(__package__)
LOG_INTERVAL = 60.0  # s between two lines in a log
MAX_NAMED = 5  # run files or failures that are named in one line
KILLED = "its process was killed"

_problem: AbstractContextManager[None] | None = None  # the data that this process loaded last


class Finished(NamedTuple):
    """How a run ended in its process."""

    status: str
    error: str = ""


def sweep(
    study: Study, processes: int | None = None, progress: Callable[[str], None] | None = None,
    executor: Executor | None = None, part: Part | None = None,
) -> Index:  # fmt: skip
    """Runs the missing runs of a study; returns the index, in which some of them may have failed.

    Completed runs are kept, interrupted ones continue from their checkpoints where they have any, and failed ones are
    tried again as often as `retries` says. Raises ConfigError where the folder cannot be written, or another process
    is running the study; Interrupted where a signal ends it, after the runs under way have saved their checkpoints.

    Args:
        study: The study.
        processes: Runs at a time; None: one for each core.
        progress: Called with a line on the state of the study, whenever a run ends.
        executor: What runs them, `processes` at a time; None: new processes on this machine.
        part: The runs that are computed here; None: all.
    """
    processes = available_cores() if processes is None else processes
    with locked(study.folder, part):
        index = Index(study, part)
        for line in _foreign_files(index):
            log.warning(line)
        index.write()
        todo = [
            run for run in (part.of(study.runs) if part else study.runs) if _wanted(index, run, study.options.retries)
        ]
        # runs of the same problem one after another: a process keeps the data that it loaded last
        todo.sort(key=lambda run: repr(run.job.problem))
        while todo:
            count = min(processes, len(todo))
            with nullcontext(executor) if executor else _processes(count) as pool:
                todo = _pass(study, index, todo, pool, count, progress)
    return index


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _wanted(index: Index, run: StudyRun, retries: int) -> bool:
    entry = index.entries[run.identity]
    if entry.status == "failed":
        return entry.attempts <= retries
    return entry.status in ("waiting", "interrupted")


def _pass(
    study: Study, index: Index, todo: Sequence[StudyRun], executor: Executor, processes: int,
    progress: Callable[[str], None] | None,
) -> list[StudyRun]:  # fmt: skip
    """Runs each of `todo` once; returns those to be tried again, or not yet run when a process was killed."""
    again: list[StudyRun] = []
    begin, done = time.monotonic(), 0
    waiting = list(reversed(todo))
    running: dict[Future[Finished], StudyRun] = {}
    while waiting or running:
        while waiting and len(running) < processes:  # so that a process that dies takes few runs with it
            run = waiting.pop()
            running[executor.submit(_compute, run.job, can_resume(run))] = run
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            run = running.pop(future)
            try:
                end = future.result()
            except BrokenProcessPool:
                end = Finished("failed", KILLED)
            index.finish(run.identity, end.status, end.error)
            done += 1
            if end.status == "failed":
                log.warning("%s failed: %s", describe(run), end.error)
                if _wanted(index, run, study.options.retries):
                    again.append(run)
            if progress:
                seconds = (time.monotonic() - begin) / done * (len(todo) - done)
                progress(status_line(index, len(waiting) + len(running) + len(again), seconds))
            if end.error == KILLED:  # the others were ended with it, through no fault of theirs
                return [*again, *running.values(), *reversed(waiting)]
    return again


@contextmanager
def _processes(count: int) -> Iterator[Executor]:
    """New processes; when an error leaves the block, such as a signal, their runs save checkpoints and end."""
    executor = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _start_process)
    try:
        yield executor
    except BaseException:
        for process in multiprocessing.active_children():
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGTERM)
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_process() -> None:
    """Prepares a process of the pool: Ctrl-C reaches its runs alone, and it ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("mpifl").propagate = False
    parent = multiprocessing.parent_process()
    assert parent

    def end_with_parent() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _compute(job: Job, resume: bool) -> Finished:
    """Runs or resumes one run in a process of the pool."""
    global _problem
    if _problem is None:
        _problem = api.keep_problem()  # for the life of the process
        _problem.__enter__()
    try:
        if resume:
            with suppress(ConfigError):  # without a checkpoint that can be used it begins anew
                api.finished_run(api.execute(lambda: _resume_task(job))).close()
                return Finished("completed")
        api.run(job, overwrite=True).close()
    except (RunFailed, ConfigError, OSError) as error:
        return Finished("failed", " ".join(str(error).split()))
    except KeyboardInterrupt:
        return Finished("interrupted")
    except (Exception, SystemExit) as error:  # of the user's code: the study's other runs go on
        return Finished("failed", _described(error))
    return Finished("completed")


def _resume_task(job: Job) -> api.Task:
    """The task that resumes the run of a job. Raises ConfigError for a checkpoint of another job.

    What that job's code would be is never imported: only the code that the study names is trusted.
    """
    task = api.resume_task(Path(job.output), trust=outside_code(job_to_dict(job)))
    if identify(task.job) != identify(job):
        raise ConfigError("resume", job.output, "a checkpoint of the study's job; this one is of another job")
    return task


def _described(error: BaseException) -> str:
    """An unexpected error with the place at which it was raised, in one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} ({Path(place.filename).name}:{place.lineno}, in {place.name})"


def sweep_on_ranks(
    comm: MPI.Intracomm, load: Callable[[], Study], progress: Callable[[str], None], part: Part | None = None
) -> Index | None:
    """Runs a study on the ranks of an MPI job, one run at a time on each rank but 0; the index on rank 0.

    Every rank calls it; rank 0 alone loads the study, and releases the others where that raises.
    """
    from mpifl.transport.launcher import worker_ranks

    with worker_ranks(comm) as executor:
        if executor is None:
            return None
        with SignalRecorder():
            return sweep(load(), comm.size - 1, progress, executor, part)


# -- what is printed ---------------------------------------------------------------------------------------------------
def status_line(index: Index, left: int, seconds: float | None) -> str:
    """The state of a study in one line: runs by status, and the time that is left."""
    counts = index.counts()
    parts = [f"{counts['completed']} of {len(index.entries)} runs completed"]
    parts += [f"{counts[status]} {status}" for status in ("failed", "interrupted", "running") if counts[status]]
    if left and seconds is not None:
        parts.append(f"about {format_duration(seconds)} left")
    return f"{index.name}: {', '.join(parts)}"


def format_duration(seconds: float) -> str:
    """A duration in its two largest units: 45 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _foreign_files(index: Index) -> Iterator[str]:
    if index.foreign:
        named = ", ".join(index.foreign[:MAX_NAMED]) + (", ..." if len(index.foreign) > MAX_NAMED else "")
        s = "s do" if len(index.foreign) > 1 else " does"
        yield f"{len(index.foreign)} run file{s} not belong to the study as it is now: {named}"


def final_line(index: Index) -> str:
    """How a sweep ended, in one line; failed runs with the messages of the first few."""
    failed = [entry for entry in index.entries.values() if entry.status == "failed"]
    line = f"{index.folder}: {status_line(index, 0, None)}"
    return "; ".join([line, *(f"{entry.file}: {entry.error or 'failed'}" for entry in failed[:MAX_NAMED])])


def dry_run(study: Study, processes: int | None = None) -> str:
    """The runs of a study with their status, and an estimate of the time that the missing ones take."""
    from tabulate import tabulate

    index = Index(study)
    todo = [run for run in study.runs if _wanted(index, run, study.options.retries)]
    rows = [
        {**run.labels, "seed": run.seed, "status": index.entries[run.identity].status, "file": run.path.name}
        for run in study.runs
    ]
    count = available_cores() if processes is None else processes
    seconds = index.estimate(todo, count)
    time_ = "time unknown until a run has completed" if seconds is None else f"about {format_duration(seconds)}"
    plural = "es" if count > 1 else ""
    last = f"{len(todo)} of {len(rows)} runs to do on {count} process{plural}, {time_}"
    return "\n".join([tabulate(rows, headers="keys", disable_numparse=True), "", *_foreign_files(index), last])


def print_progress() -> Callable[[str], None]:
    """A function that prints lines of progress: on a terminal over one another, in a log at most one a minute."""
    last = 0.0

    def write(line: str) -> None:
        nonlocal last
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - last >= LOG_INTERVAL:
            last = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    return write
