"""What every rank but 0 runs: the handshake, then its clients, until the server ends the run."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mpifl.client.checkpointing import ResumePayload, attach_checkpoints, restore, resume
from mpifl.client.sharded import ShardedMember, ShardedWorker
from mpifl.client.worker import Worker
from mpifl.config.job import Job
from mpifl.config.read import job_from_dict
from mpifl.errors import ConfigError, MemberFailed, RunFailed, RunResult, format_client_error
from mpifl.objective import parts_of
from mpifl.problems.loading import host
from mpifl.problems.micro_batches import GRADIENT
from mpifl.problems.problem import ComputeResources, HostedClients, Shard
from mpifl.runfile.checkpoint_folder import folder_of
from mpifl.signals import SignalRecorder, exit_code, is_from_signal
from mpifl.transport import handshake
from mpifl.transport.client_end import max_vectors
from mpifl.transport.detection import is_fault_tolerant
from mpifl.transport.handshake import ClientSetup
from mpifl.transport.layout import Layout
from mpifl.transport.mpi import MPI, STUCK_TIMEOUT, dead_ranks
from mpifl.transport.mpi_client import MPIClientTransport
from mpifl.transport.rank_deaths import ProcessWatch, launcher_rank, on_death, report_death
from mpifl.transport.rank_group import RankGroup

log = logging.getLogger(__package__)
_exit = os._exit
HOST = "host"  # asks the members of a group to host a client that moves to it


def run_client_rank(comm: MPI.Comm, process_ends: bool = False) -> RunResult:
    """Hosts this rank's clients for one command of rank 0, from the handshake to the end of the run.

    process_ends: whether this process ends with the command (`SignalRecorder`).
    """
    try:
        with SignalRecorder(process_ends) as signals, _ends_with_server(comm), _exits_by_signal():
            signals.record()  # each signal is reported to the server
            _host_clients(comm, signals)
    except handshake.Released as released:
        return released.result
    except MPI.Exception:
        if 0 not in dead_ranks(comm):
            raise
        log.error("rank %d ends: rank 0 died", comm.rank)
        return RunResult(3, RunFailed("rank 0 died"))


@contextmanager
def _ends_with_server(comm: MPI.Comm) -> Iterator[None]:
    """Under ULFM ends this process if rank 0 dies and the block, whose clients may be computing, goes on for long.

    A block that waits for a message of rank 0 notices its death: an MPI call fails.
    """
    if not is_fault_tolerant():
        yield
        return
    over, number = threading.Event(), launcher_rank(comm, comm.rank)

    def end() -> None:
        if not over.wait(STUCK_TIMEOUT):
            log.error("rank %d ends: rank 0 died", comm.rank)
            _end_process(number, 3)

    with on_death(launcher_rank(comm, 0), lambda: threading.Thread(target=end, name="end", daemon=True).start()):
        try:
            yield
        finally:
            over.set()


@contextmanager
def _exits_by_signal() -> Iterator[None]:
    """Under ULFM `os._exit` in a client's code kills this process, which Open MPI's launcher handles for any number.

    Open MPI 5.0 counts a rank that exits with a status other than 0 twice, and so takes the job for ended too early.
    """
    process = os.getpid()

    def kill(status: int) -> NoReturn:
        if os.getpid() == process:  # not in a process that the code has forked
            os.kill(process, signal.SIGKILL)
        _exit(status)

    if is_fault_tolerant():
        os._exit = kill
    try:
        yield
    finally:
        os._exit = _exit


def _end_process(number: int, code: int) -> NoReturn:
    """Ends this process at once; under ULFM MPI would wait for it unless it is told. number: `launcher_rank`."""
    if is_fault_tolerant():
        report_death(number)
    _exit(code)


def _host_clients(comm: MPI.Comm, signals: SignalRecorder) -> NoReturn:
    """Raises Released at the end of the command."""
    handshake.send_hello(comm)
    values, server = handshake.receive_job(comm)
    if server is None:
        _run_job(comm, signals, values)
    with closing(ProcessWatch({launcher_rank(comm, 0): server}, report_death)):
        _run_job(comm, signals, values)


def _run_job(comm: MPI.Comm, signals: SignalRecorder, values: dict[str, Any]) -> NoReturn:
    """Hosts clients of the job with these values; raises Released at the end of the command."""
    try:
        job = job_from_dict(values)
    except ConfigError as error:
        handshake.receive_setup(comm)
        handshake.report_error(comm, error)
    setup = handshake.receive_setup(comm)
    x0, ranks, group = setup.x0, Layout(comm.size, job.ranks_per_client).group_of(comm.rank), None
    make: Callable[..., Worker] = Worker
    if len(ranks) > 1:
        group = RankGroup(comm, ranks, x0.size, x0.dtype, signals.numbers)
        if setup.meta.get("own_training"):
            group.communicator  # noqa: B018 - made by all members now, before one of them fails
        if setup.meta.get("sharded"):
            make, x0 = partial(ShardedWorker, group, x0.size), x0[parts_of(x0.size, group.size)[group.member]]
    try:
        hosted = _build(job, setup, setup.shards, group)
        setup.shards.clear()
        worker = make(
            job.algorithm, x0, hosted.objectives, hosted.train_batch, hosted.memory, norm=job.faults.norm,
            rank=comm.rank, limit=job.memory.client_states, folder=job.states_folder,
        )  # fmt: skip
        handshake.report_ready(comm, hosted.facts)
    except ConfigError as error:
        handshake.report_error(comm, error)
    handshake.await_start(comm)
    own = launcher_rank(comm, comm.rank)
    signals.watch(job.faults.grace + STUCK_TIMEOUT, lambda number: _end_process(own, exit_code(number)))
    # A run may diverge; its losses show it.
    with group.watched() if group else nullcontext(), np.errstate(over="ignore", invalid="ignore"):
        if group and group.member:
            _follow(comm, job, setup, hosted, group)
        else:
            ClientRank(comm, job, setup, worker, x0, group, signals.numbers).run()
    handshake.await_release(comm)


def _build(job: Job, setup: ClientSetup, shards: Mapping[int, Shard], group: RankGroup | None) -> HostedClients:
    resources = ComputeResources(*setup.resources)
    model, settings = job.problem.model, job.problem.settings
    return host(model, settings, setup.meta, shards, job.seed, resources, group, job.faults.patience)


def _build_together(job: Job, setup: ClientSetup, i: int, shard: Shard, group: RankGroup) -> HostedClients:
    """A client that moves to this group, on each of its ranks; raises as `agree` does where one cannot make it."""
    built: list[HostedClients] = []

    def build() -> tuple[np.ndarray, int]:
        built.append(_build(job, setup, {i: shard}, group))
        return np.empty(0), 0

    group.agree(build)
    return built[0]


def _follow(comm: MPI.Comm, job: Job, setup: ClientSetup, hosted: HostedClients, group: RankGroup) -> None:
    """Computes this rank's parts of its group's gradients, or of models, until the group's first rank ends that."""
    clients: dict[int, Any] = dict(hosted.objectives)
    sharded = setup.meta.get("sharded")
    member = ShardedMember(comm, job.algorithm, group, setup.x0.size, setup.x0.dtype) if sharded else None
    limit = _time_limit(job)
    for request in group.requests():
        i = request.client
        with limit(), suppress(MemberFailed):  # the leader reports it
            if request.name == HOST:
                clients |= _build_together(job, setup, i, request.arrays, group).objectives
            elif request.name == GRADIENT:
                x, *rows = request.arrays
                clients[i].follow_gradient(hosted.memory.from_host(x), *rows, **request.arguments)
                group.finish()
            elif member:
                member.follow_call(i, clients[i], request.name, request.arguments, request.arrays)
            else:
                clients[i].follow_call(request.name, request.arguments, request.arrays)
    if member:
        member.finish()


def _time_limit(job: Job) -> Callable[[], AbstractContextManager[None]]:
    """Makes a block end this process if it takes longer than `patience` + STUCK_TIMEOUT; the run goes on without it.

    A timer signal's default action does that, also while native code holds the interpreter.
    """
    if not (job.faults.patience and is_fault_tolerant()):
        return nullcontext
    seconds = job.faults.patience + STUCK_TIMEOUT

    @contextmanager
    def limited() -> Iterator[None]:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    return limited


class ClientRank:
    """A rank that hosts clients, alone or for its group, during a run: checkpoints, resume, clients that move here."""

    def __init__(
        self, comm: MPI.Comm, job: Job, setup: ClientSetup, worker: Worker, x0: np.ndarray, group: RankGroup | None,
        signals: list[int],
    ) -> None:  # fmt: skip
        """x0: the part that this rank has. signals: the numbers of the signals that it has received."""
        self._comm, self._job, self._setup, self._worker, self._group = comm, job, setup, worker, group
        self._transport = MPIClientTransport(
            comm, worker, len(worker.objectives), x0.size, x0.dtype, max_vectors(job.algorithm),
            sharded=isinstance(worker, ShardedWorker),
        )  # fmt: skip
        self._transport.signals = signals
        self._transport.on_host = self._take_over
        attach_checkpoints(self._transport, worker, folder_of(Path(job.output)), comm.rank)
        if isinstance(worker, ShardedWorker):
            self._transport.on_message, self._transport.on_vectors = worker.on_message, worker.on_vectors

    def run(self) -> None:
        """Computes until the server ends the run; reports an error for which this rank cannot continue."""
        worker, transport, limit = self._worker, self._transport, _time_limit(self._job)
        worker.on_wait = transport.poll
        try:
            if self._setup.resume:
                resume(worker, ResumePayload(**self._setup.resume))
            for deliveries in transport.messages(worker.max_deliveries):
                with limit():
                    worker.step(deliveries)
        except MPI.Exception:
            raise
        except BaseException as error:
            if is_from_signal(error):
                raise
            transport.fail(error)
        finally:
            if self._group:
                self._group.stop()

    def _take_over(self, i: int) -> None:
        """Takes over a client that another rank can no longer host."""
        fields = handshake.receive_json(self._comm)
        shard = handshake.receive_arrays(self._comm, fields["shard"])
        consumed = handshake.receive_arrays(self._comm, fields["consumed"])
        try:
            if self._group:
                self._group.call(i, HOST, {}, shard)
                hosted = _build_together(self._job, self._setup, i, shard, self._group)
            else:
                hosted = _build(self._job, self._setup, {i: shard}, None)
            self._worker.add_clients(hosted.objectives)
            pending = None
            if fields["saved"]:
                payload = ResumePayload(**fields["saved"])
                update, _ = restore(self._worker, payload, [i]).get(i, (None, 0.0))  # None: it had its first state
                pending = update if i in payload.in_flight else None
            self._worker.roll_back(i, consumed, pending)
        except BaseException as error:
            if is_from_signal(error):
                raise
            # The error is reported when the client is sent its next message.
            self._worker.add_failed_client(i, format_client_error(self._comm.rank, error))
