"""Starts a run on rank 0: loads the problem, sends ranks their clients, opens the run file, runs the server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.algorithms.base import Clients, State
from mpifl.errors import inside
from mpifl.scheduling.delays import Parts, Seconds
from mpifl.scheduling.live import LiveSchedule, RealClock, VirtualClock
from mpifl.scheduling.replay import ReplaySchedule
from mpifl.signals import SignalRecorder
from mpifl.transport.handshake import Handshake, rank_resources

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpifl.config.job import Job
    from mpifl.problems import Problem
    from mpifl.server.outcome import Outcome
    from mpifl.server.resume import ResumePoint
    from mpifl.storage import Run
    from mpifl.transport.base import ServerTransport


def run_server(
    job: Job, handshake: Handshake | None = None, *, replay: Run | None = None, resumed: ResumePoint | None = None,
    problem: Problem | None = None, signals: SignalRecorder | None = None,
) -> Outcome:  # fmt: skip
    """Runs a job, repeats a recorded run, or resumes an interrupted one.

    The caller ends ranks that are stuck. Raises ConfigError before the run starts; the other ranks are then still to be
    released. `problem` saves the loading where several jobs share it; `signals` end the run.
    """
    from mpifl.config.job import job_to_dict
    from mpifl.problems import ComputeResources, load
    from mpifl.server.in_process import Here
    from mpifl.server.provenance import attributes
    from mpifl.server.session import Session
    from mpifl.storage import RunWriter
    from mpifl.storage.create import refuse_existing

    handshake = handshake or Handshake()
    comm = handshake.comm
    problem = problem or load(job.problem)
    x0 = problem.initial(job.seed)
    n = problem.clients
    with inside("clock.delay"):
        rates = job.clock.delay.rates(n, job.seed)
        delays = job.clock.delay.bind(n, job.seed), job.clock.delay.parts(n, job.seed)
    if comm:
        from mpifl.transport.mpi import tags

        tags(comm, n)
    clients = Clients(problem.samples, rates, job.seed)
    with inside("algorithm"):
        job.algorithm.validate(n)  # data that come by client say only now how many there are
    if resumed:
        server = State.load(resumed.snapshot.algorithm)
    else:
        with inside("algorithm"):
            server = job.algorithm.init_server(x0, clients)
    schedule: LiveSchedule | ReplaySchedule
    if replay:
        trigger = job.algorithm.aggregation_trigger()
        schedule = ReplaySchedule.from_run(replay, timed=trigger is not None and trigger.timed)
    else:
        schedule = _live_schedule(job, delays)
    if resumed and isinstance(schedule, LiveSchedule):
        schedule.load(resumed.snapshot.schedule)
    else:
        refuse_existing(Path(job.output), job.overwrite)
    hellos = handshake.gather_hellos()
    resources = ComputeResources(*rank_resources(hellos)[0])
    payload = resumed.payload() if resumed else None
    facts: list[Any] = [dict(problem.prepare(resources))]
    if comm is None:
        here = Here(job, problem, x0, resources, payload)
        facts = [here.facts]
    else:
        saved = payload.to_dict() if payload else None
        facts += handshake.scatter_clients(job_to_dict(job), problem.meta, x0, n, problem.shard, saved)
    columns = {
        "samples": problem.samples,
        "rate": rates if rates is not None else np.full(n, np.nan),
        "rank": 1 + np.arange(n) % (comm.size - 1) if comm else np.zeros(n, int),
    }
    hosts = [hello.host for hello in hellos]
    attrs = attributes(job, "replay" if replay else job.clock.mode, n, comm, hosts, facts)
    file: dict[str, Any] = {"attrs": attrs, "clients": columns, "layout": problem.layout}
    if resumed:
        snapshot, model = resumed.snapshot, job.algorithm.model(server)
        writer = RunWriter.resumed(
            job.output, **file, x=model, version=snapshot.loop.version, number=snapshot.number, counts=snapshot.rows,
            states=snapshot.loop.clients.state, found=resumed.session,
        )  # fmt: skip
    else:
        writer = RunWriter(job.output, **file, x0=x0, overwrite=job.overwrite)
    signals = signals or SignalRecorder()
    signals.record()  # before the ranks start
    handshake.start_ranks()
    link: ServerTransport = here if comm is None else _there(comm, job, problem, x0)
    session = Session(job, problem, server, clients, link, schedule, writer, resumed, signals)
    return session.run()


def _there(comm: MPI.Comm, job: Job, problem: Problem, x0: np.ndarray) -> ServerTransport:
    from mpifl.server.mpi_ranks import There

    return There(comm, job, problem, x0)


def _live_schedule(job: Job, delays: tuple[Seconds, Parts | None]) -> LiveSchedule:
    clock = RealClock(*delays) if job.clock.mode == "real" else VirtualClock(*delays)
    return LiveSchedule(
        clock, job.algorithm.aggregation_trigger(), job.seed, stop_time=job.stop.time, stop_updates=job.stop.updates,
        evaluate_every=job.evaluate.every, evaluate_updates=job.evaluate.updates,
        checkpoint_every=job.checkpoint.every, checkpoint_updates=job.checkpoint.updates,
    )  # fmt: skip
