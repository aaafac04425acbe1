"""Puts the parts of a run together: rank 0 leads, the other ranks follow."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifl.algorithms.base import Clients, State
from mpifl.errors import ConfigError, RunFailed, inside
from mpifl.scheduling.clocks import RealClock, VirtualClock
from mpifl.scheduling.delays import Parts, Seconds
from mpifl.scheduling.schedule import ClientIncident, LiveSchedule, ReplaySchedule
from mpifl.transport import handshake

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpifl.config.job import Job
    from mpifl.problems import Problem
    from mpifl.server.session import Ends
    from mpifl.storage import Run
    from mpifl.storage.checkpoint_set import Checkpoint

START = 600  # s that MPI may take to start
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS")  # set by mpirun, mpiexec, srun


def communicator() -> MPI.Comm | None:
    """The job's communicator, or None where there is one process. Without a launcher MPI is not even imported."""
    if not any(name in os.environ for name in LAUNCHERS):
        return None
    if survives():
        # Open MPI's MPI_Finalize waits for all ranks, at times for dead ones too (its issue 11404); ours have said
        # goodbye by then.
        os.environ.setdefault("OMPI_MCA_async_mpi_finalize", "1")
    # Where mpirun goes on without the dead, a rank that dies while MPI starts leaves the others waiting inside it: the
    # default action of this signal ends them.
    signal.alarm(START)
    from mpifl.transport.mpi import MPI

    signal.alarm(0)
    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def guard(comm: MPI.Comm | None, run: Callable[[], int]) -> int:
    """The exit code of `run`; an error that nothing expected ends every rank with its traceback and exit code 3."""
    try:
        return run()
    except (Exception, SystemExit, GeneratorExit) as error:  # sys.exit in a user's code: the others must not wait
        text = f"rank {comm.rank if comm else 0} on {socket.gethostname()}:\n{traceback.format_exc()}"
        if isinstance(error, MemoryError):
            text = f"mpifl: the run failed: out of memory ({error})\n"
        elif isinstance(error, RunFailed):
            text = f"mpifl: the run failed: {error}\n"
        elif gone := _died(comm, error):
            text = f"mpifl: the run failed: rank {', '.join(map(str, sorted(gone)))} died\n"
        print(text, end="", file=sys.stderr, flush=True)  # in one piece: abort is quick
        if comm:
            end_all(comm, 3)
        return 3


def survives() -> bool:
    """Whether this job's MPI goes on without ranks that die (Open MPI started with ULFM)."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") in ("1", "true")  # noqa: SIM112 - as Open MPI spells it


def end_all(comm: MPI.Comm, code: int) -> None:
    """Ends all ranks at once, with this exit code as far as the launcher passes it on."""
    sys.stdout.flush()
    if survives():  # where MPI_Abort ends the caller alone, unseen by the others; a death they see, and follow
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Abort(code)


def _died(comm: MPI.Comm | None, error: BaseException) -> set[int]:
    """The ranks that have died, where that is what an error of MPI means."""
    if comm is None:
        return set()
    from mpifl.transport.mpi import MPI, dead

    return dead(comm) if isinstance(error, MPI.Exception) else set()


# -- ranks 1 .. R-1 ----------------------------------------------------------------------------------------------------
def follow(comm: MPI.Comm) -> int:
    """What every rank but 0 does, whatever the command: waits for its part, hosts its clients; the exit code."""
    from mpifl.client.rank import follow

    return guard(comm, partial(follow, comm))


# -- rank 0 ------------------------------------------------------------------------------------------------------------
def lead(
    job: Job, comm: MPI.Comm | None, replay: Run | None = None, problem: Problem | None = None,
    saved: Checkpoint | None = None,
) -> int:  # fmt: skip
    """Rank 0: runs a job, repeats a recorded one, or goes on with one that was interrupted; the exit code.

    Raises ConfigError before any work is begun. `problem` saves the loading where several jobs have the same one.
    """
    from mpifl.config.job import job_to_dict
    from mpifl.problems import load
    from mpifl.server.in_process import Here, to_go_on
    from mpifl.server.provenance import attributes
    from mpifl.server.session import Session
    from mpifl.signals import SignalRecorder
    from mpifl.storage import RunWriter
    from mpifl.storage.create import refuse_existing

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
        server = _server(saved)
    else:
        with inside("algorithm"):
            server = job.algorithm.init_server(x0, clients)
    schedule = _recorded(job, replay) if replay else _plan(job, delays)
    if saved and isinstance(schedule, LiveSchedule):
        schedule.load(saved.facts["schedule"])
    else:
        refuse_existing(Path(job.output), job.overwrite)
    words = handshake.ranks(comm)
    place = handshake.places(words)[0]
    facts: list[Any] = [dict(problem.prepare(place))]
    if comm is None:
        here = Here(job, problem, x0, place, saved)
        facts = [here.facts]
    else:
        facts += handshake.deal(comm, job_to_dict(job), problem, x0, to_go_on(job, saved))
    columns = {
        "samples": problem.samples,
        "rate": rates if rates is not None else np.full(n, np.nan),
        "rank": 1 + np.arange(n) % (comm.size - 1) if comm else np.zeros(n, int),
    }
    hosts = [word["host"] for word in words]
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
    heard = SignalRecorder()  # before the ranks begin: from then on a signal ends the run as a run
    link: Ends = here if comm is None else _there(comm, job, problem, x0)
    session = Session(job, problem, server, clients, link, schedule, writer, saved, heard)
    code = session.run()
    if comm and session.stuck:
        _leave(comm, session.stuck, code)
    return code


def _leave(comm: MPI.Comm, stuck: set[int], code: int) -> None:
    """Ends ranks that have not answered for too long, which will not end by themselves."""
    if not survives():
        end_all(comm, code)
    words = handshake.ranks(comm)
    for rank in stuck:
        if words[rank]["host"] == words[0]["host"]:  # on other hosts a rank ends itself, `follow.Client`
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(words[rank]["process"], signal.SIGKILL)


def _there(comm: MPI.Comm, job: Job, problem: Problem, x0: np.ndarray) -> Ends:
    from mpifl.server.mpi_ranks import There

    return There(comm, job, problem, x0)


def _plan(job: Job, delays: tuple[Seconds, Parts | None]) -> LiveSchedule:
    clock = RealClock(*delays) if job.clock.mode == "real" else VirtualClock(*delays)
    return LiveSchedule(
        clock, job.algorithm.when(), job.seed, stop_time=job.stop.time, stop_updates=job.stop.updates,
        evaluate_every=job.evaluate.every, evaluate_updates=job.evaluate.updates,
        save_every=job.checkpoint.every, save_updates=job.checkpoint.updates,
    )  # fmt: skip


def _recorded(job: Job, run: Run) -> ReplaySchedule:
    """The order of events that a run file holds."""
    trigger = job.algorithm.when()
    updates, aggregations, evaluations = run.updates, run.aggregations, run.evaluations
    return ReplaySchedule(
        list(zip(*(updates[c].tolist() for c in ("time", "client", "compute", "exchange")), strict=True)),
        list(zip(aggregations["time"].tolist(), aggregations["updates"].tolist(), strict=True)),
        list(zip(*(evaluations[c].tolist() for c in ("time", "updates", "version")), strict=True)),
        timed=trigger is not None and trigger.timed,
        incidents=_incidents(run),
    )


def _incidents(run: Run) -> list[ClientIncident]:
    """What befell clients in a recorded run. Raises ConfigError where that cannot be repeated."""
    events = run.events
    if (events.kind == "rehosted").any():
        text = "a run whose clients stayed where they were: clients that were moved went on from an older state"
        raise ConfigError("run file", run.path, text)
    told, clients = events[events.kind.isin(["refused", "lost"])], run.updates.client
    lost = told[(told.kind == "lost") & (told.updates >= 0)]
    late = any((clients[row.updates :] == row.client).any() for row in lost.itertuples())
    if late or not told.client.between(0, len(run.clients) - 1).all():
        raise ConfigError("run file", run.path, "events that agree with the updates: a lost client has none later")
    return [
        ClientIncident(*row)
        for row in told[["kind", "time", "client", "text", "updates", "version"]].itertuples(index=False)
    ]


def _server(saved: Checkpoint) -> State:
    """The server's state at a checkpoint."""
    part = saved.part(0)
    names = [name for name in part.names() if name.startswith("server.")]
    return State.load({name.removeprefix("server."): part[name] for name in names})
