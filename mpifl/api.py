"""Runs jobs, in this process or on all ranks of an MPI job, and opens what they wrote.

Under `mpirun` every rank makes the same calls, in the same order: rank 0 is the server, the others host clients, and
each call returns, or raises the same error, on all of them. Nothing is printed; warnings and errors go to the
logger "mpifl".
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mpifl.errors import ConfigError, Contradiction, RunFailed, describe_unexpected, inside
from mpifl.server.outcome import Outcome
from mpifl.signals import Interrupted, SignalRecorder

if TYPE_CHECKING:
    from mpifl.analysis.run import Run, Runs
    from mpifl.config.job import Job
    from mpifl.problems import Problem
    from mpifl.server.resume import ResumePoint
    from mpifl.server.session import RowsObserver
    from mpifl.storage import Run as RunFile
    from mpifl.transport.handshake import Handshake
    from mpifl.transport.mpi import MPI

log = logging.getLogger("mpifl")
log.addHandler(logging.NullHandler())
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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

    Client i's objective is `job.problem.model.objective(job.problem.settings, problem.meta, problem.shard(i), i,
    job.seed)`.

    Args:
        job: As for `load_job`.
        overrides: As for `load_job`.
        keys: As for `load_job`.

    Raises:
        ConfigError: The job is wrong, or its data cannot be read.
    """
    return _load_problem(load_job(job, *overrides, **keys))


# -- runs --------------------------------------------------------------------------------------------------------------
def run(
    job: Job | Mapping[str, Any] | str | Path, *overrides: str, comm: MPI.Intracomm | None = None, **keys: Any
) -> Run:
    """Runs a job to its end and returns the open run file.

    Args:
        job: As for `load_job`.
        overrides: As for `load_job`.
        comm: An mpi4py communicator whose ranks run the job, and all call this; one with a single rank runs it in this
            process. None: all ranks of the MPI job.
        keys: As for `load_job`.

    Raises:
        ConfigError: The job is wrong; nothing has been computed.
        RunFailed: The run failed.
        KeyboardInterrupt: Ctrl-C or another signal ended the run. Its file is closed with the status "interrupted", and
            `resume` continues it if a checkpoint could be saved. A second Ctrl-C does not wait for that.
    """
    return finished_run(execute(lambda: Task(load_job(job, *overrides, **keys)), comm=comm))


def resume(path: str | Path, trust: bool = False) -> Run:
    """Continues an interrupted run from its newest complete checkpoint, on any number of ranks.

    Returns the open run file. Raises as `run` does.

    Args:
        path: The run file.
        trust: Import and run the code outside mpifl that the file names (algorithm, `problem.entry`, ...). Only for
            files from sources that you trust.

    Raises:
        ConfigError: The run is completed, still running, or has no checkpoint.
    """
    return finished_run(execute(lambda: resume_task(Path(path), trust=trust)))


def replay(path: str | Path, *overrides: str, trust: bool = False, **keys: Any) -> Run:
    """Runs a recorded run again in its order of events, bit for bit.

    Returns the new run file, open. Raises as `run` does.

    Args:
        path: The recorded run file.
        overrides: `output=FILE.h5`, by default NAME-replay.h5 beside the recorded file, `overwrite=true`, and keys of
            `memory`.
        trust: As for `resume`.
        keys: `output`, `overwrite` and `memory` as plain values.
    """
    return finished_run(execute(lambda: replay_task(Path(path), overrides, keys, trust)))


def open_run(path: str | Path) -> Run:
    """Opens a run file, at any instant: finished, being written, or left by a killed run.

    Args:
        path: The run file.

    Raises:
        ConfigError: There is no such file, or it cannot be read.
    """
    from mpifl.analysis.run import Run

    return Run(path)


def open_runs(paths: str | Path | Sequence[str | Path]) -> Runs:
    """Opens several run files as one table of each kind.

    Args:
        paths: A file, a pattern like `"results/*.h5"`, a folder, or a list of these.

    Raises:
        ConfigError: There is no such file, or one cannot be read.
    """
    from mpifl.analysis.run import Runs, find_runs

    return Runs(find_runs(paths))


def export_run(path: str | Path, to: str, out: str | Path | None = None, overwrite: bool = False) -> list[Path]:
    """Writes a run file in the format of another tool; returns the files that it wrote.

    Args:
        path: The run file.
        to: "csv", "parquet", "tensorboard", "safetensors" or "torch".
        out: The file, or for the first three formats the folder; None: beside the run file.
        overwrite: Replace files of an earlier export.

    Raises:
        ConfigError: The run file cannot be read or lacks what the format holds, a file exists, or the package that
            writes the format is not installed.
    """
    from mpifl.export import files

    return files.export_run(path, to, out, overwrite)


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


_kept: dict[str, Problem] | None = None  # the problem loaded last, by its section; None: not to be kept


def _load_problem(job: Job) -> Problem:
    from mpifl.problems import load

    if _kept is None:
        return load(job.problem)
    key = repr(job.problem)
    if key not in _kept:
        _kept.clear()  # before the next is loaded: both may not fit into memory
        _kept[key] = load(job.problem)
    return _kept[key]


# -- what the command line uses as well --------------------------------------------------------------------------------
def job_yaml(job: Job, load_data: bool = False) -> str:
    """A job as YAML, complete, with bounds and allowed values as comments; as a file it loads to an equal job.

    load_data: read the data as well, and add what it holds as a comment. Raises ConfigError where it cannot be read.
    """
    from mpifl.config.listing import annotated_yaml
    from mpifl.problems import check_optimizer
    from mpifl.server.metrics import check_evaluation, load_metrics

    problem = _load_problem(job) if load_data else None
    load_metrics(job.evaluate.metrics)
    if optimizer := job.algorithm.torch_optimizer():
        with inside("algorithm.solver"):
            check_optimizer(job.problem, optimizer)
    if problem:
        check_evaluation(job, problem)
    notes = [_memory_note(job, problem)]
    if (folder := job.memory.folder) is not None and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        notes.append(f"memory.folder: on this host {folder} is no folder in which a file can be made")
    return annotated_yaml(job, problem, notes)


def _memory_note(job: Job, problem: Problem | None) -> str:
    """The estimated memory of a run in one process, and what this host has free, in one line."""
    from mpifl.host_memory import memory_limits, resident_bytes
    from mpifl.server.memory_estimate import estimate, gigabytes, problem_size
    from mpifl.server.method_memory import SlowRules

    if (size := problem_size(job, problem)) is None:
        return "memory: --data estimates it, since the data alone tell what they hold"
    try:
        text = estimate(job, size).describe(resident_bytes())
    except SlowRules as slow:
        return f"memory: it cannot be estimated ({slow})"
    except (Exception, SystemExit) as error:  # of the rules of the user's own method
        return f"memory: it cannot be estimated ({describe_unexpected(error)})"
    free = min((limit.free for limit in memory_limits()), default=None)
    return f"memory: {text}" + ("" if free is None else f"; free here: {gigabytes(free)}")


class Task(NamedTuple):
    """A run that all ranks do together."""

    job: Job
    replay: RunFile | None = None  # the run whose order of events is repeated
    resumed: ResumePoint | None = None  # the checkpoint to resume from


def resume_task(path: Path, overrides: Sequence[str] = (), trust: bool | Mapping[str, str] = False) -> Task:
    """The task that resumes a run file. Raises ConfigError for a run that cannot be resumed, or code not trusted.

    trust: Whether all code that the file names is trusted, or the names that are, by key.
    """
    from mpifl.server.resume import find_resume_point

    point = find_resume_point(path, overrides, trust)
    return Task(point.job, resumed=point)


def replay_task(
    path: Path, overrides: Sequence[str] = (), keys: Mapping[str, Any] | None = None, trust: bool = False
) -> Task:
    """The task that replays a run file. Raises ConfigError if that is impossible, or a key changes that may not."""
    from mpifl.config import read
    from mpifl.config.trust import check_sizes
    from mpifl.storage import open_run

    recorded = open_run(path)
    check_sizes(recorded.config, path, len(recorded.clients), recorded.rows("model", "x", 0, None).size)
    facts = json.loads(recorded.attrs.get("compute", "[{}]"))  # of each rank; the last one has clients
    output = path.with_name(f"{path.stem}-replay.h5")
    threads = facts[-1].get("threads") if facts else None
    return Task(read.replayed(recorded.config, output, overrides, keys, threads, path, trust), recorded)


def verify_file(path: Path, replay: bool = False, trust: bool = False) -> str:
    """Checks a run file, and with `replay` repeats the run in this process; what was checked, in one line.

    Raises Contradiction with the first thing that is wrong, ConfigError for what is no run file or cannot be replayed.
    """
    from mpifl.analysis.verify import check_file, compare
    from mpifl.server.start import run_server

    line = check_file(path)
    if not replay:
        return line
    with TemporaryDirectory(prefix="mpifl-verify-") as folder:
        output = Path(folder, "replay.h5")
        task = replay_task(path, keys={"output": output}, trust=trust)
        facts = json.loads(task.replay.attrs.get("compute", "[]")) if task.replay else []
        if any(fact.get("batched") is True for fact in facts):
            text = "a run whose clients were computed one by one, for --replay: problem.torch.batched: false"
            raise ConfigError("verify", path, text)
        try:
            with _restored_torch(task.job):
                outcome = run_server(task.job, replay=task.replay, load=_load_problem)
        except RunFailed as error:
            raise Contradiction(f"{path}: the replay failed: {error}") from error
        if outcome.status != "completed":
            raise Contradiction(f"{path}: the replay failed: {outcome.error}")
        compare(path, output)
    return f"{line}; the replay computed the same"


def execute(
    prepare: Callable[[], Task | None], report: Callable[[Outcome | ConfigError], None] = lambda end: None,
    process_ends: bool = False, comm: MPI.Intracomm | None = None,
) -> Outcome:  # fmt: skip
    """Runs on all ranks the task that rank 0 prepares; returns on every rank how it ended.

    Args:
        prepare: Called on rank 0 alone. None: there is nothing to run.
        report: Called on rank 0 alone, before the other ranks are released.
        process_ends: Whether this process ends with the command (`SignalRecorder`).
        comm: Of these ranks; None: of all ranks of the MPI job.

    Raises:
        ConfigError: On all ranks. An unexpected error passes in one process, and ends all ranks under MPI; but on a
            communicator that is given it fails the run alone, where MPI has not failed.
    """
    from mpifl.transport.launcher import communicator, run_or_abort

    contained = comm is not None
    comm = communicator() if comm is None else comm if comm.size > 1 else None
    if comm is not None and comm.rank > 0:
        return run_or_abort(comm, lambda: _serve(comm, process_ends))
    from mpifl.transport.handshake import Handshake

    if comm is None:
        return _lead(prepare, report, Handshake(), process_ends)
    return run_or_abort(comm, lambda: _lead(prepare, report, Handshake(comm), process_ends, contained))


def _lead(
    prepare: Callable[[], Task | None], report: Callable[[Outcome | ConfigError], None], handshake: Handshake,
    process_ends: bool, contained: bool = False,
) -> Outcome:  # fmt: skip
    """Rank 0's part: however it ends, the other ranks are released. contained: also by an unexpected error."""
    from mpifl.server.start import run_server
    from mpifl.transport.launcher import is_mpi_error

    outcome = Outcome("", "completed", 0, "")
    error: ConfigError | RunFailed | None = None
    with SignalRecorder(process_ends) as signals, _one_thread(), ExitStack() as stack:
        try:
            if task := prepare():
                observers = _observers(task)
                stack.enter_context(_restored_torch(task.job))
                outcome = run_server(
                    task.job, handshake, replay=task.replay, resumed=task.resumed, load=_load_problem,
                    signals=signals, contained=contained, observers=observers,
                )  # fmt: skip
        except ConfigError as wrong:
            error = wrong
        except Contradiction as contradiction:
            log.error("%s", contradiction)
            outcome = Outcome("", "failed", 3, "", str(contradiction))
        except (RunFailed, MemoryError) as failure:
            if isinstance(failure, MemoryError):
                if handshake.comm:  # the state of the other ranks is unknown
                    raise
                failure = RunFailed(f"out of memory ({failure})")
            log.error("the run failed: %s", failure)
            outcome = Outcome("", "failed", 3, "", str(failure))
        except Interrupted as interrupted:
            outcome = Outcome("", "interrupted", interrupted.code, "")
        except (Exception, SystemExit) as unexpected:
            if not contained or is_mpi_error(unexpected):
                raise
            outcome = Outcome("", "failed", 3, "", describe_unexpected(unexpected))
            log.error("the run failed: %s", outcome.error)
        signals.record()  # a signal does not interrupt what follows
        if outcome.error:
            error = RunFailed(outcome.error)
        report(error if isinstance(error, ConfigError) else outcome)
        if outcome.stuck:
            handshake.kill_stuck_ranks(outcome.stuck, outcome.code)
        handshake.release_ranks(2 if isinstance(error, ConfigError) else outcome.code, error, outcome.stuck)
    if isinstance(error, ConfigError):
        raise error
    return outcome


def _observers(task: Task) -> Sequence[RowsObserver]:
    """What watches the run from outside the core. Raises ConfigError before data are loaded."""
    if not task.job.output_tensorboard:
        return ()
    from mpifl.export.live import LiveScalars, check_output

    check_output(task.job.output, replaced=task.job.overwrite or task.resumed is not None)
    return [LiveScalars(task.job.output)]


def _serve(comm: MPI.Comm, process_ends: bool) -> Outcome:
    """The part of every rank but 0: hosts clients."""
    from mpifl.client.rank import run_client_rank

    with _one_thread():
        end = run_client_rank(comm, process_ends)
    if isinstance(end.error, ConfigError):
        raise end.error
    status = {0: "completed", 3: "failed"}.get(end.code, "interrupted")
    if end.dead:
        log.error("%s", end.dead)
    return Outcome(end.output, status, end.code, "", str(end.error or ""))


def _one_thread() -> AbstractContextManager[object]:
    """Limits NumPy to one thread unless the environment sets the number: the last bits of a sum depend on it."""
    if any(name in os.environ for name in THREADS):
        return nullcontext()
    from threadpoolctl import threadpool_limits

    return cast(AbstractContextManager[object], threadpool_limits(1, user_api="blas"))


def _restored_torch(job: Job) -> AbstractContextManager[object]:
    """Restores torch's settings of this process after a run that changes them."""
    if job.problem.torch is None or find_spec("torch") is None:
        return nullcontext()
    import mpifl.problems.torch  # noqa: F401 - before torch: it sets what torch reads when it starts
    from mpifl.problems.torch.device import restored_settings

    return restored_settings()


# -- the end -----------------------------------------------------------------------------------------------------------
def finished_run(outcome: Outcome) -> Run:
    """The run file of a run. Raises RunFailed, or Interrupted, where it is not completed."""
    if outcome.status == "failed":
        raise RunFailed(outcome.error)
    if outcome.status == "interrupted":
        raise Interrupted(outcome.code, outcome.summary or outcome.error)
    if outcome.summary:
        return open_run(outcome.output)
    return cast("Run", _UnopenedRun(outcome.output))


class _UnopenedRun:
    """The run on a rank that hosts clients: a `Run` for isinstance, and in every respect once it is used.

    Until then the rank needs neither h5py nor pandas.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        from mpifl.analysis.run import Run

        return Run

    def _open(self) -> Run:
        run = open_run(self.path)
        object.__dict__["__class__"].__set__(self, type(run))
        vars(self).update(vars(run))
        return cast("Run", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._open(), name)

    def __enter__(self) -> Run:
        return self._open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open yet."""

    def __repr__(self) -> str:
        return repr(self._open())
