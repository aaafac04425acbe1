"""Starts a run on rank 0: loads the problem, sends ranks their clients, opens the run file, runs the server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.algorithms.base import Clients, State
from mpifl.errors import ConfigError, inside
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import Parts, Seconds
from mpifl.scheduling.schedule import ClientIncident, LiveSchedule, ReplaySchedule
from mpifl.signals import SignalRecorder
from mpifl.transport.handshake import Handshake, rank_resources

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpifl.config.job import Job
    from mpifl.problems import Problem
    from mpifl.server.outcome import Outcome
    from mpifl.server.session import Ends
    from mpifl.storage import Run
    from mpifl.storage.checkpoint_set import Checkpoint


def run_server(
    job: Job, handshake: Handshake | None = None, *, replay: Run | None = None, saved: Checkpoint | None = None,
    problem: Problem | None = None, signals: SignalRecorder | None = None,
) -> Outcome:  # fmt: skip
    """Runs a job, repeats a recorded run, or resumes an interrupted one.

    The caller ends ranks that are stuck. Raises ConfigError before the run starts; the other ranks are then still to be
    released. `problem` saves the loading where several jobs share it; `signals` end the run.
    """
    from mpifl.config.job import job_to_dict
    from mpifl.problems import Place, load
    from mpifl.server.in_process import Here, to_go_on
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
    if saved:
        server = _server_state(saved)
    else:
        with inside("algorithm"):
            server = job.algorithm.init_server(x0, clients)
    schedule = _replay_schedule(job, replay) if replay else _live_schedule(job, delays)
    if saved and isinstance(schedule, LiveSchedule):
        schedule.load(saved.facts["schedule"])
    else:
        refuse_existing(Path(job.output), job.overwrite)
    hellos = handshake.gather_hellos()
    place = Place(*rank_resources(hellos)[0])
    facts: list[Any] = [dict(problem.prepare(place))]
    if comm is None:
        here = Here(job, problem, x0, place, saved)
        facts = [here.facts]
    else:
        facts += handshake.scatter_clients(job_to_dict(job), problem.meta, x0, n, problem.shard, to_go_on(job, saved))
    columns = {
        "samples": problem.samples,
        "rate": rates if rates is not None else np.full(n, np.nan),
        "rank": 1 + np.arange(n) % (comm.size - 1) if comm else np.zeros(n, int),
    }
    hosts = [hello.host for hello in hellos]
    attrs = attributes(job, "replay" if replay else job.clock.mode, n, comm, hosts, facts)
    file: dict[str, Any] = {"attrs": attrs, "clients": columns, "layout": problem.layout}
    if saved:
        rows = {
            "number": saved.number,
            "counts": saved.facts["counts"],
            "states": saved.facts["loop"]["clients"]["state"],
        }
        rows["found"] = saved.facts["found"]
        model = {"x": job.algorithm.model(server), "version": saved.facts["loop"]["version"]}
        writer = RunWriter.resumed(job.output, **file, **rows, **model)
    else:
        writer = RunWriter(job.output, **file, x0=x0, overwrite=job.overwrite)
    signals = signals or SignalRecorder()
    signals.record()  # before the ranks start
    handshake.start_ranks()
    link: Ends = here if comm is None else _there(comm, job, problem, x0)
    session = Session(job, problem, server, clients, link, schedule, writer, saved, signals)
    return session.run()


def _there(comm: MPI.Comm, job: Job, problem: Problem, x0: np.ndarray) -> Ends:
    from mpifl.server.mpi_ranks import There

    return There(comm, job, problem, x0)


def _live_schedule(job: Job, delays: tuple[Seconds, Parts | None]) -> LiveSchedule:
    clock = RealClock(*delays) if job.clock.mode == "real" else VirtualClock(*delays)
    return LiveSchedule(
        clock, job.algorithm.aggregation_trigger(), job.seed, stop_time=job.stop.time, stop_updates=job.stop.updates,
        evaluate_every=job.evaluate.every, evaluate_updates=job.evaluate.updates,
        save_every=job.checkpoint.every, save_updates=job.checkpoint.updates,
    )  # fmt: skip


def _replay_schedule(job: Job, run: Run) -> ReplaySchedule:
    """The order of events that a run file holds."""
    trigger = job.algorithm.aggregation_trigger()
    updates, aggregations, evaluations = run.updates, run.aggregations, run.evaluations
    return ReplaySchedule(
        list(zip(*(updates[c].tolist() for c in ("time", "client", "compute", "exchange")), strict=True)),
        list(zip(aggregations["time"].tolist(), aggregations["updates"].tolist(), strict=True)),
        list(zip(*(evaluations[c].tolist() for c in ("time", "updates", "version")), strict=True)),
        timed=trigger is not None and trigger.timed,
        incidents=_incidents(run),
    )


def _incidents(run: Run) -> list[ClientIncident]:
    """The client failures of a recorded run. Raises ConfigError where they cannot be repeated."""
    events = run.events
    if (events.kind == "rehosted").any():
        text = "a run whose clients stayed where they were: clients that were moved went on from an older state"
        raise ConfigError("run file", run.path, text)
    failures, clients = events[events.kind.isin(["refused", "lost"])], run.updates.client
    lost = failures[(failures.kind == "lost") & (failures.updates >= 0)]
    late = any((clients[row.updates :] == row.client).any() for row in lost.itertuples())
    if late or not failures.client.between(0, len(run.clients) - 1).all():
        raise ConfigError("run file", run.path, "events that agree with the updates: a lost client has none later")
    return [
        ClientIncident(*row)
        for row in failures[["kind", "time", "client", "text", "updates", "version"]].itertuples(index=False)
    ]


def _server_state(saved: Checkpoint) -> State:
    """The server's state at a checkpoint."""
    part = saved.part(0)
    names = [name for name in part.names() if name.startswith("server.")]
    return State.load({name.removeprefix("server."): part[name] for name in names})
