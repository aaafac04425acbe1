"""Starts a run on rank 0: loads the problem, sends each rank its clients, opens the run file, runs the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl import problems
from mpifl.algorithms.base import Algorithm, Clients, State, checked_state
from mpifl.client import checkpointing
from mpifl.client.worker import Worker
from mpifl.config.job import Job
from mpifl.config.own_classes import check_class
from mpifl.config.read import job_to_dict, to_yaml
from mpifl.errors import RunResult, describe_unexpected, inside
from mpifl.problems import ComputeResources, Problem
from mpifl.problems.loading import host
from mpifl.runfile.checkpoint_folder import folder_of
from mpifl.runfile.create import Start, make_folder, refuse_existing, refuse_live
from mpifl.runfile.reader import Run
from mpifl.runfile.run_lock import is_locked
from mpifl.runfile.tables import EventRow
from mpifl.runfile.writer import RunWriter
from mpifl.scheduling.availability import NextOn, checked_periods
from mpifl.scheduling.clocks import Clock, RealClock, VirtualClock
from mpifl.scheduling.delays import ContactTimes, SplitTimes, checked_times
from mpifl.scheduling.live_schedule import LiveSchedule
from mpifl.scheduling.polls import StepsSoFar, exchange_times
from mpifl.scheduling.replayed_schedule import ReplaySchedule
from mpifl.scheduling.timeline import Timeline
from mpifl.server.evaluation_metrics import check_evaluation, load_metrics
from mpifl.server.memory_estimate import check_memory, kept_vectors, problem_size
from mpifl.server.resume import ResumePoint
from mpifl.server.run_log import log_start
from mpifl.server.session import RowsObserver, Session
from mpifl.signals import SignalRecorder
from mpifl.transport.client_end import max_vectors
from mpifl.transport.handshake import Handshake, rank_resources
from mpifl.transport.in_process import InProcessTransport
from mpifl.transport.layout import Layout
from mpifl.transport.server_end import ServerTransport
from mpifl.version import source

if TYPE_CHECKING:
    from mpifl.transport.mpi import MPI


def run_server(
    job: Job, handshake: Handshake | None = None, *, replay: Run | None = None, resumed: ResumePoint | None = None,
    load: Callable[[Job], Problem] | None = None, signals: SignalRecorder | None = None, contained: bool = False,
    observers: Sequence[RowsObserver] = (), aside: Path | None = None,
) -> RunResult:  # fmt: skip
    """Runs a job, repeats a recorded run, or resumes an interrupted one.

    Raises ConfigError before the run starts. In any case the caller releases the other ranks, and ends those that are
    stuck. `load`: returns the job's problem, which may have been loaded before. `signals`: end the run.
    `contained`: an unexpected error of the server is a failure of the run, after which all ranks go on.
    `observers`: get the rows that the run file gets. `aside`: the name under which the present run file is kept.
    """
    handshake = handshake or Handshake()
    comm = handshake.comm
    hellos = handshake.gather_hellos()
    layout = Layout(len(hellos), job.ranks_per_client).check()
    handshake.send_job(job_to_dict(job))
    # What can be refused without the data is refused before they are loaded.
    with inside("algorithm"):
        check_class(type(job.algorithm), Algorithm)
    load_metrics(job.evaluate.metrics)
    if known := problem_size(job):
        check_memory(job, known, hellos)
    timing = _timing(job, job.problem.clients) if job.problem.clients else None
    if not resumed:
        refuse_existing(Path(job.output), job.overwrite or aside is not None)
        if job.overwrite:
            refuse_live(Path(job.output))
    problem = load(job) if load else problems.load(job.problem)
    x0 = problem.initial(job.seed)
    job.check_clients(problem.offers)
    problem.check_batches(job.algorithm.passes_over_rows())
    n = problem.clients
    rates, delays, next_on = timing or _timing(job, n)
    restart = job.clock.availability.interrupted == "restart"
    timeline = Timeline(next_on, n, restart) if next_on else None
    progress = None
    if job.algorithm.polls:
        progress, delays = StepsSoFar(*delays, timeline), exchange_times(delays[1])
    if job.stop.updates and rates is not None:
        job.check_duration(min(job.stop.time or np.inf, job.stop.updates / rates.sum()))
    if comm:
        from mpifl.transport.mpi import check_tags

        check_tags(comm, n)
    clients = Clients(problem.samples, _rates_while_on(job, rates, n), job.seed)
    with inside("algorithm"):
        job.algorithm.validate(n)  # n is known only now if the data come partitioned
        if resumed:
            server = State.load(resumed.snapshot.algorithm)
        else:
            server = checked_state(job.algorithm, "init_server", job.algorithm.init_server(x0, clients))
        if job.memory.check:
            kept = kept_vectors(job, server, x0, 0 if resumed else n)  # a resumed server has its vectors
            check_memory(job, known or problem_size(job, problem), hellos, kept)
    schedule: LiveSchedule | ReplaySchedule
    if replay:
        trigger = job.algorithm.aggregation_trigger()
        schedule = ReplaySchedule.from_run(replay, trigger is not None and trigger.timed, timeline, progress)
    else:
        schedule = _live_schedule(job, delays, timeline, progress)
    if resumed and isinstance(schedule, LiveSchedule):
        schedule.load(resumed.snapshot.schedule)
    resources = problems.ComputeResources(*rank_resources(hellos)[0])
    payload = resumed.payload() if resumed else None
    facts: list[Any] = [dict(problem.prepare(resources))]
    check_evaluation(job, problem)
    if job.memory.client_states is not None and not job.memory.folder:  # the ranks' files are beside the run file
        make_folder(Path(job.output))
    if comm is None:
        in_process, compute = _host_in_process(job, problem, x0, resources, payload)
        facts = [compute]
    else:
        resume = payload._asdict() if payload else None
        facts += handshake.scatter_clients(problem.meta, x0, n, problem.shard, layout, resume)
    hosts = [hello.host for hello in hellos]
    attrs = _attributes(job, "replay" if replay else job.clock.mode, n, comm, hosts, facts)
    signals = signals or SignalRecorder()
    signals.record()  # a run whose file is there ends with a checkpoint
    writer = _open_run_file(job, problem, x0, rates, server, attrs, layout, resumed, aside)
    origin = f"resumed from checkpoint {resumed.snapshot.number}" if resumed else ""
    log_start(job, problem, attrs, f"replay of {replay.path}" if replay else origin)
    handshake.start_ranks()
    transport: ServerTransport
    transport = in_process if comm is None else _connect_ranks(comm, layout, job, problem, x0)
    try:
        session = Session(
            job=job, problem=problem, clients=clients, server=server, schedule=schedule, transport=transport,
            writer=writer, signals=signals, resumed=resumed, end_process=handshake.end_process, contained=contained,
            observers=observers,
        )  # fmt: skip
    except BaseException as error:  # the ranks wait for messages, and the run file is open
        time = resumed.snapshot.time if resumed else 0.0
        try:
            writer.append(EventRow(time, "failed", -1, describe_unexpected(error)))
            writer.close("failed", None)
        finally:
            transport.shut_down(job.faults.patience or inf)
        raise
    return session.run()


def _attributes(
    job: Job, clock: str, clients: int, comm: MPI.Comm | None, hosts: list[str], facts: list[Any]
) -> dict[str, Any]:
    """The run file's root attributes that are known at its start; facts: the compute resources of each rank."""
    library = "none"
    if comm:
        from mpifl.transport.mpi import MPI

        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
    return {
        "mpifl_version": source().version,
        "name": job.name,
        "algorithm": job_to_dict(job)["algorithm"]["name"],
        "config": to_yaml(job),
        "seed": job.seed,
        "clock": clock,
        "clients": clients,
        "ranks": comm.size if comm else 1,
        "hosts": json.dumps(hosts),
        "mpi": library,
        "git_commit": source().commit,
        **({"compute": json.dumps(facts)} if any(facts) else {}),
    }


def _timing(job: Job, n: int) -> tuple[np.ndarray | None, tuple[ContactTimes, SplitTimes | None], NextOn | None]:
    """The clients' rates, their contact times, and when they are on, by delay and availability model; ConfigError."""
    with inside("clock.delay"):
        rates, delays = job.clock.delay.rates(n, job.seed), checked_times(job.clock.delay, n, job.seed)
    with inside("clock.availability"):
        return rates, delays, checked_periods(job.clock.availability, n, job.seed)


def _rates_while_on(job: Job, rates: np.ndarray | None, n: int) -> np.ndarray | None:
    """(n,) contacts a second over on and off periods: rate times fraction on, if off periods pause contacts.

    None: the delay model or the availability gives none.
    """
    availability = job.clock.availability
    fractions = availability.fractions(n)
    if rates is None or fractions is None or availability.interrupted == "restart":
        return None
    return rates * fractions


def _host_in_process(
    job: Job, problem: Problem, x0: np.ndarray, resources: ComputeResources, payload: checkpointing.ResumePayload | None
) -> tuple[InProcessTransport, Mapping[str, Any]]:
    """A transport to clients in this process, and the run file's facts on their computing. Raises ConfigError."""
    model, settings, patience = job.problem.model, job.problem.settings, job.faults.patience
    shards = {i: problem.shard(i) for i in range(problem.clients)}
    hosted = host(model, settings, problem.meta, shards, job.seed, resources, patience=patience)
    worker = Worker(
        job.algorithm, x0, hosted.objectives, hosted.train_batch, hosted.memory, norm=job.faults.norm,
        limit=job.memory.client_states, folder=job.states_folder,
    )  # fmt: skip
    transport = InProcessTransport(worker, problem.clients)
    checkpointing.attach_checkpoints(transport, worker, folder_of(Path(job.output)), rank=1)
    if payload:
        checkpointing.resume(worker, payload)
    return transport, hosted.facts


def _connect_ranks(comm: MPI.Comm, layout: Layout, job: Job, problem: Problem, x0: np.ndarray) -> ServerTransport:
    """A transport to the clients on the other ranks."""
    from mpifl.transport.mpi_server import MPIServerTransport

    vectors, sharded = max_vectors(job.algorithm), bool(problem.meta.get("sharded"))
    return MPIServerTransport(comm, problem.clients, x0.size, x0.dtype, vectors, problem.shard, layout, sharded)


def _open_run_file(
    job: Job, problem: Problem, x0: np.ndarray, rates: np.ndarray | None, server: State, attrs: dict[str, Any],
    layout: Layout, resumed: ResumePoint | None, aside: Path | None,
) -> RunWriter:  # fmt: skip
    """A new run file, or the one of the resumed run with the rows up to its checkpoint. Raises ConfigError."""
    columns = {"samples": problem.samples, "rate": rates, "rank": layout.home(np.arange(problem.clients))}
    module, best = problem.module_state(), job.keep.best is not None
    if resumed is None:
        if job.overwrite and is_locked(Path(job.output)):  # a reader or a run that began meanwhile has locked it
            refuse_live(Path(job.output))
        start = Start(attrs, columns, x0, problem.layout, module=module, best=best)
        return RunWriter(job.output, start, job.overwrite, aside)
    snapshot = resumed.snapshot
    kept = {"id": snapshot.run, "started": snapshot.started, "began": snapshot.began, "resumed_from": snapshot.number}
    start = Start(
        {**attrs, **kept}, columns, job.algorithm.model(server), problem.layout, snapshot.loop.version,
        snapshot.loop.clients.state, module, best,
    )  # fmt: skip
    return RunWriter.resumed(job.output, start, resumed.checkpoint.rows(), resumed.session, resumed.aside)


def _live_schedule(
    job: Job, delays: tuple[ContactTimes, SplitTimes | None], timeline: Timeline | None, progress: StepsSoFar | None
) -> LiveSchedule:  # fmt: skip
    clock: Clock = (VirtualClock if job.clock.mode == "virtual" else RealClock)(*delays, timeline)
    return LiveSchedule(
        clock, job.algorithm.aggregation_trigger(), job.seed, stop_time=job.stop.time, stop_updates=job.stop.updates,
        evaluate_every=job.evaluate.every, evaluate_updates=job.evaluate.updates,
        checkpoint_every=job.checkpoint.every, checkpoint_updates=job.checkpoint.updates,
        checkpoint_end=job.checkpoint.end, progress=progress,
    )  # fmt: skip
