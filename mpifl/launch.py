"""Puts the parts of a run together: rank 0 leads, the other ranks follow."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import shorten
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl import muster
from mpifl.algorithms.base import Clients, State
from mpifl.errors import ConfigError, RunFailed, inside
from mpifl.links.clocks import Link, RealClock, VirtualClock
from mpifl.links.delays import Parts, Seconds
from mpifl.links.inprocess import InProcess
from mpifl.links.schedule import Plan, Record
from mpifl.serve import serve
from mpifl.work import Worker, work

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpifl.config import Job
    from mpifl.evaluate import Evaluator
    from mpifl.problems import Place, Problem
    from mpifl.records import Run, RunWriter

LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS")  # set by mpirun, mpiexec, srun


def communicator() -> MPI.Comm | None:
    """The job's communicator, or None where there is one process. Without a launcher MPI is not even imported."""
    if not any(name in os.environ for name in LAUNCHERS):
        return None
    from mpifl.links.mpi import MPI

    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def guard(comm: MPI.Comm | None, run: Callable[[], int]) -> int:
    """The exit code of `run`; an error that nothing expected ends every rank with its traceback and exit code 3."""
    try:
        return run()
    except (Exception, SystemExit, GeneratorExit) as error:  # sys.exit in a user's code: the others must not wait
        text = f"rank {comm.rank if comm else 0} on {socket.gethostname()}:\n{traceback.format_exc()}"
        if isinstance(error, RunFailed):
            text = f"mpifl: the run failed: {error}\n"
        print(text, end="", file=sys.stderr, flush=True)  # in one piece: abort is quick
        if comm:
            comm.Abort(3)
        return 3


# -- ranks 1 .. R-1 ----------------------------------------------------------------------------------------------------
def follow(comm: MPI.Comm) -> int:
    """What every rank but 0 does, whatever the command: waits for its part, hosts its clients; the exit code."""
    return guard(comm, partial(_follow, comm))


def _follow(comm: MPI.Comm) -> int:
    from mpifl.config import job_from_dict
    from mpifl.links.client import ClientEnd
    from mpifl.problems import Place, host

    muster.say(comm, muster.myself())
    part = muster.part(comm)
    if "code" in part:
        return int(part["code"])
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # the server hears them too, and ends the run
    x0 = muster.array(comm, part["d"], part["dtype"])
    shards = {i: [muster.array(comm, *a) for a in arrays] for i, arrays in part["clients"]}
    try:
        job = job_from_dict(part["job"])
        hosted = host(job.problem, part["meta"], shards, job.seed, Place(*part["place"]))
        muster.say(comm, {"facts": hosted.facts})
    except ConfigError as error:
        expected = f"{shorten(error.expected, 2000)} (rank {comm.rank})"
        muster.say(comm, {"error": [error.key, shorten(str(error.value), 500), expected]})
    verdict = muster.part(comm)
    if "code" in verdict:
        return int(verdict["code"])
    end = ClientEnd(comm, part["n"], x0.size, x0.dtype, _vectors(job), hosted.memory)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # a run may diverge; its losses say so
            work(Worker(job.algorithm, x0, hosted.objectives, hosted.together, hosted.memory), end)
    except Exception as error:
        end.fail(error)
    return end.code


# -- rank 0 ------------------------------------------------------------------------------------------------------------
def _vectors(job: Job) -> int:
    return max(job.algorithm.vectors_up, job.algorithm.vectors_down)


def _here(job: Job, problem: Problem, x0: np.ndarray, place: Place) -> tuple[Link, list[Any]]:
    """All clients in this process, and what it computes with. Raises ConfigError."""
    from mpifl.problems import host

    shards = {i: problem.shard(i) for i in range(problem.clients)}
    hosted = host(job.problem, problem.meta, shards, job.seed, place)
    return InProcess(Worker(job.algorithm, x0, hosted.objectives, hosted.together, hosted.memory)), [hosted.facts]


def lead(job: Job, comm: MPI.Comm | None, replay: Run | None = None, problem: Problem | None = None) -> int:
    """Rank 0: runs a job, or repeats a recorded one; the exit code. Raises ConfigError before any work is begun.

    `problem` saves the loading where several jobs have the same one.
    """
    from mpifl.config import job_to_dict
    from mpifl.problems import load
    from mpifl.provenance import attributes
    from mpifl.records import RunWriter
    from mpifl.records.create import refuse_existing

    problem = problem or load(job.problem)
    x0 = problem.initial(job.seed)
    n = problem.clients
    with inside("clock.delay"):
        rates = job.clock.delay.rates(n, job.seed)
        delays = job.clock.delay.bind(n, job.seed), job.clock.delay.parts(n, job.seed)
    clients = Clients(problem.samples, rates, job.seed)
    with inside("algorithm"):
        job.algorithm.validate(n)  # data that come by client say only now how many there are
        server = job.algorithm.init_server(x0, clients)
    schedule = _recorded(job, replay) if replay else _plan(job, delays)
    refuse_existing(Path(job.output), job.overwrite)
    ranks = comm.size if comm else 1
    words = muster.ranks(comm)
    place = muster.places(words)[0]
    facts = [dict(problem.prepare(place))]
    if comm is None:
        link, facts = _here(job, problem, x0, place)
    else:
        facts += muster.deal(comm, job_to_dict(job), problem, x0)
    columns = {
        "samples": problem.samples,
        "rate": rates if rates is not None else np.full(n, np.nan),
        "rank": 1 + np.arange(n) % (ranks - 1) if comm else np.zeros(n, int),
    }
    hosts = [word["host"] for word in words]
    attrs = attributes(job, "replay" if replay else job.clock.mode, n, comm, hosts, facts)
    writer = RunWriter(job.output, attrs=attrs, clients=columns, x0=x0, layout=problem.layout, overwrite=job.overwrite)
    if comm:
        from mpifl.links.mpi import ServerEnd

        muster.go(comm)
        link = ServerEnd(comm, n, x0.size, x0.dtype, _vectors(job))
    return _serve(job, problem, server, clients, link, schedule, writer)


def _serve(
    job: Job, problem: Problem, server: State, clients: Clients, link: Link, schedule: Any, writer: RunWriter
) -> int:
    from mpifl.evaluate import Evaluator
    from mpifl.progress import Progress

    caught: list[int] = []

    def catch(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once

    def close(status: str, x: Any, version: int | None) -> None:
        evaluator.close()
        writer.close(status, x, version)

    before = {s: signal.signal(s, catch) for s in (signal.SIGINT, signal.SIGTERM)}
    target = job.stop.accuracy if isinstance(schedule, Plan) else None  # a record ends where it ends
    evaluator = Evaluator(
        problem, writer, deterministic=schedule.deterministic, accuracy=target, gradient=job.evaluate.gradient,
        penalty=job.algorithm.penalty, first=problem.client_accuracies(server.x),
    )  # fmt: skip
    record = Progress(writer, job.stop, evaluator)
    version: int | None = 0
    status, code, x = "failed", 3, server.x  # a run that fails keeps its first model
    begin, cpu = time.perf_counter(), time.process_time()
    writer.set_attr("began", time.time())
    try:
        if isinstance(schedule, Plan):
            schedule.clock.start()
        with np.errstate(over="ignore", invalid="ignore"):
            serve(
                job.algorithm, server, clients, link, schedule, record, evaluator, job.seed,
                partial(_stopped, caught, evaluator, writer),
            )  # fmt: skip
        x = job.algorithm.model(server)
        version = None
        status, code = ("interrupted", 128 + caught[0]) if caught else ("completed", 0)
    except RunFailed as error:
        print(f"mpifl: the run failed: {error}", file=sys.stderr)
        lines = str(error).splitlines()  # of a client's traceback: where, and what
        writer.event(record.time, "failed", -1, " ".join(dict.fromkeys([lines[0], lines[-1]])))
    except Exception as error:
        writer.event(record.time, "failed", -1, f"{type(error).__name__}: {error}")
        raise
    finally:
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
        writer.set_attr("wall_seconds", wall)
        writer.set_attr("server_cpu_share", cpu / wall)
        writer.set_attr("peak_rss_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        record.close()
        if caught:  # a launcher may leave us half a second: the file first
            writer.event(record.time, "interrupted", -1, f"by signal {caught[0]}; updates under way are not applied")
            close(status, x, version)
        dropped = link.finish(code) if not sys.exc_info()[0] else 0  # an unexpected error ends all ranks at once
        if dropped and not caught:
            writer.event(record.time, "dropped", -1, f"{dropped} updates were under way at the end and not applied")
        if not caught:
            close(status, x, version)
        for s, handler in before.items():
            signal.signal(s, handler)
    print(f"{job.output}: {status}, {record.summary()}", flush=True)
    return code


def _stopped(caught: list[int], evaluator: Evaluator, writer: RunWriter) -> bool:
    """Whether a signal or a target ends the run now. Raises RunFailed where rows could not be written."""
    writer.check()
    return bool(caught) or evaluator.reached


def _plan(job: Job, delays: tuple[Seconds, Parts | None]) -> Plan:
    clock = RealClock(*delays) if job.clock.mode == "real" else VirtualClock(*delays)
    return Plan(
        clock, job.algorithm.when(), job.seed, stop_time=job.stop.time, stop_updates=job.stop.updates,
        evaluate_every=job.evaluate.every, evaluate_updates=job.evaluate.updates,
    )  # fmt: skip


def _recorded(job: Job, run: Run) -> Record:
    """The order of events that a run file holds."""
    trigger = job.algorithm.when()
    updates, aggregations, evaluations = run.updates, run.aggregations, run.evaluations
    return Record(
        list(zip(*(updates[c].tolist() for c in ("time", "client", "compute", "exchange")), strict=True)),
        list(zip(aggregations["time"].tolist(), aggregations["updates"].tolist(), strict=True)),
        list(zip(*(evaluations[c].tolist() for c in ("time", "updates", "version")), strict=True)),
        timed=trigger is not None and trigger.timed,
    )
