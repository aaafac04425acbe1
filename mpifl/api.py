"""Runs jobs and studies, in this process or on all ranks of an MPI job, and opens what they wrote.

Under `mpirun` every rank makes the same calls, in the same order: rank 0 is the server, the others host clients, and
each call returns, or raises the same error, on all of them. Nothing is printed; warnings and errors go to the
logger "mpifl".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifl import execution
from mpifl.errors import ConfigError, RunFailed, RunResult, inside
from mpifl.execution import execute
from mpifl.signals import Interrupted, SignalRecorder
from mpifl.tools.export import observers

if TYPE_CHECKING:
    from mpifl.config.job import Job
    from mpifl.problems import Problem
    from mpifl.tools.analysis.run import Run, Runs
    from mpifl.tools.studies.index import Index
    from mpifl.tools.studies.study import Study
    from mpifl.transport.mpi import MPI


# -- jobs --------------------------------------------------------------------------------------------------------------
def load_job(job: Job | Mapping[str, Any] | str | Path, *overrides: str, **keys: Any) -> Job:
    """Reads and checks a job; returns it with every default filled in.

    Args:
        job: The path of a YAML file, a dict (`Run.config`, for example), or a job.
        overrides: `key=value` as on the command line, applied in order: `"stop.time=3"` sets one key of a section,
            `"stop={time: 3}"` replaces the section.
        keys: Top-level keys with plain values, applied last: `seed=7`; `stop={"time": 3}` replaces the section.

    Raises:
        ConfigError: The job is wrong: the error has the key, its value and what would be right.
    """
    from mpifl.config import read
    from mpifl.config.job import Job

    if isinstance(job, Job):
        return read.load(read.job_to_dict(job), overrides, keys) if overrides or keys else job
    return read.load(job, overrides, keys)


def load_problem(job: Job | Mapping[str, Any] | str | Path, *overrides: str, **keys: Any) -> Problem:
    """Loads the problem of a job: each client's data, the initial model, the evaluation.

    Client i's objective is `mpifl.problems.objective(job.problem, problem.meta, problem.shard(i), i, job.seed)`.

    Args:
        job: As for `load_job`.
        overrides: As for `load_job`.
        keys: As for `load_job`.

    Raises:
        ConfigError: The job is wrong, or its data cannot be read.
    """
    return execution.load_problem(load_job(job, *overrides, **keys))


# -- runs --------------------------------------------------------------------------------------------------------------
def run(
    job: Job | Mapping[str, Any] | str | Path, *overrides: str, comm: MPI.Intracomm | None = None, **keys: Any
) -> Run:
    """Runs a job to its end and returns the open run file.

    An earlier run of the same job in that file, which is not completed, goes on from its checkpoint, or starts anew
    where it has none; the file is then kept under another name.

    Args:
        job: As for `load_job`.
        overrides: As for `load_job`.
        comm: An mpi4py communicator whose ranks run the job; all of them must call this. With a single rank the job
            runs in this process. None: all ranks of the MPI job.
        keys: As for `load_job`.

    Raises:
        ConfigError: The job is wrong; nothing has been computed.
        RunFailed: The run failed.
        KeyboardInterrupt: Ctrl-C or another signal ended the run. Its file is closed with the status "interrupted", and
            `resume` continues it if a checkpoint could be saved. A second Ctrl-C does not wait for that; if a rule may
            have changed the model at that moment, the status is "failed".
    """
    return finished_run(
        execute(lambda: execution.run_task(load_job(job, *overrides, **keys)), comm=comm, observe=observers)
    )


def resume(path: str | Path, *overrides: str, trust: bool = False) -> Run:
    """Continues a run from its newest complete checkpoint, on any number of ranks: an interrupted one, or one that is
    completed, if it is given a later end.

    Returns the open run file. Raises as `run` does.

    Args:
        path: The run file.
        overrides: `"stop.updates=200"` and other keys of `stop`, `evaluate.every` or `.updates`, `algorithm.step_size`,
            `log_interval`, `output_tensorboard`, `ranks_per_client`, and keys of `checkpoint` and `memory`: their
            values from here on.
        trust: Import and run the code outside mpifl that the file names (algorithm, `problem.entry`, ...). Only for
            files from sources that you trust.

    Raises:
        ConfigError: The run is completed and no later end is given, is still running, or cannot be continued; or a key
            cannot be changed.
    """
    return finished_run(execute(lambda: execution.resume_task(Path(path), overrides, trust), observe=observers))


def replay(path: str | Path, *overrides: str, trust: bool = False, **keys: Any) -> Run:
    """Runs a recorded run again in its order of events, bit for bit.

    Returns the new run file, open. Raises as `run` does, and RunFailed where a row or the model differs from the
    recorded run's.

    Args:
        path: The recorded run file.
        overrides: `output=FILE.h5`, by default NAME-replay.h5 beside the recorded file, `overwrite=true`,
            `ranks_per_client`, and keys of `memory`.
        trust: As for `resume`.
        keys: `output`, `overwrite`, `ranks_per_client` and `memory` as plain values.
    """
    return finished_run(execute(lambda: execution.replay_task(Path(path), overrides, keys, trust), observe=observers))


def open_run(path: str | Path) -> Run:
    """Opens a run file, at any instant: finished, being written, or left by a killed run.

    Args:
        path: The run file.

    Raises:
        ConfigError: There is no such file, or it cannot be read.
    """
    from mpifl.tools.analysis.run import Run

    return Run(path)


def open_runs(paths: str | Path | Sequence[str | Path]) -> Runs:
    """Opens several run files as one table of each kind.

    Args:
        paths: A file, a pattern like `"results/*.h5"`, a folder, or a list of these.

    Raises:
        ConfigError: There is no such file, or one cannot be read.
    """
    from mpifl.tools.analysis.run import Runs, find_runs

    return Runs(find_runs(paths))


# -- studies -----------------------------------------------------------------------------------------------------------
def load_study(path: str | Path, *overrides: str) -> Study:
    """Reads and checks a study file; returns the study with the jobs of all its runs.

    Args:
        path: The YAML file.
        overrides: `key=value` as on the command line: `"trials=3"`, `"set.stop.time=1"`, `"output=elsewhere"`.

    Raises:
        ConfigError: The study, its base job or one of its runs is wrong: the error has the key, its value and what
            would be right.
    """
    from mpifl.tools.studies import study

    return study.load_study(path, overrides)


def sweep(
    study: Study | str | Path, processes: int | None = None, *, part: str | None = None,
    progress: Callable[[str], None] | None = None, stop_on_failure: bool = False,
) -> Index:  # fmt: skip
    """Runs the missing runs of a study, several at a time, as `mpifl sweep` does; returns the study's index.

    Completed runs are kept, interrupted ones continue from their checkpoints where they have any, and failed ones are
    tried again as often as `retries` says. Under `mpirun` every rank calls it, and the runs are computed by all ranks
    but 0.

    Args:
        study: The study, or the path of its file.
        processes: Runs at a time on this machine; None: as many as there are cores for their ranks. Not under
            `mpirun`.
        part: "K/N": only runs K, K + N, K + 2N, ... (K from 0 to N - 1), as one of N batch tasks.
        progress: Called on rank 0 with a line on the state of the study, whenever a run begins or ends and every few
            seconds; with an empty line before a message is logged, and at the end.
        stop_on_failure: Begin no other run once one has failed as often as `retries` allows; those under way go on.

    Returns:
        The index: `index.entries` has the runs by identity, each with `file`, `labels`, `seed`, `status`
            ("completed", "failed", ...), `seconds`, `attempts` and `error`; `index.counts()` counts them by status.
            Runs that have failed do not raise an error.

    Raises:
        ConfigError: The study is wrong, or another process is running it.
        RunFailed: The index could not be written.
        KeyboardInterrupt: Ctrl-C or another signal ended the sweep, after its runs have saved their checkpoints.
    """
    from mpifl.tools.studies import sweep as sweeps
    from mpifl.tools.studies.index import Index
    from mpifl.tools.studies.study import Study
    from mpifl.tools.studies.study_slices import Part
    from mpifl.transport.launcher import broadcast_number, communicator, run_or_abort

    loaded = study if isinstance(study, Study) else load_study(study)
    mine = Part.parse(part) if part else None
    comm = communicator()
    if comm is None:
        with SignalRecorder():
            return sweeps.sweep(loaded, processes, progress, part=mine, stop_on_failure=stop_on_failure)
    if processes is not None:
        wrong = "under mpirun each rank but 0, or group of `ranks`, computes one run at a time"
        raise ConfigError("processes", processes, wrong, "None")
    index: Index | None = None
    error: ConfigError | RunFailed | Interrupted | None = None
    try:
        write = progress or (lambda line: None)
        index = run_or_abort(comm, lambda: sweeps.sweep_on_ranks(comm, lambda: loaded, write, mine, stop_on_failure))
    except (ConfigError, RunFailed, Interrupted) as raised:
        error = raised
    code = broadcast_number(comm, error.code if isinstance(error, Interrupted) else 3 if error else 0)
    if error:
        raise error
    if code:
        raise Interrupted(code) if code >= 128 else RunFailed("rank 0 could not run the study")
    return index or Index(loaded)


# -- what the command line uses as well --------------------------------------------------------------------------------
def job_yaml(job: Job, load_data: bool = False) -> str:
    """A job as YAML, complete, with bounds and allowed values as comments; as a file it loads to an equal job.

    load_data: read the data as well, and add what it holds as a comment. Raises ConfigError where it cannot be read.
    """
    from mpifl.config.listing import annotated_yaml
    from mpifl.host_memory import resident_bytes
    from mpifl.problems.loading import check_optimizer
    from mpifl.server.evaluation_metrics import check_evaluation, load_metrics

    process = resident_bytes()
    problem = execution.load_problem(job) if load_data else None
    load_metrics(job.evaluate.metrics)
    if optimizer := job.algorithm.torch_optimizer():
        with inside("algorithm.solver"):
            check_optimizer(job.problem, optimizer)
    if problem:
        job.check_clients(problem.offers)
        check_evaluation(job, problem)
        problem.check_batches(job.algorithm.passes_over_rows())
    notes = [_memory_note(job, problem, process)]
    if problem and problem.offers is not None:
        notes.append(_trial_note(job, problem))
    if (g := job.ranks_per_client) > 1:
        notes.append(f"ranks: the server, and {g} for each group of clients: {1 + g}, {1 + 2 * g}, {1 + 3 * g}, ...")
    if (folder := job.memory.folder) is not None and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        notes.append(f"memory.folder: on this host {folder} is not a folder in which a file can be made")
    return annotated_yaml(job, problem, notes)


def _memory_note(job: Job, problem: Problem | None, process: int) -> str:
    """The estimated memory of a run in one process, and what this host has free, in one line.

    process: bytes of this process before it loaded the data.
    """
    from mpifl.host_memory import available_memory, memory_limits
    from mpifl.server.memory_estimate import estimate, gigabytes, problem_size, small_kept_vectors

    if (size := problem_size(job, problem)) is None:
        return "memory: --data estimates it, since the data alone tell what they hold"
    with inside("algorithm"):
        kept = small_kept_vectors(job, size.clients)
    text = estimate(job, size, kept=kept).describe(process)
    return f"memory: {text}" + (f"; free here: {gigabytes(available_memory())}" if memory_limits() else "")


def _trial_note(job: Job, problem: Problem) -> str:
    """Whether a contact of a client with a training loop of its own repeats, in one line. Raises ConfigError."""
    from mpifl.problems.loading import host
    from mpifl.problems.own_training import describe_trial
    from mpifl.problems.problem import ComputeResources

    with execution.restored_torch(job):
        model, settings, first = job.problem.model, job.problem.settings, {0: problem.shard(0)}
        own = ComputeResources()
        hosted = host(model, settings, problem.meta, first, job.seed, own, patience=job.faults.patience)
    return describe_trial(hosted.facts)


# -- the end -----------------------------------------------------------------------------------------------------------
def finished_run(result: RunResult) -> Run:
    """The run file of a run. Raises RunFailed, or Interrupted, where it is not completed."""
    if result.status == "failed":
        raise RunFailed(str(result.error))
    if result.status == "interrupted":
        raise Interrupted(result.code, result.summary or str(result.error or ""))
    return open_run(result.output)
