"""Runs a task on all ranks: rank 0 is its server, the others host its clients. Prints nothing.

Warnings and errors go to the logger "mpifl".
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mpifl.errors import ConfigError, Contradiction, RunFailed, RunResult, describe_unexpected, lack_of_memory
from mpifl.signals import Interrupted, SignalRecorder, is_from_signal

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.problems import Problem
    from mpifl.runfile.reader import Run
    from mpifl.server.resume import Restart, ResumePoint
    from mpifl.server.session import RowsObserver
    from mpifl.transport.mpi import MPI

log = logging.getLogger("mpifl")
log.addHandler(logging.NullHandler())
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # NumPy reads them at its import
# threadpoolctl sets the first one, torch's libraries are given the others (`problems.torch`).
LIBRARY_VARIABLES = ("KMP_DUPLICATE_LIB_OK", "MKL_CBWR", "CUBLAS_WORKSPACE_CONFIG")

# What watches a run, from its job and whether it is resumed.
Observe: TypeAlias = "Callable[[Job, bool], Sequence[RowsObserver]]"


class Task(NamedTuple):
    """A run that all ranks do together."""

    job: Job
    replay: Run | None = None  # the run whose order of events is repeated
    resumed: ResumePoint | None = None  # the checkpoint to resume from
    aside: Path | None = None  # the name under which the present run file is kept


def run_task(job: Job) -> Task:
    """The task that runs a job; an earlier run of it in its run file, which is not completed, goes on.

    Raises ConfigError where that is live.
    """
    from mpifl.server.resume import find_earlier

    return _continued(point) if (point := find_earlier(job)) else Task(job)


def resume_task(path: Path, overrides: Sequence[str] = (), trust: bool | Mapping[str, str] = False) -> Task:
    """The task that resumes a run file. Raises ConfigError for a run that cannot be resumed, or code not trusted.

    trust: Whether all code that the file names is trusted, or the names that are, by key.
    """
    from mpifl.server.resume import find_resume_point

    return _continued(find_resume_point(path, overrides, trust))


def _continued(point: ResumePoint | Restart) -> Task:
    from mpifl.server.resume import ResumePoint

    return Task(point.job, resumed=point) if isinstance(point, ResumePoint) else Task(point.job, aside=point.aside)


def replay_task(
    path: Path, overrides: Sequence[str] = (), keys: Mapping[str, Any] | None = None, trust: bool = False
) -> Task:
    """The task that replays a run file. Raises ConfigError if that is impossible, or a key changes that may not."""
    from mpifl.config import read
    from mpifl.config.trust import check_sizes
    from mpifl.runfile.reader import open_run

    recorded = open_run(path)
    check_sizes(recorded.config, path, len(recorded.clients), recorded.rows("model", "x", 0, None).size)
    facts = json.loads(recorded.attrs.get("compute", "[{}]"))  # a dict for each rank; the last rank has clients
    output = path.with_name(f"{path.stem}-replay.h5")
    threads = facts[-1].get("threads") if facts else None
    try:
        return Task(read.replayed(recorded.config, output, overrides, keys, threads, path, trust), recorded)
    except ConfigError:
        recorded.check_undamaged()  # else it would name a key that nobody wrote
        raise


def execute(
    prepare: Callable[[], Task | None], report: Callable[[RunResult], None] = lambda result: None,
    process_ends: bool = False, comm: MPI.Intracomm | None = None, observe: Observe = lambda job, resumed: (),
) -> RunResult:  # fmt: skip
    """Runs on all ranks the task that rank 0 prepares; returns on every rank how it ended.

    Args:
        prepare: Called on rank 0 alone. None: there is nothing to run.
        report: Called on rank 0 alone, before the other ranks are released.
        process_ends: Whether this process ends with the command (`SignalRecorder`).
        comm: Of these ranks; None: of all ranks of the MPI job.
        observe: Called on rank 0 alone, before the data are loaded: returns what watches the run.

    Raises:
        ConfigError: On all ranks. An unexpected error passes in one process, and ends all ranks under MPI; but on a
            communicator that is given it fails the run alone, where MPI has not failed.
    """
    from mpifl.transport.launcher import communicator, run_or_abort

    contained = comm is not None
    comm = communicator() if comm is None else comm if comm.size > 1 else None
    with _restored_environment():
        if comm is None:
            result = _lead(prepare, report, observe, None, process_ends, contained)
        else:
            from mpifl.transport.mpi import short_sleeps

            part = partial(_lead, prepare, report, observe, comm, process_ends, contained)
            with short_sleeps():
                result = run_or_abort(comm, part if comm.rank == 0 else partial(_serve, comm, process_ends))
    if isinstance(result.error, ConfigError):
        raise result.error
    return result


def _lead(
    prepare: Callable[[], Task | None], report: Callable[[RunResult], None], observe: Observe,
    comm: MPI.Intracomm | None, process_ends: bool, contained: bool,
) -> RunResult:  # fmt: skip
    """Rank 0's part: however it ends, the other ranks are released. contained: also by an unexpected error."""
    from mpifl.server.start import run_server
    from mpifl.transport.handshake import Handshake
    from mpifl.transport.launcher import is_mpi_error

    handshake, result = Handshake(comm), RunResult()
    with SignalRecorder(process_ends) as signals, _one_thread(), ExitStack() as stack:
        try:
            if task := prepare():
                observers = observe(task.job, task.resumed is not None)
                stack.enter_context(restored_torch(task.job))
                result = run_server(
                    task.job, handshake, replay=task.replay, resumed=task.resumed, load=load_problem,
                    signals=signals, contained=contained, observers=observers, aside=task.aside,
                )  # fmt: skip
                if task.replay and not result.code and (text := _difference(task.replay, result.output)):
                    log.error("%s", text)
                    result = replace(result, code=3, error=RunFailed(text), summary="")
        except ConfigError as error:
            result = RunResult(2, error)
        except Contradiction as contradiction:
            log.error("%s", contradiction)
            result = RunResult(3, RunFailed(str(contradiction)))
        except RunFailed as failure:
            result = _failed(failure)
        except Interrupted as interrupted:
            result = RunResult(interrupted.code)
        except BaseException as error:
            if is_from_signal(error):
                raise
            if (lack := lack_of_memory(error)) and comm is None:  # else the other ranks' state is unknown
                result = _failed(RunFailed(lack))
            elif contained and not is_mpi_error(error) and not lack:
                result = _failed(RunFailed(describe_unexpected(error)))
            else:
                raise
        signals.record()  # a signal does not interrupt what follows
        report(result)
        if result.stuck_ranks:
            handshake.kill_stuck_ranks(result.stuck_ranks, result.code)
        handshake.release_ranks(result)
    return result


def _difference(recorded: Run, output: str) -> str:
    """What a replay has computed otherwise than the recorded run, in one line; "" if there is nothing."""
    from mpifl.runfile.reader import open_run
    from mpifl.runfile.replayed import computed_together, first_difference

    with open_run(output) as replay:
        text = first_difference(recorded, replay)
    if text and computed_together(recorded):
        text += "; its clients were computed together (problem.torch.batched), which rounds differently"
    return text and f"{recorded.path}: {text}"


def _failed(error: RunFailed) -> RunResult:
    log.error("the run failed: %s", error)
    return RunResult(3, error)


def _serve(comm: MPI.Intracomm, process_ends: bool) -> RunResult:
    """The part of every rank but 0: hosts clients."""
    from mpifl.client.client_rank import run_client_rank

    with _one_thread():
        return run_client_rank(comm, process_ends)


@contextmanager
def _restored_environment() -> Iterator[None]:
    """Removes the environment variables that libraries are given or set themselves during a run."""
    before = set(os.environ)
    try:
        yield
    finally:
        for name in LIBRARY_VARIABLES:
            if name not in before:
                os.environ.pop(name, None)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limits NumPy to one thread unless the environment sets the number: the last bits of a sum depend on it."""
    if any(name in os.environ for name in THREAD_VARIABLES):
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


@contextmanager
def restored_torch(job: Job) -> Iterator[None]:
    """Restores torch's settings of this process after a run that changes them."""
    if job.problem.torch is None:
        yield
        return
    name = "mpifl.problems.torch.device"
    before = device.settings() if (device := sys.modules.get(name)) else None
    try:
        with warnings.catch_warnings():
            yield
    finally:
        if device := sys.modules.get(name):
            device.restore_settings(before or device.SETTINGS_AT_IMPORT)


# -- the data of a job -------------------------------------------------------------------------------------------------
@contextmanager
def keep_problem() -> Iterator[None]:
    """Keeps the loaded data between the runs of a `with` block.

    A run whose `problem` section equals that of the run before it reuses its data. One problem is kept at a time, and
    none after the block. The data files must not change meanwhile.
    """
    global _kept
    before, _kept = _kept, {}
    try:
        yield
    finally:
        _kept = before


_kept: dict[str, Problem] | None = None  # the problem loaded last, by its section; None: problems are not kept


def load_problem(job: Job) -> Problem:
    """The data of a job, loaded or kept (`keep_problem`). Raises ConfigError where they cannot be read."""
    from mpifl.problems.loading import load

    if _kept is None:
        return load(job.problem)
    key = repr(job.problem)
    if key not in _kept:
        _kept.clear()  # the memory may not hold both
        _kept[key] = load(job.problem)
    return _kept[key]
